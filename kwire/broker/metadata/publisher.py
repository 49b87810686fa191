"""From the committed batches of the metadata log to the image that everybody reads.

It works the same on every node, whether the node leads the log, follows it or only reads it. A node that
leads has made the delta of a batch already, when it decided it, and is spared making it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kwire.broker.metadata.batches import CorruptMetadata, MetadataBatch, TransactionFilter
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.features import check_levels
from kwire.broker.metadata.image import MetadataImage
from kwire.host.host import Host

Subscriber = Callable[[MetadataImage, MetadataDelta], None]


class MetadataPublisher:
    """Holds the committed metadata, and tells who subscribes of each change."""

    def __init__(self, host: Host) -> None:
        self.image = MetadataImage()
        """The committed metadata. Replaced, never changed."""
        self.is_empty = True
        """Whether no record has taken effect yet: the cluster is new."""
        self._transactions = TransactionFilter()
        self._subscribers: list[Subscriber] = []
        self._logger = host.logger("kwire.metadata")

    @property
    def is_transaction_open(self) -> bool:
        """Whether records are held back until the end of their transaction is committed, too."""
        return self._transactions.is_open

    def subscribe(self, callback: Subscriber) -> None:
        """Call `callback(image, delta)` for every change from now on."""
        self._subscribers.append(callback)

    def close(self) -> None:
        """Tell nobody any more."""
        self._subscribers.clear()

    def handle_commit(self, batches: Iterable[MetadataBatch]) -> None:
        """Publish the next batches of the log, as one change as far as they are not decided here.

        CorruptMetadata where they contradict what is there, or are of a release that this one does not know.
        """
        delta: MetadataDelta | None = None
        offset = epoch = -1
        for batch in batches:
            if delta is None and batch.delta is not None and batch.delta.image is self.image:
                if self._transactions.is_open:  # by who led before, and cut short: this one aborts it
                    self._transactions.feed(batch.records)
                self.is_empty = False
                self._publish(batch.delta, batch.last_offset, batch.epoch)
                continue
            if delta is None:
                delta = MetadataDelta(self.image)
            offset, epoch = batch.last_offset, batch.epoch
            effective = self._transactions.feed(batch.records)
            self.is_empty = self.is_empty and not effective
            try:
                delta.replay_all(effective)
            except ValueError as error:
                raise CorruptMetadata(f"metadata at offset {batch.base_offset}: {error}") from error
        if delta is not None:
            self._publish(delta, offset, epoch)

    def handle_snapshot(self, batches: Iterable[MetadataBatch]) -> None:
        """Publish what a snapshot says, in the place of all that was: nobody is told what lies between.

        CorruptMetadata, with nothing changed, where it makes no sense.
        """
        fresh = MetadataDelta(MetadataImage())
        offset = epoch = -1
        try:
            for batch in batches:
                fresh.replay_all(batch.records)
                offset, epoch = batch.last_offset, batch.epoch
            image = fresh.apply(offset, epoch)
        except ValueError as error:
            raise CorruptMetadata(f"the snapshot up to offset {offset}: {error}") from error
        self._transactions = TransactionFilter()
        self.is_empty = False
        self._replace_image(image, MetadataDelta.between(self.image, image))

    def _publish(self, delta: MetadataDelta, offset: int, epoch: int) -> None:
        self._replace_image(delta.apply(offset, epoch), delta)

    def _replace_image(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.features_changed:
            check_levels(image.features)
        self.image = image
        for subscriber in self._subscribers:
            try:
                subscriber(image, delta)
            except Exception:
                # The log goes on, whoever fails to follow it.
                self._logger.exception("a change of the metadata was not followed")

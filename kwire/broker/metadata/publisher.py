"""The publisher of metadata images: it replays committed batches and calls its subscribers.

Leaders, followers and observers of the metadata log use it in the same way (Kafka's MetadataLoader). On the
active controller, the publisher reuses the delta that the controller made when it decided the records of a
batch.
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
    """The current metadata image, and the subscribers that receive each change."""

    def __init__(self, host: Host) -> None:
        self.image = MetadataImage()
        """The current image of committed metadata. A change replaces the image and never modifies it."""
        self.last_timestamp_ms = -1
        """The timestamp of the last published record; -1 if there is none."""
        self.loaded_snapshots = 0
        """The number of snapshots that were published."""
        self.apply_errors = 0
        """The number of times that a subscriber failed to apply a change."""
        self._transactions = TransactionFilter()
        self._subscribers: list[Subscriber] = []
        self._logger = host.logger("kwire.metadata")

    @property
    def is_transaction_open(self) -> bool:
        """Whether records are delayed until their metadata transaction ends."""
        return self._transactions.is_open

    def subscribe(self, callback: Subscriber) -> None:
        """Call `callback(image, delta)` for every later change."""
        self._subscribers.append(callback)

    def close(self) -> None:
        """Remove all subscribers. They receive no further changes."""
        self._subscribers.clear()

    def handle_commit(self, batches: Iterable[MetadataBatch]) -> None:
        """Publish the next committed batches.

        A batch that this node appended as the active controller is published as a change of its own. The
        other batches are published together, as one change. Raises CorruptMetadata if the batches contradict
        the image, or need a newer release.
        """
        delta: MetadataDelta | None = None
        offset = epoch = -1
        for batch in batches:
            self.last_timestamp_ms = batch.timestamp_ms
            if delta is None and batch.delta is not None and batch.delta.image is self.image:
                if self._transactions.is_open:  # an earlier controller left it open, and this batch aborts it
                    self._transactions.feed(batch.records)
                self._replace_image(batch.delta.apply(batch.last_offset, batch.epoch), batch.delta)
                continue
            if delta is None:
                delta = MetadataDelta(self.image)
            offset, epoch = batch.last_offset, batch.epoch
            try:
                delta.replay_all(self._transactions.feed(batch.records))
            except ValueError as error:
                raise CorruptMetadata(f"metadata at offset {batch.base_offset}: {error}") from error
        if delta is not None:
            try:
                image = delta.apply(offset, epoch)
            except ValueError as error:
                raise CorruptMetadata(f"metadata at offset {offset}: {error}") from error
            self._replace_image(image, delta)

    def handle_snapshot(self, batches: Iterable[MetadataBatch]) -> None:
        """Publish the content of a snapshot, as one change from the current image.

        Raises CorruptMetadata if the snapshot is invalid or needs a newer release; the current image is kept.
        """
        fresh = MetadataDelta(MetadataImage())
        offset = epoch = -1
        try:
            for batch in batches:
                fresh.replay_all(batch.records)
                self.last_timestamp_ms = batch.timestamp_ms
                offset, epoch = batch.last_offset, batch.epoch
            image = fresh.apply(offset, epoch)
        except ValueError as error:
            raise CorruptMetadata(f"metadata snapshot at offset {offset}: {error}") from error
        self._transactions = TransactionFilter()
        self.loaded_snapshots += 1
        self._replace_image(image, MetadataDelta.between(self.image, image))

    def _replace_image(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.features_changed:
            check_levels(image.features)
        self.image = image
        for subscriber in self._subscribers:
            try:
                subscriber(image, delta)
            except Exception:
                # The failure of one subscriber must not stop the metadata log.
                self.apply_errors += 1
                self._logger.exception(
                    "Metadata subscriber %s failed to apply the change at metadata offset %d, and may use "
                    "older metadata until the node restarts",
                    getattr(subscriber, "__qualname__", subscriber),
                    image.offset,
                )

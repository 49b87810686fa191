"""Consumers that read partitions from their beginning, and hold what they see to what is committed."""

from __future__ import annotations

from typing import Any, Final

from kwire.testing.cluster.client import Client, Steps
from kwire.testing.cluster.ledger import Ledger, Place
from kwire.testing.simulation.promises import Broken
from kwire.wire.batch import batches, records
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

FETCH_VERSION: Final = 12
MAX_WAIT_MS: Final = 300
MAX_BYTES: Final = 1 << 20


class Consumer(Client):
    """Reads some partitions, each in turn. The epoch that it names lets no leader of before answer it."""

    def __init__(
        self, *arguments: Any, ledger: Ledger, places: list[Place], read_committed: bool = False
    ) -> None:
        super().__init__(*arguments)
        self._ledger = ledger
        self._places = places
        self._isolation_level = int(read_committed)
        self.positions = dict.fromkeys(places, 0)
        self._high_watermarks: dict[Place, tuple[int, int]] = {}
        """The greatest that was seen, and in which epoch."""

    def run(self) -> Steps[None]:
        while not self.enough:
            for place in self._places:
                yield from self._poll(place)
            yield self.some_time(100)

    def _poll(self, place: Place) -> Steps[None]:
        leader, epoch = yield from self.leader_of(place)
        wanted = FetchPartition(
            partition=place.partition,
            current_leader_epoch=epoch,
            fetch_offset=self.positions[place],
            partition_max_bytes=MAX_BYTES,
        )
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=self._isolation_level,
            topics=[FetchTopic(topic=place.topic, partitions=[wanted])],
        )
        answer = yield from self.ask(leader, FETCH_VERSION, request)
        if answer is None:
            yield from self.refresh()
            return
        if answer.error_code:
            self.must_be_passing(answer.error_code, "Fetch")
            yield self.backoff()
            return
        ((data,),) = (topic.partitions for topic in answer.responses)
        if data.error_code:
            self.must_be_passing(data.error_code, f"Fetch of {place} from {self.positions[place]}")
            yield self.backoff()
            yield from self.refresh()
            return
        self._take(place, epoch, data)

    def _take(self, place: Place, epoch: int, data: Any) -> None:
        before = self._high_watermarks.get(place, (-1, -1))
        if before[0] == epoch and data.high_watermark < before[1]:
            raise Broken(
                f"{self.name} is told that the high watermark of {place} is {data.high_watermark} in epoch "
                f"{epoch}, after it was {before[1]}"
            )
        self._high_watermarks[place] = (epoch, data.high_watermark)
        position = self.positions[place]
        content = data.records or b""
        for at, header in batches(content, may_be_cut=True):
            if header.next_offset <= position:
                continue
            if not header.is_control:
                for record in records(content, at, header):
                    if record.offset >= position:
                        self._ledger.read(self.name, place, record.offset, record.value)
            position = header.next_offset
        self.positions[place] = position

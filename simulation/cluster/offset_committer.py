"""A client that commits and fetches the offsets of a group that has no members."""

from __future__ import annotations

from typing import Any, Final

from kwire.host.host import PeerAddress
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.violation import Violation
from kwire.wire.messages.find_coordinator import GROUP
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from simulation.cluster.client_oracle import ClientOracle
from simulation.cluster.simulated_client import SimulatedClient, Steps

COMMIT_VERSION: Final = 8
FETCH_VERSION: Final = 8
OFFSETS: Final = TopicPartition("__consumer_offsets", 0)


class OffsetCommitter(SimulatedClient):
    """A client that commits increasing offsets of one partition, as the only client of its group."""

    def __init__(self, *arguments: Any, oracle: ClientOracle, tp: TopicPartition) -> None:
        super().__init__(*arguments)
        self._oracle = oracle
        self._tp = tp
        self._min_expected = -1
        """The last acknowledged or fetched offset. Later fetches must not return a smaller offset."""
        self._unacknowledged: set[int] = set()
        """Offsets of commits without a response. These commits may take effect after later commits."""
        self._last_sent = -1
        """The last offset in an OffsetCommit request."""

    def run(self) -> Steps[None]:
        coordinator = yield from self.coordinator_of(self.name, GROUP)
        while not self.is_stopping:
            yield self.random_pause(250)
            step = self._commit if self.rng.random() < 0.7 else self._fetch
            if not (yield from step(coordinator)):
                coordinator = yield from self.coordinator_of(self.name, GROUP)
        while not (yield from self._fetch(coordinator)):
            coordinator = yield from self.coordinator_of(self.name, GROUP)

    def _commit(self, coordinator: PeerAddress) -> Steps[bool]:
        """Commit the next offset. Returns False if the coordinator must be looked up again."""
        self._last_sent += 1
        offset = self._last_sent
        wanted = OffsetCommitRequestPartition(
            partition_index=self._tp.partition, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self.name,
            topics=[OffsetCommitRequestTopic(name=self._tp.topic, partitions=[wanted])],
        )
        response = yield from self.request(coordinator, COMMIT_VERSION, request)
        if response is None:
            self._unacknowledged.add(offset)
            return False
        ((outcome,),) = (topic.partitions for topic in response.topics)
        if outcome.error_code:
            self.check_retriable(outcome.error_code, "OffsetCommit")
            yield self.backoff()
            return False
        self._min_expected = offset
        return True

    def _fetch(self, coordinator: PeerAddress) -> Steps[bool]:
        """Fetch and check the committed offset. Returns False if the coordinator must be looked up again."""
        topic = OffsetFetchRequestTopics(name=self._tp.topic, partition_indexes=[self._tp.partition])
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.name, topics=[topic])])
        before = self._oracle.led_epoch(OFFSETS, coordinator)
        response = yield from self.request(coordinator, FETCH_VERSION, request)
        if response is None:
            return False
        (group,) = response.groups
        code = group.error_code or next(
            (one.error_code for each in group.topics for one in each.partitions), 0
        )
        if code:
            self.check_retriable(code, "OffsetFetch")
            yield self.backoff()
            return False
        ((found,),) = (each.partitions for each in group.topics)
        if before is None or before != self._oracle.led_epoch(OFFSETS, coordinator):
            # A disconnected or paused coordinator may not know yet that it was replaced, as in Kafka.
            return bool(found.committed_offset <= self._last_sent)
        if found.committed_offset in self._unacknowledged:
            return True
        if not self._min_expected <= found.committed_offset <= self._last_sent:
            raise Violation(
                f"{self.name} fetches offset {found.committed_offset} of {self._tp}, after "
                f"{self._min_expected}; the last commit was {self._last_sent}"
            )
        self._min_expected = found.committed_offset
        return True

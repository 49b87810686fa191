"""Consumers' offsets: somebody who commits them and asks for them, whoever coordinates his group."""

from __future__ import annotations

from typing import Any, Final

from kwire.host.host import PeerAddress
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.oracle import Oracle
from kwire.testing.simulated.simulated_client import SimulatedClient, Steps
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

COMMIT_VERSION: Final = 8
FETCH_VERSION: Final = 8
OFFSETS: Final = TopicPartition("__consumer_offsets", 0)


class Committer(SimulatedClient):
    """The only one of his group, which has no members. He commits ever greater offsets of one partition."""

    def __init__(self, *arguments: Any, ledger: Oracle, place: TopicPartition) -> None:
        super().__init__(*arguments)
        self._ledger = ledger
        self._place = place
        self._least = -1
        """What was acknowledged, or told: it never goes back behind this."""
        self._strays: set[int] = set()
        """Those that nobody answered: they may still arrive, and be taken, after later ones."""
        self._last = -1
        """The last that was sent, which may have been committed, or still be."""

    def run(self) -> Steps[None]:
        coordinator = yield from self.coordinator_of(self.name, GROUP)
        while not self.is_stopping:
            yield self.random_pause(250)
            step = self._commit if self.rng.random() < 0.7 else self._look
            if not (yield from step(coordinator)):
                coordinator = yield from self.coordinator_of(self.name, GROUP)
        while not (yield from self._look(coordinator)):
            coordinator = yield from self.coordinator_of(self.name, GROUP)

    def _commit(self, coordinator: PeerAddress) -> Steps[bool]:
        """Commit the next one; whether the coordinator is to be asked again."""
        self._last += 1
        offset = self._last
        wanted = OffsetCommitRequestPartition(
            partition_index=self._place.partition, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self.name,
            topics=[OffsetCommitRequestTopic(name=self._place.topic, partitions=[wanted])],
        )
        answer = yield from self.request(coordinator, COMMIT_VERSION, request)
        if answer is None:
            self._strays.add(offset)
            return False
        ((outcome,),) = (topic.partitions for topic in answer.topics)
        if outcome.error_code:
            self.check_retriable(outcome.error_code, "OffsetCommit")
            yield self.backoff()
            return False
        self._least = offset
        return True

    def _look(self, coordinator: PeerAddress) -> Steps[bool]:
        """Ask for what is committed; whether the coordinator is to be asked again."""
        topic = OffsetFetchRequestTopics(name=self._place.topic, partition_indexes=[self._place.partition])
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.name, topics=[topic])])
        before = self._ledger.led_epoch(OFFSETS, coordinator)
        answer = yield from self.request(coordinator, FETCH_VERSION, request)
        if answer is None:
            return False
        (group,) = answer.groups
        code = group.error_code or next(
            (one.error_code for each in group.topics for one in each.partitions), 0
        )
        if code:
            self.check_retriable(code, "OffsetFetch")
            yield self.backoff()
            return False
        ((found,),) = (each.partitions for each in group.topics)
        if before is None or before != self._ledger.led_epoch(OFFSETS, coordinator):
            # Who was cut off, or has paused, may tell what was so before: nobody has to ask the others first.
            return bool(found.committed_offset <= self._last)
        if found.committed_offset in self._strays:
            return True
        if not self._least <= found.committed_offset <= self._last:
            raise Violation(
                f"{self.name} is told that {found.committed_offset} is committed of {self._place}, where "
                f"{self._least} was before, and {self._last} was the last to be sent"
            )
        self._least = found.committed_offset
        return True

"""An operator, who moves replicas, has leaders elected and deletes records, while all the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kwire.broker.metadata.image import RESOURCE_TOPIC
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.oracle import Oracle
from kwire.testing.simulated.simulated_client import SimulatedClient, Steps
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kwire.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kwire.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

REASSIGN_VERSION: Final = 0
CREATE_PARTITIONS_VERSION: Final = 3
ELECT_VERSION: Final = 2
DELETE_RECORDS_VERSION: Final = 2
CONFIGS_VERSION: Final = 1
TIMEOUT_MS: Final = 2_000
PREFERRED: Final = 0
SET: Final = 0
CONFIGS: Final = (
    ("compression.type", "gzip"),
    ("compression.type", "producer"),
    ("message.timestamp.type", "CreateTime"),
    ("message.timestamp.type", "LogAppendTime"),
)
"""What changes the batches that a leader writes."""


class Operator(SimulatedClient):
    """Does one thing after another, and looks at the answer only for what must not be said."""

    def __init__(
        self,
        *arguments: Any,
        ledger: Oracle,
        places: list[TopicPartition],
        brokers: list[int],
        replicas: int,
        grows_to: int = 0,
    ) -> None:
        """`grows_to` is how many partitions he may give a topic."""
        super().__init__(*arguments)
        self._ledger = ledger
        self._places = places
        self._broker_ids = brokers
        self._replicas = replicas
        self._grows_to = grows_to

    def run(self) -> Steps[None]:
        kinds: list[tuple[Callable[[TopicPartition], Steps[None]], int]] = [
            (self._reassign, 4),
            (self._stop_reassigning, 1),
            (self._elect, 3),
            (self._delete_records, 2),
            (self._configure, 1),
        ]
        if self._grows_to:
            kinds.append((self._grow, 3))
        works, weights = zip(*kinds, strict=True)
        while not self.is_stopping:
            yield self.random_pause(1_500)
            (work,) = self.rng.choices(works, weights)
            yield from work(self.rng.choice(self._places))
        for place in self._places:
            # A move that another one has replaced may wait for ever for who was to be added, and now is not.
            while not (yield from self._alter_reassignment(place, None)):
                yield self.backoff()
                yield from self.refresh()

    def _reassign(self, place: TopicPartition) -> Steps[None]:
        replicas = self.rng.sample(self._broker_ids, min(self._replicas, len(self._broker_ids)))
        yield from self._alter_reassignment(place, replicas)

    def _stop_reassigning(self, place: TopicPartition) -> Steps[None]:
        yield from self._alter_reassignment(place, None)

    def _alter_reassignment(self, place: TopicPartition, replicas: list[int] | None) -> Steps[bool]:
        """Whether it was done, or there was nothing to do."""
        wanted = ReassignablePartition(partition_index=place.partition, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS, topics=[ReassignableTopic(name=place.topic, partitions=[wanted])]
        )
        what = "stops the move of" if replicas is None else "moves"
        self.log(f"{what} {place}{'' if replicas is None else f' to {replicas}'}")
        answer = yield from self.request(self.any_broker(), REASSIGN_VERSION, request)
        codes: list[int] = []
        if answer is not None:
            codes = [answer.error_code]
            codes += [one.error_code for topic in answer.responses for one in topic.partitions]
            # A move cannot be stopped when none of those from before are in sync.
            may_be = (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
            self._may_be(codes, "a reassignment", *may_be)
        return set(codes) in ({0}, {0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS})

    def _elect(self, place: TopicPartition) -> Steps[None]:
        request = ElectLeadersRequest(
            election_type=PREFERRED,
            topic_partitions=[TopicPartitions(topic=place.topic, partitions=[place.partition])],
            timeout_ms=TIMEOUT_MS,
        )
        self.log(f"has the preferred leader of {place} elected")
        answer = yield from self.request(self.any_broker(), ELECT_VERSION, request)
        if answer is not None:
            codes = [answer.error_code]
            codes += [
                one.error_code for topic in answer.replica_election_results for one in topic.partition_result
            ]
            self._may_be(codes, "an election")

    def _delete_records(self, place: TopicPartition) -> Steps[None]:
        committed = self._ledger.committed_in(place)
        if committed.end <= committed.start or self.rng.random() < 0.5:
            return
        offset = self.rng.randrange(committed.start, committed.end) + 1
        committed.start = offset  # from here on it may happen, whatever is answered
        leader, _ = yield from self.leader_of(place)
        wanted = DeleteRecordsPartition(partition_index=place.partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=place.topic, partitions=[wanted])], timeout_ms=TIMEOUT_MS
        )
        self.log(f"deletes records of {place} before {offset}")
        answer = yield from self.request(leader, DELETE_RECORDS_VERSION, request)
        if answer is None:
            yield from self.refresh()
        else:
            # A leader that is new may not know yet that all this is committed.
            codes = [one.error_code for topic in answer.topics for one in topic.partitions]
            self._may_be(codes, "a deletion", ErrorCode.OFFSET_OUT_OF_RANGE)

    def _configure(self, place: TopicPartition) -> Steps[None]:
        name, value = self.rng.choice(CONFIGS)
        change = AlterableConfig(name=name, config_operation=SET, value=value)
        resource = AlterConfigsResource(
            resource_type=RESOURCE_TOPIC, resource_name=place.topic, configs=[change]
        )
        self.log(f"sets {name} of {place.topic} to {value}")
        request = IncrementalAlterConfigsRequest(resources=[resource])
        answer = yield from self.request(self.any_broker(), CONFIGS_VERSION, request)
        if answer is not None:
            self._may_be([one.error_code for one in answer.responses], "a configuration")

    def _grow(self, place: TopicPartition) -> Steps[None]:
        count = 1 + sum(each.topic == place.topic for each in self._places)
        if count > self._grows_to:
            return
        self.log(f"gives {place.topic} {count} partitions")
        topic = CreatePartitionsTopic(name=place.topic, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        answer = yield from self.request(self.any_broker(), CREATE_PARTITIONS_VERSION, request)
        if answer is not None:
            # He may not have heard that it has them.
            codes = [one.error_code for one in answer.results]
            self._may_be(
                codes, "a growth", ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICATION_FACTOR
            )

    def _may_be(self, codes: list[int], what: str, *more: ErrorCode) -> None:
        for code in codes:
            if code and code not in more:
                self.check_retriable(code, what)

"""An operator who reassigns partitions, elects leaders, deletes records and changes topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kwire.broker.metadata.image import RESOURCE_TOPIC
from kwire.testing.results import TopicPartition
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
from kwire.wire.plural import plural
from simulation.cluster.client_oracle import ClientOracle
from simulation.cluster.simulated_client import SimulatedClient, Steps

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
"""Topic configurations that affect the batches that a leader writes."""


class Operator(SimulatedClient):
    """A client that performs one random operation after another.

    It checks only that errors are retriable or expected.
    """

    def __init__(
        self,
        *arguments: Any,
        oracle: ClientOracle,
        partitions: list[TopicPartition],
        brokers: list[int],
        replicas: int,
        max_partitions: int = 0,
    ) -> None:
        """Create an operator, which may add partitions to a topic up to `max_partitions` (0: add none).

        `brokers` are the ids of brokers for reassignments, and `replicas` is the number of replicas.
        """
        super().__init__(*arguments)
        self._oracle = oracle
        self._partitions = partitions
        self._broker_ids = brokers
        self._replicas = replicas
        self._max_partitions = max_partitions

    def run(self) -> Steps[None]:
        weighted_actions: list[tuple[Callable[[TopicPartition], Steps[None]], int]] = [
            (self._reassign, 4),
            (self._cancel_reassignment, 1),
            (self._elect, 3),
            (self._delete_records, 2),
            (self._alter_config, 1),
        ]
        if self._max_partitions:
            weighted_actions.append((self._add_partitions, 3))
        actions, weights = zip(*weighted_actions, strict=True)
        while not self.is_stopping:
            yield self.random_pause(1_500)
            (action,) = self.rng.choices(actions, weights)
            yield from action(self.rng.choice(self._partitions))
        for tp in self._partitions:
            # A reassignment that replaced another one may wait for a removed replica, and never complete.
            while not (yield from self._alter_reassignment(tp, None)):
                yield self.backoff()
                yield from self.refresh()

    def _reassign(self, tp: TopicPartition) -> Steps[None]:
        replicas = self.rng.sample(self._broker_ids, min(self._replicas, len(self._broker_ids)))
        yield from self._alter_reassignment(tp, replicas)

    def _cancel_reassignment(self, tp: TopicPartition) -> Steps[None]:
        yield from self._alter_reassignment(tp, None)

    def _alter_reassignment(self, tp: TopicPartition, replicas: list[int] | None) -> Steps[bool]:
        """Reassign a partition to `replicas`, or cancel its reassignment if `replicas` is None.

        Returns whether this succeeded or there was no reassignment to cancel.
        """
        wanted = ReassignablePartition(partition_index=tp.partition, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS, topics=[ReassignableTopic(name=tp.topic, partitions=[wanted])]
        )
        what = "cancels the reassignment of" if replicas is None else "reassigns"
        self.log(f"{what} {tp}{'' if replicas is None else f' to {replicas}'}")
        response = yield from self.request(self.any_broker(), REASSIGN_VERSION, request)
        codes: list[int] = []
        if response is not None:
            codes = [response.error_code]
            codes += [one.error_code for topic in response.responses for one in topic.partitions]
            # A reassignment cannot be canceled if none of the original replicas is in sync.
            allowed = (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
            self._check_errors(codes, "AlterPartitionReassignments", *allowed)
        return set(codes) in ({0}, {0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS})

    def _elect(self, tp: TopicPartition) -> Steps[None]:
        request = ElectLeadersRequest(
            election_type=PREFERRED,
            topic_partitions=[TopicPartitions(topic=tp.topic, partitions=[tp.partition])],
            timeout_ms=TIMEOUT_MS,
        )
        self.log(f"elects the preferred leader of {tp}")
        response = yield from self.request(self.any_broker(), ELECT_VERSION, request)
        if response is not None:
            codes = [response.error_code]
            codes += [
                one.error_code
                for topic in response.replica_election_results
                for one in topic.partition_result
            ]
            self._check_errors(codes, "ElectLeaders")

    def _delete_records(self, tp: TopicPartition) -> Steps[None]:
        committed = self._oracle.committed_in(tp)
        if committed.end <= committed.start or self.rng.random() < 0.5:
            return
        offset = self.rng.randrange(committed.start, committed.end) + 1
        committed.start = offset  # from now on the records may be deleted, even without a response
        leader, _ = yield from self.leader_of(tp)
        wanted = DeleteRecordsPartition(partition_index=tp.partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=tp.topic, partitions=[wanted])], timeout_ms=TIMEOUT_MS
        )
        self.log(f"deletes records of {tp} before {offset}")
        response = yield from self.request(leader, DELETE_RECORDS_VERSION, request)
        if response is None:
            yield from self.refresh()
        else:
            # A new leader may not know yet that these records are committed.
            codes = [one.error_code for topic in response.topics for one in topic.partitions]
            self._check_errors(codes, "DeleteRecords", ErrorCode.OFFSET_OUT_OF_RANGE)

    def _alter_config(self, tp: TopicPartition) -> Steps[None]:
        name, value = self.rng.choice(CONFIGS)
        change = AlterableConfig(name=name, config_operation=SET, value=value)
        resource = AlterConfigsResource(
            resource_type=RESOURCE_TOPIC, resource_name=tp.topic, configs=[change]
        )
        self.log(f"sets {name} of {tp.topic} to {value}")
        request = IncrementalAlterConfigsRequest(resources=[resource])
        response = yield from self.request(self.any_broker(), CONFIGS_VERSION, request)
        if response is not None:
            self._check_errors([one.error_code for one in response.responses], "IncrementalAlterConfigs")

    def _add_partitions(self, tp: TopicPartition) -> Steps[None]:
        count = 1 + sum(each.topic == tp.topic for each in self._partitions)
        if count > self._max_partitions:
            return
        self.log(f"increases {tp.topic} to {plural(count, 'partition')}")
        topic = CreatePartitionsTopic(name=tp.topic, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        response = yield from self.request(self.any_broker(), CREATE_PARTITIONS_VERSION, request)
        if response is not None:
            # An earlier request without a response may have added the partitions.
            codes = [one.error_code for one in response.results]
            self._check_errors(
                codes, "CreatePartitions", ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICATION_FACTOR
            )

    def _check_errors(self, codes: list[int], what: str, *more: ErrorCode) -> None:
        for code in codes:
            if code and code not in more:
                self.check_retriable(code, what)

"""A client of any Kafka that asks one thing at a time and waits for the answer: what `Kafka` is made of.

Its versions are those that brokers have from Apache Kafka 2.4 on; groups of the consumer protocol (KIP-848)
can be described where brokers know them. It speaks plain text, and is not for production: each question
begins with the metadata.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, TypeVar

from kwire.testing.answers import Group, Headers, Member, Partition, Record
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import NewRecord, batches, build, control_type, records
from kwire.wire.codegen import decode
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kwire.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.wire.messages.consumer_protocol import ConsumerProtocolAssignment
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kwire.wire.messages.describe_groups import DescribeGroupsRequest
from kwire.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kwire.wire.messages.offset_fetch import OffsetFetchRequest
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request
from kwire.wire.schema import Message

T = TypeVar("T")
Address = tuple[str, int]

CLIENT_ID = "kwire.testing"
"""By this id its requests are told from those of the clients under test."""
RETRY_SECONDS = 0.02
FETCH_MAX_BYTES = 8 << 20
EARLIEST, LATEST = -2, -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
ABORT = 0
UNKNOWN_GROUP_STATE = "Dead"

VERSIONS = {
    ApiKey.PRODUCE: 7,
    ApiKey.FETCH: 10,
    ApiKey.LIST_OFFSETS: 5,
    ApiKey.METADATA: 7,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.DESCRIBE_GROUPS: 4,
    ApiKey.CREATE_TOPICS: 4,
    ApiKey.ELECT_LEADERS: 1,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
}

_SIZE = Struct(">i")


class Link:
    """A connection to one broker."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        """OSError where nobody listens."""
        self._sock = socket.create_connection(address, timeout_s)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._sock.makefile("rb")

    def ask(self, request: Message) -> Any:
        """The response. OSError where the connection is lost, or the answer does not come in time."""
        version = VERSIONS[ApiKey(request.API_KEY)]
        self._sock.sendall(encode_request(request, version, 0, CLIENT_ID))
        [size] = _SIZE.unpack(self._read(_SIZE.size))
        response_class = API_VERSIONS[request.API_KEY].response_class
        return decode_response(response_class, version, self._read(size))[1]

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionError("the broker closed the connection")
        return data

    def close(self) -> None:
        self._stream.close()
        self._sock.close()


class Client:
    """Connections to the brokers of one cluster. For one thread at a time."""

    def __init__(self, bootstrap_servers: str, timeout_s: float) -> None:
        self._bootstrap = [_address(text) for text in bootstrap_servers.split(",")]
        self._timeout_s = timeout_s
        self._links: dict[Address, Link] = {}

    def close(self) -> None:
        """Give the connections back. They are made anew where something else is asked."""
        links, self._links = self._links, {}
        for link in links.values():
            link.close()

    # --- topics

    def topics(self) -> list[str]:
        return sorted(topic.name for topic in self._metadata(None).topics if not topic.is_internal)

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, object]
    ) -> None:
        settings = [CreatableTopicConfig(name=key, value=str(value)) for key, value in config.items()]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replication_factor, configs=settings
        )
        timeout_ms = int(self._timeout_s * 1000)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)
        [answer] = self.patiently(lambda: self._ask(request)).topics
        _check(answer.error_code, answer.error_message)
        self.patiently(lambda: self.leaders(name))

    # --- records

    def produce(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
    ) -> list[Record]:
        new: list[NewRecord] = [(timestamp_ms, key, value, headers) for value in values]
        data = PartitionProduceData(index=partition, records=build(new))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=int(self._timeout_s * 1000),
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )

        def once() -> int:
            answer = self._ask_leader(topic, partition, request, create=True)
            [told] = answer.responses[0].partition_responses
            _check(told.error_code)
            return int(told.base_offset)

        first = self.patiently(once)
        return [
            Record(topic, partition, first + number, timestamp_ms, key, value, headers)
            for number, value in enumerate(values)
        ]

    def records(
        self, topic: str, partition: int | None, offset: int, isolation_level: int
    ) -> Iterator[Record]:
        ends = self.offsets(topic, LATEST, isolation_level)
        for index, first in sorted(self.offsets(topic, EARLIEST, READ_UNCOMMITTED).items()):
            if partition in (None, index):
                yield from self._partition(topic, index, max(offset, first), ends[index], isolation_level)

    def _partition(
        self, topic: str, index: int, offset: int, end: int, isolation_level: int
    ) -> Iterator[Record]:
        while offset < end:
            asked = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=FETCH_MAX_BYTES)
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=FETCH_MAX_BYTES,
                isolation_level=isolation_level,
                topics=[FetchTopic(topic=topic, partitions=[asked])],
            )

            def once(request: FetchRequest = request) -> Any:
                answer = self._ask_leader(topic, index, request)
                _check(answer.error_code)
                [told] = answer.responses[0].partitions
                _check(told.error_code)
                return told

            told = self.patiently(once)
            before = offset
            for next_offset, found in _decoded(topic, told):
                yield from (record for record in found if before <= record.offset < end)
                offset = next_offset
            if offset == before:
                return  # what was there has gone since: retention, or records that were deleted

    def offsets(self, topic: str, timestamp: int, isolation_level: int) -> dict[int, int]:
        def once() -> dict[int, int]:
            return {
                partition: self._offset(topic, partition, timestamp, isolation_level)
                for partition in self.leaders(topic)
            }

        return self.patiently(once)

    def _offset(self, topic: str, partition: int, timestamp: int, isolation_level: int) -> int:
        asked = ListOffsetsTopic(
            name=topic, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=timestamp)]
        )
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[asked])
        [told] = self._ask_leader(topic, partition, request).topics[0].partitions
        _check(told.error_code)
        return int(told.offset)

    # --- groups

    def committed(self, group: str) -> dict[Partition, int]:
        answer = self._ask_coordinator(group, OffsetFetchRequest(group_id=group, topics=None))
        return {
            Partition(topic.name, one.partition_index): one.committed_offset
            for topic in answer.topics
            for one in topic.partitions
            if one.committed_offset >= 0
        }

    def group(self, name: str) -> Group:
        [classic] = self._ask_coordinator(name, DescribeGroupsRequest(groups=[name])).groups
        if classic.group_state != UNKNOWN_GROUP_STATE:
            return Group(
                classic.group_state,
                [
                    Member(one.member_id, one.client_id, _assigned(one.member_assignment))
                    for one in classic.members
                ],
            )
        [told] = self._ask_coordinator(name, ConsumerGroupDescribeRequest(group_ids=[name])).groups
        if told.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return Group(UNKNOWN_GROUP_STATE, [])
        members = [
            Member(
                one.member_id,
                one.client_id,
                _partitions(
                    (topic.topic_name, topic.partitions) for topic in one.assignment.topic_partitions
                ),
            )
            for one in told.members
        ]
        return Group(told.group_state, members)

    def coordinator(self, group: str) -> Address:
        """Where a group is coordinated. ApiError, as where that is not known yet."""
        found = self._ask(FindCoordinatorRequest(key=group, key_type=0))
        _check(found.error_code, found.error_message)
        return found.host, found.port

    def _ask_coordinator(self, group: str, request: Message) -> Any:
        def once() -> Any:
            answer = self._link(self.coordinator(group)).ask(request)
            for code in (answer, *getattr(answer, "groups", [])):
                error = getattr(code, "error_code", ErrorCode.NONE)
                if error != ErrorCode.GROUP_ID_NOT_FOUND:
                    _check(error)
            return answer

        return self.patiently(once)

    # --- who leads

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Put the node first among the replicas, and have the first one elected when it is in sync."""
        _, replicas = self.patiently(lambda: self._placed(topic, partition))
        if to not in replicas:
            raise LookupError(f"{topic}-{partition} has no replica on node {to}, but on {replicas}")
        order = [to, *(each for each in replicas if each != to)]
        moved = ReassignableTopic(
            name=topic, partitions=[ReassignablePartition(partition_index=partition, replicas=order)]
        )
        elected = TopicPartitions(topic=topic, partitions=[partition])

        def once() -> None:
            if self._placed(topic, partition)[1] != order:
                answer = self._ask(AlterPartitionReassignmentsRequest(topics=[moved]))
                _check(answer.error_code, answer.error_message)
                _check(answer.responses[0].partitions[0].error_code)
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{topic}-{partition} is being reassigned")
            answer = self._ask(ElectLeadersRequest(topic_partitions=[elected]))
            _check(answer.error_code)
            if self._placed(topic, partition)[0] != to:
                raise ApiError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {to} does not lead {topic}-{partition} yet"
                )

        self.patiently(once)

    def _placed(self, topic: str, partition: int) -> tuple[int, list[int]]:
        """Who leads a partition, and where its replicas are. ApiError where nobody leads."""
        [told] = self._metadata([topic]).topics
        _check(told.error_code, f"topic {topic!r}")
        found = next((one for one in told.partitions if one.partition_index == partition), None)
        if found is None:
            raise LookupError(f"topic {topic!r} has no partition {partition}")
        _check(found.error_code, f"{topic}-{partition}")
        return found.leader_id, found.replica_nodes

    # --- whom to ask

    def _metadata(self, topics: list[str] | None, *, create: bool = False) -> Any:
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        return self._ask(MetadataRequest(topics=named, allow_auto_topic_creation=create))

    def leaders(self, topic: str, *, create: bool = False) -> dict[int, Address]:
        """Where each partition is led. ApiError where one is led by nobody."""
        answer = self._metadata([topic], create=create)
        [told] = answer.topics
        _check(told.error_code, f"topic {topic!r}")
        brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for partition in told.partitions:
            if partition.leader_id not in brokers:
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition.partition_index}")
        return {one.partition_index: brokers[one.leader_id] for one in told.partitions}

    def _ask_leader(self, topic: str, partition: int, request: Message, *, create: bool = False) -> Any:
        leaders = self.leaders(topic, create=create)
        if partition not in leaders:
            raise LookupError(f"topic {topic!r} has {len(leaders)} partitions, and so no {partition}")
        return self._link(leaders[partition]).ask(request)

    def _ask(self, request: Message) -> Any:
        """Anybody's answer."""
        for address in self._bootstrap[:-1]:
            try:
                return self._link(address).ask(request)
            except OSError:
                self.close()
        return self._link(self._bootstrap[-1]).ask(request)

    def _link(self, address: Address) -> Link:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(address, self._timeout_s)
        return link

    def patiently(self, once: Callable[[], T]) -> T:
        """Try again what may succeed later, until the time is over. ApiError, OSError."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return once()
            except (ApiError, OSError, WireError) as error:
                if not isinstance(error, ApiError):
                    self.close()  # what comes next on the connection may belong to what was asked before
                elif not error.code.retriable:
                    raise
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)


def _address(text: str) -> Address:
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"bootstrap servers are given as host:port, and not {text!r}")
    return host.strip("[]"), int(port)


def _check(error_code: int, message: str | None = None) -> None:
    if error_code != ErrorCode.NONE:
        raise ApiError(ErrorCode(error_code), message)


def _decoded(topic: str, told: Any) -> Iterator[tuple[int, list[Record]]]:
    """What each batch of a fetched partition holds of records that count, and the offset behind it."""
    begins = sorted((one.first_offset, one.producer_id) for one in told.aborted_transactions or ())
    aborted: set[int] = set()
    buffer = told.records or b""
    for position, header in batches(buffer, may_be_cut=True):
        while begins and begins[0][0] <= header.last_offset:
            aborted.add(begins.pop(0)[1])
        found = list(records(buffer, position, header))
        if header.is_control:
            if any(control_type(record)[1] == ABORT for record in found):
                aborted.discard(header.producer_id)
            found = []
        elif header.is_transactional and header.producer_id in aborted:
            found = []
        yield (
            header.next_offset,
            [
                Record(
                    topic, told.partition_index, one.offset, one.timestamp, one.key, one.value, one.headers
                )
                for one in found
            ],
        )


def _assigned(assignment: bytes) -> frozenset[Partition]:
    """What the leader of a classic group of consumers has assigned a member."""
    if len(assignment) < 2:
        return frozenset()
    # Newer versions only add at the end.
    version = min(int.from_bytes(assignment[:2], "big"), ConsumerProtocolAssignment.VERSIONS[1])
    told, _ = decode(ConsumerProtocolAssignment, version, assignment, 2)
    return _partitions((one.topic, one.partitions) for one in told.assigned_partitions)


def _partitions(topics: Iterable[tuple[str, Iterable[int]]]) -> frozenset[Partition]:
    return frozenset(Partition(topic, index) for topic, indexes in topics for index in indexes)

"""The client that `Kafka` uses. It sends one request at a time, and waits for the response.

It retries retriable errors and failed connections until the timeout, even if no broker is up yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from kwire.client.cluster_client import Address, ClusterClient
from kwire.client.consumer import Consumer
from kwire.client.errors import UnknownPartition, raise_for_code
from kwire.client.groups import describe_classic_group, describe_consumer_group, fetch_committed_offsets
from kwire.client.offsets import find_offsets
from kwire.client.producer import TopicProducer
from kwire.client.security import PLAINTEXT, Security
from kwire.host.system_time import monotonic, sleep
from kwire.testing.acl import Acl
from kwire.testing.exchange import CLIENT_ID
from kwire.testing.lookup_table import describe_near
from kwire.testing.results import Group, Headers, Member, Record, Token, TopicContents, TopicPartition
from kwire.wire.batch import Record as StoredRecord
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from kwire.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kwire.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from kwire.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from kwire.wire.messages.list_offsets import EARLIEST, LATEST
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

RETRY_SECONDS: Final = 0.02
TOPIC_RESOURCE: Final = 2
"""The type of a topic in DescribeConfigs."""
DEAD: Final = "Dead"
"""The state of a group that does not exist."""
UNKNOWN_GROUP_ERRORS: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


class BlockingClient:
    """A client of one Kafka cluster. Must be used by one thread at a time."""

    def __init__(
        self,
        bootstrap_servers: str,
        timeout_s: float,
        sleep: Callable[[float], None] = sleep,
        security: Security = PLAINTEXT,
    ) -> None:
        """Create a client without connecting. Raises ValueError if a bootstrap server is not host:port.

        Each method retries for `timeout_s`. Before each retry, it calls `sleep` with a number of seconds. An
        exception of `sleep` ends the retries.
        """
        self._cluster = ClusterClient(
            [parse_address(text) for text in bootstrap_servers.split(",")],
            client_id=CLIENT_ID,
            timeout_seconds=timeout_s,
            retry_seconds=RETRY_SECONDS,
            retry_first_connection=True,
            security=security,
            sleep=sleep,
        )

    def close(self) -> None:
        """Close the connections. The next request opens new ones."""
        self._cluster.close()

    # --- topics

    def topics(self) -> list[str]:
        """Return the names of all topics except internal ones, sorted."""
        found = self._cluster.retry(lambda: self._cluster.metadata(None)).topics
        return sorted(topic.name or "" for topic in found if not topic.is_internal)

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, object]
    ) -> None:
        """Create a topic, and wait until every partition has a leader."""
        settings = [CreatableTopicConfig(name=key, value=str(value)) for key, value in config.items()]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replication_factor, configs=settings
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=self._cluster.request_timeout_ms)

        def attempt() -> None:
            [result] = self._cluster.send_to_controller(request, CreateTopicsResponse).topics
            raise_for_code(result.error_code, result.error_message, f"topic {name}")

        self._cluster.retry(attempt)
        self._cluster.retry(lambda: self._cluster.leaders(self._partitions(name)))

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
        """Append a batch with one record per value, and return the records with their offsets."""
        self._existing_partitions(topic, create=True)
        # Without idempotence, since brokers without a controller cannot allocate producer ids.
        sending = TopicProducer(self._cluster, topic, idempotent=False)
        sending.send({partition: [(timestamp_ms, key, value, headers) for value in values]})
        first = sending.first_offset(partition)
        return [
            Record(topic, partition, first + number, timestamp_ms, key, value, headers)
            for number, value in enumerate(values)
        ]

    def records(
        self,
        topic: str,
        partition: int | None,
        offset: int,
        *,
        committed: bool,
        topic_within_s: float | None = None,
    ) -> Iterator[Record]:
        """Yield the records of one partition, or of all, from `offset` to the current end offset.

        With `committed`, records of open and aborted transactions are skipped. `topic_within_s` is how long
        to wait for the topic to exist, by default the client's timeout.
        """
        ends = self.end_offsets(topic, committed=committed, topic_within_s=topic_within_s)
        if partition is not None and (topic, partition) not in ends:
            raise UnknownPartition(topic, partition, len(ends))
        firsts = find_offsets(self._cluster, dict.fromkeys(ends, EARLIEST))
        starts = {one: max(offset, firsts[one]) for one in sorted(firsts) if partition in (None, one[1])}
        reader = Consumer(self._cluster, starts, committed=committed)
        for (name, index), position in starts.items():
            one = TopicPartition(name, index)
            before = -1
            while before < position < ends[one]:  # no progress means that retention deleted the records
                for stored in self._cluster.retry(partial(_read_next, reader, one, ends[one])):
                    if stored.offset < ends[one]:
                        yield Record(
                            *one, stored.offset, stored.timestamp, stored.key, stored.value, stored.headers
                        )
                before, position = position, reader.positions[one]

    def topic_contents(self, topic: str) -> TopicContents:
        """Return all records that a read_committed consumer can read. Does not wait for the topic."""
        found = list(self.records(topic, None, 0, committed=True, topic_within_s=0))
        partitions = self._cluster.retry(lambda: self._partitions(topic), 0)
        starts = _by_topic_partition(find_offsets(self._cluster, dict.fromkeys(partitions, EARLIEST)))
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE,
            resource_name=topic,
            configuration_keys=["cleanup.policy", "message.timestamp.type"],
        )
        request = DescribeConfigsRequest(resources=[resource])
        [result] = self._cluster.retry(lambda: self._cluster.send(request, DescribeConfigsResponse)).results
        raise_for_code(result.error_code, result.error_message, f"topic {topic}")
        configs = {one.name: one.value or "" for one in result.configs}
        is_compacted = "compact" in configs.get("cleanup.policy", "")
        has_create_time = configs.get("message.timestamp.type") == "CreateTime"
        return TopicContents(found, starts, is_compacted, has_create_time)

    def end_offsets(
        self, topic: str, *, committed: bool = False, topic_within_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition, or the last stable offset if `committed` is set.

        `topic_within_s` is as in `records`.
        """
        partitions = self._existing_partitions(topic, topic_within_s)
        return _by_topic_partition(
            find_offsets(self._cluster, dict.fromkeys(partitions, LATEST), committed=committed)
        )

    def _existing_partitions(
        self, topic: str, within_s: float | None = None, *, create: bool = False
    ) -> list[TopicPartition]:
        """Return the partitions of a topic that exists, or starts to exist within `within_s`.

        The default is the client's timeout, which applies to all other errors. Raises ApiError, with the
        names of existing topics.
        """
        timeout_s = self._cluster.timeout_seconds
        within_s = timeout_s if within_s is None else within_s
        deadline = monotonic() + within_s

        def attempt() -> list[TopicPartition] | None:
            try:
                return self._partitions(topic, create=create)
            except ApiError as error:
                if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and monotonic() >= deadline:
                    return None
                raise

        found = self._cluster.retry(attempt, max(timeout_s, within_s))
        if found is None:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no topic {topic}: {describe_near(topic, self.topics())}",
            )
        return found

    def _partitions(self, topic: str, *, create: bool = False) -> list[TopicPartition]:
        [found] = self._cluster.metadata([topic], create=create).topics
        is_missing = found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise_for_code(
            found.error_code, None, f"there is no topic {topic}" if is_missing else f"topic {topic}"
        )
        return [TopicPartition(topic, one.partition_index) for one in found.partitions]

    # --- groups

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        return _by_topic_partition(fetch_committed_offsets(self._cluster, group))

    def lag(self, group: str, topic: str, topic_within_s: float | None = None) -> int:
        """Return the lag of a group on a topic, summed over the partitions. See `Kafka.lag`."""
        committed, ends = self.committed(group), self.end_offsets(topic, topic_within_s=topic_within_s)
        firsts = find_offsets(self._cluster, dict.fromkeys(ends, EARLIEST))
        return sum(end - max(firsts[one], committed.get(one, 0)) for one, end in ends.items())

    def group(self, name: str) -> Group:
        """Return the state and members of a classic or consumer group."""
        for describe in (describe_classic_group, describe_consumer_group):
            try:
                found = self._cluster.retry(partial(describe, self._cluster, name))
            except ApiError as error:
                if error.code not in UNKNOWN_GROUP_ERRORS:
                    raise
                continue
            if found.state != DEAD:
                return Group(
                    found.state,
                    [
                        Member(
                            one.member_id,
                            one.client_id,
                            frozenset(TopicPartition(*each) for each in one.partitions),
                        )
                        for one in found.members
                    ],
                )
        return Group(DEAD, [])

    # --- the report of a failed test

    def read_state(
        self, topics: Sequence[str] | None, groups: Sequence[str] | None, timeout_s: float
    ) -> tuple[str, str]:
        """Describe these topics and groups, or all, as far as they exist and the time is not up."""
        from kwire.testing.cluster_state import StateReader

        reader = StateReader(self, self._cluster, timeout_s)
        return reader.topics(topics), reader.groups(groups)

    # --- users

    def set_passwords(self, users: Mapping[str, str], mechanisms: Sequence[str]) -> None:
        """Create SCRAM credentials for `users`, and delete those of all other users.

        `users` maps names to passwords. Returns after every broker has applied the changes.
        """
        from kwire.client.users import delete_credential, describe_credentials, set_password

        others = [one for one in describe_credentials(self._cluster) if one.user not in users]
        for one in others:  # left by an earlier broker in this directory
            delete_credential(self._cluster, one.user, one.mechanism)
        for user, password in users.items():
            for mechanism in mechanisms:
                set_password(self._cluster, user, password, mechanism)

        def attempt(node_id: int) -> None:
            known = {(one.user, one.mechanism) for one in describe_credentials(self._cluster, None, node_id)}
            if known != {(user, mechanism) for user in users for mechanism in mechanisms}:
                raise ApiError(
                    ErrorCode.REQUEST_TIMED_OUT, f"broker {node_id} does not know all SCRAM credentials yet"
                )

        for node_id in [*self._cluster.brokers()]:
            self._cluster.retry(partial(attempt, node_id))

    def set_acls(self, acls: Sequence[Acl]) -> None:
        """Replace all ACLs, and return after every broker that responds has applied the changes."""
        from kwire.testing.stored_acls import replace_acls

        replace_acls(self._cluster, acls)

    def user_names(self) -> list[str]:
        """Return the names of the users with SCRAM credentials."""
        from kwire.client.users import describe_credentials

        return [one.user for one in describe_credentials(self._cluster)]

    def create_token(self, renewers: Sequence[str], max_lifetime_ms: int | None) -> Token:
        """Create a delegation token that the authenticated user owns."""
        from kwire.broker.security.principal import USER, Principal
        from kwire.client.tokens import BROKER_DEFAULT, create_token, describe_tokens

        lifetime_ms = BROKER_DEFAULT if max_lifetime_ms is None else max_lifetime_ms
        made = create_token(
            self._cluster, renewers=[Principal(USER, name) for name in renewers], max_lifetime_ms=lifetime_ms
        )

        def is_known(node_id: int) -> bool:
            return any(one.token_id == made.token_id for one in describe_tokens(self._cluster, None, node_id))

        # Wait only for brokers that respond. The token exists, even if other brokers are down.
        self._cluster.stale_brokers(is_known, self._cluster.timeout_seconds)
        return Token(made.token_id, made.password, made.owner.name, made.expires_ms, made.max_ms)

    def tokens(self) -> list[Token]:
        """Return all delegation tokens that the authenticated user may describe."""
        from kwire.client.tokens import describe_tokens

        return [
            Token(one.token_id, one.password, one.owner.name, one.expires_ms, one.max_ms)
            for one in describe_tokens(self._cluster)
        ]

    # --- leaders and coordinators

    def leader(self, topic: str, partition: int, topic_within_s: float | None = None) -> int:
        """Return the leader's node id. Raises UnknownPartition if the topic has no such partition.

        `topic_within_s` is as in `records`.
        """
        self._existing_partitions(topic, topic_within_s)
        return self._cluster.retry(lambda: self._cluster.leader(topic, partition))

    def coordinator(self, group: str) -> int:
        """Return the node id of a group's coordinator."""
        return self._cluster.retry(lambda: self._cluster.coordinator(group))

    def move_leader(self, topic: str, partition: int, to: int, topic_within_s: float | None = None) -> None:
        """Make node `to` the leader of a partition, and wait until all brokers report the new leader.

        Raises LookupError if the node has no replica of the partition. `topic_within_s` is as in `records`.
        """
        self._existing_partitions(topic, topic_within_s)
        one = (topic, partition)
        replicas = self._cluster.retry(lambda: self._cluster.partition_metadata([one]))[one].replica_nodes
        if to not in replicas:
            raise LookupError(f"{topic}-{partition} has no replica on node {to}, only on {replicas}")
        order = [to, *(each for each in replicas if each != to)]
        moved = AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name=topic, partitions=[ReassignablePartition(partition_index=partition, replicas=order)]
                )
            ]
        )
        elected = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=topic, partitions=[partition])])

        def attempt() -> None:
            if self._cluster.partition_metadata([one])[one].replica_nodes != order:
                response = self._cluster.send_to_controller(moved, AlterPartitionReassignmentsResponse)
                raise_for_code(response.error_code, response.error_message, "the reassignment")
                raise_for_code(response.responses[0].partitions[0].error_code, None, f"{topic}-{partition}")
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{topic}-{partition} is being reassigned")
            result = self._cluster.send_to_controller(elected, ElectLeadersResponse)
            raise_for_code(result.error_code, None, "the election")
            # All brokers have to agree: the metadata of a disconnected broker is out of date.
            if any(
                self._leader_by(node_id, topic, partition) != to for node_id in [*self._cluster.brokers()]
            ):
                raise ApiError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    f"node {to} is not the leader of {topic}-{partition} yet",
                )

        self._cluster.retry(attempt)

    def _leader_by(self, node_id: int, topic: str, partition: int) -> int:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        [found] = self._cluster.send_to_node(node_id, request, MetadataResponse).topics
        raise_for_code(found.error_code, None, f"topic {topic}")
        return next(one.leader_id for one in found.partitions if one.partition_index == partition)


def _read_next(reader: Consumer, one: TopicPartition, end: int) -> list[StoredRecord]:
    """Return the next records of a partition. An empty list means that no record is left before `end`.

    Raises ApiError (OFFSET_NOT_AVAILABLE) if the leader's high watermark is still below `end`.
    """
    before = reader.positions[one]
    found = [record for _, record in reader.poll([one])]
    # A new leader does not know its high watermark until its followers have fetched.
    if reader.positions[one] == before and reader.end_offsets.get(one, -1) < end:
        raise ApiError(
            ErrorCode.OFFSET_NOT_AVAILABLE, "{}-{} has no readable offset {} yet".format(*one, before)
        )
    return found


def _by_topic_partition(offsets: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
    return {TopicPartition(*one): offset for one, offset in offsets.items()}


def parse_address(text: str) -> Address:
    """Return the host and the port of a bootstrap server. Raises ValueError unless it is host:port."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"bootstrap servers are host:port, not {text!r}")
    return host.strip("[]"), int(port)

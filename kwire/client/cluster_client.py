"""A client of a cluster, which sends requests to any broker, a leader, a coordinator or the controller."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from kwire.client.connection import Connection
from kwire.client.errors import Disconnected, NoReachableBroker, UnknownPartition, raise_for_code
from kwire.client.security import PLAINTEXT, Security
from kwire.host.system_time import monotonic, sleep
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.find_coordinator import GROUP, FindCoordinatorRequest, FindCoordinatorResponse
from kwire.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kwire.wire.primitives import TopicPartition
from kwire.wire.schema import Message

RETRY_SECONDS: Final = 0.1

Address = tuple[str, int]

A = TypeVar("A", bound=Message)
T = TypeVar("T")


def group_by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Group partitions by topic, as requests list them."""
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return list(found.items())


class ClusterClient:
    """Connections to the brokers of a cluster, opened on demand. For one thread at a time."""

    def __init__(
        self,
        servers: Sequence[Address],
        *,
        client_id: str,
        timeout_seconds: float,
        retry_seconds: float = RETRY_SECONDS,
        retry_first_connection: bool = False,
        security: Security = PLAINTEXT,
        now: Callable[[], float] = monotonic,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        """Set the bootstrap servers, and the timeout of each request and of each series of attempts.

        With `retry_first_connection`, requests are retried even before any broker was reached. If `security`
        differs from the brokers' settings, requests raise SecurityMismatch.
        """
        self.timeout_seconds = timeout_seconds
        self.retry_seconds = retry_seconds
        self.has_failed = False
        """Whether an established connection has failed."""
        self._servers = tuple(servers)
        self._client_id = client_id
        self._retry_first_connection = retry_first_connection
        self._security = security
        self._now = now
        self._sleep = sleep
        self._connections: dict[Address, Connection] = {}
        self._brokers: dict[int, Address] = {}
        self._controller = -1
        self._advertised: Iterable[Address] = ()
        """Addresses in the latest metadata, used if the bootstrap servers do not respond."""
        self._next_server = 0
        """Index of the server for the next request that any broker can serve."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        response_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Further requests open new ones."""
        while self._connections:
            self._connections.popitem()[1].close()

    def forget_metadata(self) -> None:
        """Forget brokers and controller; connections stay open."""
        self._brokers, self._controller, self._advertised = {}, -1, ()

    @property
    def request_timeout_ms(self) -> int:
        """The timeout to set in requests: 90% of the client's, so that the response arrives in time."""
        return int(900 * self.timeout_seconds)

    # --- requests

    def send(self, request: Message, response_type: type[A], *, at_most_once: bool = False) -> A:
        """Send a request to any broker and return the response.

        With `at_most_once`, the request is not sent again after a broker may have executed it. Raises
        Disconnected if no broker responds; before the first metadata, this error is NoReachableBroker.
        """
        addresses = list(dict.fromkeys((*self._servers, *self._advertised)))
        reason = "there are no bootstrap servers"
        for _ in addresses:
            try:
                return self._use_connection(
                    addresses[self._next_server % len(addresses)],
                    lambda connection: connection.send(request, response_type),
                )
            except Disconnected as lost:
                if at_most_once and lost.may_have_executed:
                    raise
                reason = str(lost)
                self._next_server += 1
        raise Disconnected(reason) if self._advertised else NoReachableBroker(reason)

    def send_to_node(
        self, node_id: int, request: Message, response_type: type[A], seconds: float | None = None
    ) -> A:
        """Send a request to one broker. `seconds` overrides the timeout.

        Raises Disconnected, or ApiError if the broker is unknown.
        """
        return self._use_connection(
            self._address(node_id), lambda connection: connection.send(request, response_type, seconds)
        )

    def send_one_way(self, node_id: int, request: Message) -> None:
        """Send one broker a request that has no response. Raises as `send_to_node` does."""
        self._use_connection(self._address(node_id), lambda connection: connection.send_one_way(request))

    def send_to_controller(
        self, request: Message, response_type: type[A], *, at_most_once: bool = False
    ) -> A:
        """Send a request to the active controller, or to a broker that forwards the request.

        `at_most_once` and errors are as for `send`.
        """
        if self._controller < 0:
            self.metadata([])
        if self._controller < 0:
            return self.send(request, response_type, at_most_once=at_most_once)
        return self.send_to_node(self._controller, request, response_type)

    def send_to_coordinator(
        self, key: str, request: Message, response_type: type[A], key_type: int = GROUP
    ) -> A:
        """Send a request to the coordinator of a group or transactional id. Raises Disconnected, ApiError."""
        return self.send_to_node(self.coordinator(key, key_type), request, response_type)

    # --- metadata

    def brokers(self) -> Mapping[int, Address]:
        """Return the addresses of the cluster's brokers, by id."""
        if not self._brokers:
            self.metadata([])
        return self._brokers

    def metadata(self, topics: Iterable[str] | None, *, create: bool = False) -> MetadataResponse:
        """Request the metadata of topics, or of all topics. `create` lets the broker create missing topics.

        Callers must check the topics' error codes.
        """
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        response = self.send(
            MetadataRequest(topics=named, allow_auto_topic_creation=create), MetadataResponse
        )
        self._brokers = {one.node_id: (one.host, one.port) for one in response.brokers}
        self._advertised = tuple(self._brokers.values())
        raise_for_code(response.error_code, None, "the metadata")
        self._controller = response.controller_id if response.controller_id in self._brokers else -1
        return response

    def topics(self, names: Sequence[str]) -> list[MetadataResponseTopic]:
        """Return the metadata of topics, in the given order. Raises ApiError if a topic does not exist."""
        found = {topic.name: topic for topic in self.metadata(names).topics}
        for name in names:
            raise_for_code(found[name].error_code, None, f"topic {name}")
        return [found[name] for name in names]

    def partition_metadata(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, MetadataResponsePartition]:
        """Return the metadata of partitions. Raises UnknownPartition, or ApiError if one has no leader."""
        wanted = list(partitions)
        topics = {topic.name: topic for topic in self.topics(sorted({topic for topic, _ in wanted}))}
        found = {}
        for name, index in wanted:
            existing = topics[name].partitions
            one = next((each for each in existing if each.partition_index == index), None)
            if one is None:
                raise UnknownPartition(name, index, len(existing))
            if one.leader_id < 0:
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{name}-{index}")
            found[name, index] = one
        return found

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Group partitions by leader id. Raises UnknownPartition, or ApiError if one has no leader."""
        found: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition, one in self.partition_metadata(partitions).items():
            found[one.leader_id].append(partition)
        return found

    def leader(self, topic: str, partition: int) -> int:
        """Return the leader id of a partition. Raises UnknownPartition, or ApiError if there is no leader."""
        return self.partition_metadata([(topic, partition)])[topic, partition].leader_id

    def coordinator(self, key: str, key_type: int = GROUP) -> int:
        """Return the broker id of the coordinator of a group or transactional id. Raises ApiError."""
        found = self.send(FindCoordinatorRequest(key=key, key_type=key_type), FindCoordinatorResponse)
        raise_for_code(found.error_code, found.error_message, f"the coordinator of {key}")
        # Keep the other brokers, which the next request may need.
        self._brokers = {**self.brokers(), found.node_id: (found.host, found.port)}
        return found.node_id

    # --- retries

    def retry(
        self, attempt: Callable[[], T], seconds: float | None = None, *, at_most_once: bool = False
    ) -> T:
        """Call `attempt` until it succeeds, or fails with an error that is not retriable, or the time is up.

        Raises the error of the last attempt. `seconds` overrides the timeout. With `at_most_once`, an attempt
        whose request may have been executed is not repeated.
        """
        deadline = self._now() + (self.timeout_seconds if seconds is None else seconds)
        while True:
            try:
                return attempt()
            except (ApiError, Disconnected) as error:
                passes = error.code.retriable if isinstance(error, ApiError) else self._can_retry(error)
                if not passes or self._now() >= deadline or (at_most_once and _may_have_executed(error)):
                    raise
            self._brokers, self._controller = {}, -1
            self._next_server += 1  # this broker may not have the latest metadata
            self._sleep(self.retry_seconds)

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Poll a condition until it is true or the time is up, and return its last value."""
        deadline = self._now() + seconds
        while not (found := condition()) and self._now() < deadline:
            self._sleep(self.retry_seconds)
        return found

    def stale_brokers(self, condition: Callable[[int], bool], seconds: float) -> list[int]:
        """Return the ids of the brokers that do not know a change that the cluster has made.

        `condition` queries the broker with the given id, and returns whether this broker knows the change. It
        is repeated for up to `seconds` per broker. A broker whose query fails counts as not knowing it.
        """
        found = []
        for node_id in sorted(self.brokers()):
            try:
                knows = self.wait_until(partial(condition, node_id), seconds)
            except (ApiError, Disconnected, WireError):
                knows = False
            if not knows:
                found.append(node_id)
        return found

    def _can_retry(self, lost: Disconnected) -> bool:
        return self._retry_first_connection or not isinstance(lost, NoReachableBroker)

    def _address(self, node_id: int) -> Address:
        address = self.brokers().get(node_id)
        if address is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id} is not in the cluster")
        return address

    def _use_connection(self, address: Address, use: Callable[[Connection], T]) -> T:
        """Call `use` with a connection, and close the connection after any error except ApiError."""
        connection = self._connections.get(address)
        if connection is None:
            connection = Connection(
                *address, self._client_id, self.timeout_seconds, self._security, now=self._now
            )
            self._connections[address] = connection
        try:
            return use(connection)
        except ApiError:  # the request was not sent
            raise
        except BaseException as error:
            if isinstance(error, Disconnected):
                error.may_have_executed = True
            self.has_failed = True
            self._connections.pop(address, None)
            connection.close()
            raise


def _may_have_executed(error: ApiError | Disconnected) -> bool:
    """Return whether the request may have been executed although its response is missing."""
    return (
        error.may_have_executed
        if isinstance(error, Disconnected)
        else error.code == ErrorCode.REQUEST_TIMED_OUT
    )

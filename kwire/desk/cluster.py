"""A cluster as its clients see it: any broker, the leader of a partition, the coordinator of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, TypeVar

from kwire.desk.connection import Connection
from kwire.desk.failure import Failure, Lost, check, suggestion
from kwire.desk.settings import Address, ClientSettings
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kwire.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from kwire.wire.schema import Message

RETRY_SECONDS: Final = 0.1
SETTLE_SECONDS: Final = 5
GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""

A = TypeVar("A", bound=Message)
T = TypeVar("T")


class Cluster:
    """Connections to the brokers of a cluster, made when they are needed."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self._now = now
        self._sleep = sleep
        self._connections: dict[Address, Connection] = {}
        self._brokers: dict[int, Address] = {}
        self._controller = -1
        self._known: set[Address] = set()
        """Brokers that were told of: some of them are asked when the first do not answer any more."""

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def ask(self, request: Message, kind: type[A]) -> A:
        """What any broker answers. Lost where none does any more, Failure where none has."""
        reasons = []
        for address in dict.fromkeys((*self._connections, *self.settings.servers, *self._known)):
            try:
                return self._at(address, lambda connection: connection.ask(request, kind))
            except Lost as lost:
                reasons.append(str(lost))
        if self._known:
            raise Lost(reasons[-1])
        raise Failure(
            f"no broker answers ({reasons[-1]}): start one with 'kwire serve', or name another with "
            f"--bootstrap-server"
        )

    def ask_node(self, node_id: int, request: Message, kind: type[A], seconds: float | None = None) -> A:
        """What one broker answers. Lost; ApiError where the cluster does not know it."""
        return self._at(self._address(node_id), lambda connection: connection.ask(request, kind, seconds))

    def tell_node(self, node_id: int, request: Message) -> None:
        """Send one broker a request that has no answer. Lost, ApiError."""
        self._at(self._address(node_id), lambda connection: connection.tell(request))

    def ask_controller(self, request: Message, kind: type[A]) -> A:
        """What the active controller answers, or a broker that asks it. Lost."""
        if self._controller < 0:
            self.metadata([])
        if self._controller < 0:
            return self.ask(request, kind)
        return self.ask_node(self._controller, request, kind)

    def brokers(self) -> Mapping[int, Address]:
        """The brokers that the cluster has now."""
        if not self._brokers:
            self.metadata([])
        return self._brokers

    def metadata(self, topics: Iterable[str] | None, *, create: bool = False) -> MetadataResponse:
        """What a broker knows of some topics, or of all. Failure; errors of topics are the caller's."""
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        answer = self.ask(MetadataRequest(topics=named, allow_auto_topic_creation=create), MetadataResponse)
        self._brokers = {one.node_id: (one.host, one.port) for one in answer.brokers}
        self._known |= set(self._brokers.values())
        check(answer.error_code, None, "the metadata")
        self._controller = answer.controller_id if answer.controller_id in self._brokers else -1
        return answer

    def topics(self, names: Sequence[str]) -> list[MetadataResponseTopic]:
        """Topics that must be there, in the order in which they are named. Failure, ApiError."""
        found = {topic.name: topic for topic in self.metadata(names).topics}
        for name in names:
            if found[name].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise self.unknown_topic(name)
            check(found[name].error_code, None, f"topic {name}")
        return [found[name] for name in names]

    def unknown_topic(self, name: str) -> Failure:
        """What to say of a topic that is not there."""
        there = (topic.name or "" for topic in self.metadata(None).topics)
        near = suggestion(name, there)
        return Failure(f"there is no topic '{name}'{near or ': list those there are with kwire topics list'}")

    def settle(self, topic: str, is_so: Callable[[MetadataResponseTopic], bool]) -> None:
        """Wait until brokers know of a change, so that the next command does not meet what was before.

        The controller has made it, and brokers follow; it is no error if that takes them long. Failure.
        """
        deadline = self._now() + min(SETTLE_SECONDS, self.settings.timeout_seconds)
        while not is_so(self.metadata([topic]).topics[0]) and self._now() < deadline:
            self._sleep(RETRY_SECONDS)

    def leader(self, topic: str, partition: int) -> int:
        """Who leads a partition. Failure where it is not there, ApiError where nobody leads it."""
        for one in self.topics([topic])[0].partitions:
            if one.partition_index == partition:
                check(one.error_code, None, f"{topic}-{partition}")
                if one.leader_id < 0:
                    raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
                return one.leader_id
        raise Failure(f"topic {topic} has no partition {partition}: see 'kwire topics describe {topic}'")

    def coordinator(self, key: str, kind: int = GROUP) -> int:
        """Who coordinates a group or a transactional id. ApiError."""
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        found = self.ask(request, FindCoordinatorResponse).coordinators[0]
        check(found.error_code, found.error_message, f"the coordinator of {key}")
        self._brokers[found.node_id] = (found.host, found.port)
        return found.node_id

    def ask_coordinator(self, key: str, request: Message, kind: type[A], of: int = GROUP) -> A:
        """What the coordinator of a group or transactional id answers. Lost, ApiError."""
        return self.ask_node(self.coordinator(key, of), request, kind)

    def retried(self, attempt: Callable[[], T]) -> T:
        """What an attempt comes to, which is repeated while it meets what passes. ApiError, Failure."""
        deadline = self._now() + self.settings.timeout_seconds
        while True:
            try:
                return attempt()
            except ApiError as error:
                if not error.code.retriable or self._now() >= deadline:
                    raise
            except Lost as lost:
                if self._now() >= deadline:
                    raise Failure(f"{lost}: start that broker, or give it more time by --timeout") from lost
            self._brokers = {}
            self._sleep(RETRY_SECONDS)

    def _address(self, node_id: int) -> Address:
        address = self.brokers().get(node_id)
        if address is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id} is not in the cluster")
        return address

    def _at(self, address: Address, use: Callable[[Connection], T]) -> T:
        """Use a connection, which is closed where anything goes wrong on it."""
        connection = self._connections.get(address)
        if connection is None:
            connection = Connection(*address, self.settings.client_id, self.settings.timeout_seconds)
            self._connections[address] = connection
        try:
            return use(connection)
        except BaseException as error:
            if not isinstance(error, Failure):
                self._connections.pop(address, None)
                connection.close()
            raise

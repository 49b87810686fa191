"""A cluster as its clients see it: any broker, the leader of a partition, the coordinator of a group."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from kwire.client.connection import Connection
from kwire.client.failure import Lost, NoBroker, NoPartition, check
from kwire.client.security import PLAINTEXT, Security
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


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partitions as requests name them: each topic once, with the numbers of its partitions."""
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return list(found.items())


class Cluster:
    """Connections to the brokers of a cluster, made when they are needed. For one thread at a time."""

    def __init__(
        self,
        servers: Sequence[Address],
        *,
        client_id: str,
        timeout_seconds: float,
        retry_seconds: float = RETRY_SECONDS,
        waits_for_first: bool = False,
        security: Security = PLAINTEXT,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`servers` are asked first. `timeout_seconds` is how long an answer, and an attempt, may take.

        `waits_for_first`: attempts are repeated, too, where no broker was ever reached. `security` is how all
        connections are made; whatever asks raises SecurityMismatch where brokers want another one.
        """
        self.timeout_seconds = timeout_seconds
        self.retry_seconds = retry_seconds
        self.has_lost = False
        """Whether anything went wrong on a connection that there was."""
        self._servers = tuple(servers)
        self._client_id = client_id
        self._waits_for_first = waits_for_first
        self._security = security
        self._now = now
        self._sleep = sleep
        self._connections: dict[Address, Connection] = {}
        self._brokers: dict[int, Address] = {}
        self._controller = -1
        self._told: Iterable[Address] = ()
        """Where brokers are by the last metadata: they are asked where the servers do not answer any more."""
        self._turn = 0
        """Whom to ask what any broker answers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back. They are made anew where something else is asked."""
        while self._connections:
            self._connections.popitem()[1].close()

    def forget(self) -> None:
        """Know nobody any more, as before anything was asked. The connections stay."""
        self._brokers, self._controller, self._told = {}, -1, ()

    @property
    def request_timeout_ms(self) -> int:
        """How long a broker may take for what it has to wait for: it is to answer before nobody listens."""
        return int(900 * self.timeout_seconds)

    # --- whom to ask

    def ask(self, request: Message, kind: type[A], *, once: bool = False) -> A:
        """What any broker answers. Lost where none does any more, NoBroker where none has.

        With `once` no other is asked after one that may have done it.
        """
        addresses = list(dict.fromkeys((*self._servers, *self._told)))
        reason = "none is named"
        for _ in addresses:
            try:
                return self._at(
                    addresses[self._turn % len(addresses)], lambda connection: connection.ask(request, kind)
                )
            except Lost as lost:
                if once and lost.may_be_done:
                    raise
                reason = str(lost)
                self._turn += 1
        raise Lost(reason) if self._told else NoBroker(reason)

    def ask_node(self, node_id: int, request: Message, kind: type[A], seconds: float | None = None) -> A:
        """What one broker answers. Lost; ApiError where the cluster does not know it."""
        return self._at(self._address(node_id), lambda connection: connection.ask(request, kind, seconds))

    def tell_node(self, node_id: int, request: Message) -> None:
        """Send one broker a request that has no answer. Lost, ApiError."""
        self._at(self._address(node_id), lambda connection: connection.tell(request))

    def ask_controller(self, request: Message, kind: type[A], *, once: bool = False) -> A:
        """What the active controller answers, or a broker that asks it; `once` as in `ask`. Lost."""
        if self._controller < 0:
            self.metadata([])
        if self._controller < 0:
            return self.ask(request, kind, once=once)
        return self.ask_node(self._controller, request, kind)

    def ask_coordinator(self, key: str, request: Message, kind: type[A], of: int = GROUP) -> A:
        """What the coordinator of a group or transactional id answers. Lost, ApiError."""
        return self.ask_node(self.coordinator(key, of), request, kind)

    # --- who is there

    def brokers(self) -> Mapping[int, Address]:
        """The brokers that the cluster has now."""
        if not self._brokers:
            self.metadata([])
        return self._brokers

    def metadata(self, topics: Iterable[str] | None, *, create: bool = False) -> MetadataResponse:
        """What a broker knows of some topics, or of all. Errors of topics are the caller's."""
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        answer = self.ask(MetadataRequest(topics=named, allow_auto_topic_creation=create), MetadataResponse)
        self._brokers = {one.node_id: (one.host, one.port) for one in answer.brokers}
        self._told = tuple(self._brokers.values())
        check(answer.error_code, None, "the metadata")
        self._controller = answer.controller_id if answer.controller_id in self._brokers else -1
        return answer

    def topics(self, names: Sequence[str]) -> list[MetadataResponseTopic]:
        """Topics that must be there, in the order in which they are named. ApiError."""
        found = {topic.name: topic for topic in self.metadata(names).topics}
        for name in names:
            check(found[name].error_code, None, f"topic {name}")
        return [found[name] for name in names]

    def placed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, MetadataResponsePartition]:
        """Who leads and has each partition. NoPartition, ApiError where nobody leads one."""
        wanted = list(partitions)
        topics = {topic.name: topic for topic in self.topics(sorted({topic for topic, _ in wanted}))}
        found = {}
        for name, index in wanted:
            there = topics[name].partitions
            one = next((each for each in there if each.partition_index == index), None)
            if one is None:
                raise NoPartition(name, index, len(there))
            if one.leader_id < 0:
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{name}-{index}")
            found[name, index] = one
        return found

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Which broker leads which partitions. NoPartition, ApiError where nobody leads one."""
        found: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition, one in self.placed(partitions).items():
            found[one.leader_id].append(partition)
        return found

    def leader(self, topic: str, partition: int) -> int:
        """Who leads a partition. NoPartition, ApiError where nobody leads it."""
        return self.placed([(topic, partition)])[topic, partition].leader_id

    def coordinator(self, key: str, kind: int = GROUP) -> int:
        """Who coordinates a group or a transactional id. ApiError."""
        found = self.ask(FindCoordinatorRequest(key=key, key_type=kind), FindCoordinatorResponse)
        check(found.error_code, found.error_message, f"the coordinator of {key}")
        # Beside all the others, which somebody may ask for next.
        self._brokers = {**self.brokers(), found.node_id: (found.host, found.port)}
        return found.node_id

    # --- patience

    def retried(self, attempt: Callable[[], T], seconds: float | None = None, *, once: bool = False) -> T:
        """What an attempt comes to, which is repeated while it meets what passes. ApiError, Lost.

        `seconds` is for how long, instead of the timeout. With `once` an attempt that may have done what
        it was for is the last.
        """
        deadline = self._now() + (self.timeout_seconds if seconds is None else seconds)
        while True:
            try:
                return attempt()
            except (ApiError, Lost) as error:
                passes = error.code.retriable if isinstance(error, ApiError) else self._waits_for(error)
                if not passes or self._now() >= deadline or (once and _may_be_done(error)):
                    raise
            self._brokers, self._controller = {}, -1
            self._turn += 1  # whoever was asked may not have heard of a change that others know of
            self._sleep(self.retry_seconds)

    def waited(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Whether it is so, by then at the latest. It raises what asking raises."""
        deadline = self._now() + seconds
        while not (found := is_so()) and self._now() < deadline:
            self._sleep(self.retry_seconds)
        return found

    def unaware(self, is_so: Callable[[int], bool], seconds: float) -> list[int]:
        """Brokers that do not know of a change which is made already, for so long, or cannot be asked.

        `is_so` asks one by its id. Whatever it fails with does not undo the change, and is no error here.
        """
        found = []
        for node_id in sorted(self.brokers()):
            try:
                knows = self.waited(partial(is_so, node_id), seconds)
            except (ApiError, Lost, WireError):
                knows = False
            if not knows:
                found.append(node_id)
        return found

    def _waits_for(self, lost: Lost) -> bool:
        return self._waits_for_first or not isinstance(lost, NoBroker)

    def _address(self, node_id: int) -> Address:
        address = self.brokers().get(node_id)
        if address is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id} is not in the cluster")
        return address

    def _at(self, address: Address, use: Callable[[Connection], T]) -> T:
        """Use a connection, which is closed where anything goes wrong on it."""
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
            if isinstance(error, Lost):
                error.may_be_done = True
            self.has_lost = True
            self._connections.pop(address, None)
            connection.close()
            raise


def _may_be_done(error: ApiError | Lost) -> bool:
    """Whether what was asked for may have been done all the same: nobody has said that it was not."""
    return error.may_be_done if isinstance(error, Lost) else error.code == ErrorCode.REQUEST_TIMED_OUT

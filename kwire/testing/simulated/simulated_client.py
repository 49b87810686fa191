"""A client's process: its script, its connections, and what it knows of the cluster.

A script is a generator. It asks for what takes time (an answer, a pause) by yielding it, and goes on with the
outcome, so that a client reads from top to bottom as its documentation does:

    def run(self) -> Steps[None]:
        answer = yield from self.request(address, 12, MetadataRequest(topics=None))
        yield Pause(100)
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.testing.network import ClientConnection, Network
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.violation import Violation
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")

REQUEST_TIMEOUT_MS: Final = 3_000
"""A tenth of what stock clients have, as other times here are: a history is short."""
RETRY_BACKOFF_MS: Final = 100
METADATA_VERSION: Final = 12
FIND_COORDINATOR_VERSION: Final = 4


class SendRequest(NamedTuple):
    """Send this, and go on with the answer; or with PeerUnreachable."""

    to: PeerAddress
    version: int
    request: Any


class Pause(NamedTuple):
    """Go on later."""

    delay_ms: int


Steps = Generator[SendRequest | Pause, Any, T]


class Leader(NamedTuple):
    """Who leads a partition, as far as a client knows."""

    node_id: int
    epoch: int


class SimulatedClient(ABC):
    """See the module."""

    def __init__(
        self,
        name: str,
        network: Network,
        bootstrap: Mapping[int, PeerAddress],
        topics: Sequence[str],
        rng: random.Random,
        note: Callable[[str], None],
    ) -> None:
        """`bootstrap` are the brokers to begin with, `topics` those that it wants to know of."""
        self.name = name
        self.rng = rng
        self.is_done = False
        self.is_stopping = False
        """Whether it is to come to its end."""
        self._network = network
        self._note = note
        self._brokers = dict(bootstrap)
        self._topics = [MetadataRequestTopic(name=topic) for topic in topics]
        self._leaders: dict[TopicPartition, Leader] = {}
        self._connections: dict[PeerAddress, ClientConnection] = {}
        self._script: Steps[None] | None = None

    # --- the script

    @abstractmethod
    def run(self) -> Steps[None]:
        """What this client does, to its end."""

    def start(self) -> None:
        """Begin."""
        self._script = self.run()
        self._schedule(0, lambda: self._resume(None))

    def log(self, text: str) -> None:
        """Have the transcript tell it."""
        self._note(f"{self.name} {text}")

    def _resume(self, outcome: object) -> None:
        assert self._script is not None
        try:
            step = self._script.send(outcome)
        except StopIteration:
            self.is_done = True
            for connection in self._connections.values():
                connection.close()
            return
        if isinstance(step, Pause):
            self._schedule(step.delay_ms, lambda: self._resume(None))
        else:
            self._send(step)

    def _send(self, step: SendRequest) -> None:
        connection = self._connections.get(step.to)
        if connection is None or connection.close_reason is not None:
            connection = self._network.connect(step.to, self.name, self.name)
            self._connections[step.to] = connection

        def answered(answer: object) -> None:
            timer.cancel()
            self._resume(answer)

        # Stock clients close the connection too: what comes later is not heard.
        timer = self._schedule(REQUEST_TIMEOUT_MS, connection.close)
        connection.send(step.version, step.request, answered)

    def _schedule(self, delay_ms: int, call: Callable[[], None]) -> Any:
        return self._network.events.timers.add(delay_ms, call)

    def request(self, to: PeerAddress, version: int, request: Any) -> Steps[Any]:
        """The answer; None where there is none, after a pause."""
        answer = yield SendRequest(to, version, request)
        if isinstance(answer, PeerUnreachable):
            yield self.backoff()
            return None
        return answer

    def now_ms(self) -> int:
        return self._network.events.clock.now_ms()

    def random_pause(self, about_ms: int) -> Pause:
        """A pause of about this length."""
        return Pause(self.rng.randrange(2 * about_ms))

    def backoff(self) -> Pause:
        """How long to wait before something is tried again: as stock clients do, by a fifth more or less."""
        return Pause(int(RETRY_BACKOFF_MS * self.rng.uniform(0.8, 1.2)))

    # --- the cluster

    def any_broker(self) -> PeerAddress:
        """Some broker that was heard of."""
        return self._brokers[self.rng.choice(sorted(self._brokers))]

    def refresh(self) -> Steps[None]:
        """SendRequest some broker how the cluster is."""
        request = MetadataRequest(topics=self._topics, allow_auto_topic_creation=False)
        answer = yield from self.request(self.any_broker(), METADATA_VERSION, request)
        if answer is not None:
            self._learn(answer)

    def _learn(self, answer: MetadataResponse) -> None:
        if answer.brokers:
            self._brokers = {each.node_id: PeerAddress(each.host, each.port) for each in answer.brokers}
        for topic in answer.topics:
            if topic.name is None or topic.error_code:
                continue
            for partition in topic.partitions:
                self.learn_leader(
                    TopicPartition(topic.name, partition.partition_index),
                    Leader(partition.leader_id, partition.leader_epoch),
                )

    def learn_leader(self, place: TopicPartition, leader: Leader) -> None:
        """Somebody says who leads. KIP-320: what is older than known is not believed."""
        known = self._leaders.get(place)
        if known is None or leader.epoch >= known.epoch:
            self._leaders[place] = leader

    def is_newer_leader(self, place: TopicPartition, leader: Leader) -> bool:
        """Whether this is a later leader than the one that is known."""
        known = self._leaders.get(place)
        return known is None or leader.epoch > known.epoch

    def learn_broker(self, node_id: int, address: PeerAddress) -> None:
        """A broker is reached there."""
        self._brokers[node_id] = address

    def leader_of(self, place: TopicPartition) -> Steps[tuple[PeerAddress, int]]:
        """Where a partition is led, and in which epoch; asked for until somebody knows."""
        while True:
            leader = self._leaders.get(place)
            if leader is not None and leader.node_id in self._brokers:
                return self._brokers[leader.node_id], leader.epoch
            yield from self.refresh()
            leader = self._leaders.get(place)
            if leader is None or leader.node_id not in self._brokers:
                yield self.backoff()

    def coordinator_of(self, key: str, key_type: int) -> Steps[PeerAddress]:
        """Where a group (0) or a transactional id (1) is coordinated; asked for until somebody knows."""
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        while True:
            answer = yield from self.request(self.any_broker(), FIND_COORDINATOR_VERSION, request)
            if answer is None:
                continue
            (found,) = answer.coordinators
            if not found.error_code:
                return PeerAddress(found.host, found.port)
            self.check_retriable(found.error_code, "FindCoordinator")
            yield self.backoff()

    def check_retriable(self, code: int, what: str) -> None:
        """An error that a stock client does not show its user. Violation where it is another."""
        if not ErrorCode(code).retriable:
            raise Violation(f"{self.name} is told {ErrorCode(code).name} of {what}")

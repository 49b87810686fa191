"""A client of a simulated cluster, written as a script of requests and pauses.

The script is a generator. It yields whatever takes time, a request or a pause, and continues with the result.
So the code of a client reads from top to bottom:

    def run(self) -> Steps[None]:
        response = yield from self.request(address, 12, MetadataRequest(topics=None))
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
"""A tenth of the default of common clients, like all timeouts in a simulation."""
RETRY_BACKOFF_MS: Final = 100
METADATA_VERSION: Final = 12
FIND_COORDINATOR_VERSION: Final = 4


class SendRequest(NamedTuple):
    """A request to send. The script continues with the response or PeerUnreachable."""

    to: PeerAddress
    version: int
    request: Any


class Pause(NamedTuple):
    """A pause. The script continues after the delay."""

    delay_ms: int


Steps = Generator[SendRequest | Pause, Any, T]


class Leader(NamedTuple):
    """The leader of a partition, as far as a client knows."""

    node_id: int
    epoch: int


class SimulatedClient(ABC):
    """A client process with connections, metadata and a script."""

    def __init__(
        self,
        name: str,
        network: Network,
        bootstrap: Mapping[int, PeerAddress],
        topics: Sequence[str],
        rng: random.Random,
        note: Callable[[str], None],
    ) -> None:
        """Create a client that knows the `bootstrap` brokers, and fetches metadata of `topics`."""
        self.name = name
        self.rng = rng
        self.is_done = False
        self.is_stopping = False
        """Whether the script should end soon."""
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
        """Return the script of this client."""

    def start(self) -> None:
        """Start the script."""
        self._script = self.run()
        self._schedule(0, lambda: self._resume(None))

    def log(self, text: str) -> None:
        """Add a line to the transcript."""
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

        def on_response(response: object) -> None:
            timer.cancel()
            self._resume(response)

        # As common clients do, close the connection after a timeout, so that a late response is lost.
        timer = self._schedule(REQUEST_TIMEOUT_MS, connection.close)
        connection.send(step.version, step.request, on_response)

    def _schedule(self, delay_ms: int, call: Callable[[], None]) -> Any:
        return self._network.events.timers.add(delay_ms, call)

    def request(self, to: PeerAddress, version: int, request: Any) -> Steps[Any]:
        """Send a request and return its response. Without a response, pause for `backoff` and return None."""
        response = yield SendRequest(to, version, request)
        if isinstance(response, PeerUnreachable):
            yield self.backoff()
            return None
        return response

    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970."""
        return self._network.events.clock.now_ms()

    def random_pause(self, about_ms: int) -> Pause:
        """Return a pause of random length, `about_ms` on average."""
        return Pause(self.rng.randrange(2 * about_ms))

    def backoff(self) -> Pause:
        """Return the pause before a retry, with the jitter of 20 % that common clients have."""
        return Pause(int(RETRY_BACKOFF_MS * self.rng.uniform(0.8, 1.2)))

    # --- metadata

    def any_broker(self) -> PeerAddress:
        """Return a random known broker."""
        return self._brokers[self.rng.choice(sorted(self._brokers))]

    def refresh(self) -> Steps[None]:
        """Fetch metadata from any broker."""
        request = MetadataRequest(topics=self._topics, allow_auto_topic_creation=False)
        response = yield from self.request(self.any_broker(), METADATA_VERSION, request)
        if response is not None:
            self._learn(response)

    def _learn(self, response: MetadataResponse) -> None:
        if response.brokers:
            self._brokers = {each.node_id: PeerAddress(each.host, each.port) for each in response.brokers}
        for topic in response.topics:
            if topic.name is None or topic.error_code:
                continue
            for partition in topic.partitions:
                self.learn_leader(
                    TopicPartition(topic.name, partition.partition_index),
                    Leader(partition.leader_id, partition.leader_epoch),
                )

    def learn_leader(self, topic_partition: TopicPartition, leader: Leader) -> None:
        """Remember the leader of a partition, unless a later leader epoch is known (KIP-320)."""
        known = self._leaders.get(topic_partition)
        if known is None or leader.epoch >= known.epoch:
            self._leaders[topic_partition] = leader

    def is_newer_leader(self, topic_partition: TopicPartition, leader: Leader) -> bool:
        """Return whether a leader has a higher epoch than the known leader, or no leader is known."""
        known = self._leaders.get(topic_partition)
        return known is None or leader.epoch > known.epoch

    def learn_broker(self, node_id: int, address: PeerAddress) -> None:
        """Remember the address of a broker."""
        self._brokers[node_id] = address

    def leader_of(self, topic_partition: TopicPartition) -> Steps[tuple[PeerAddress, int]]:
        """Return the address and epoch of a partition's leader. Retries until the leader is known."""
        while True:
            leader = self._leaders.get(topic_partition)
            if leader is not None and leader.node_id in self._brokers:
                return self._brokers[leader.node_id], leader.epoch
            yield from self.refresh()
            leader = self._leaders.get(topic_partition)
            if leader is None or leader.node_id not in self._brokers:
                yield self.backoff()

    def coordinator_of(self, key: str, key_type: int) -> Steps[PeerAddress]:
        """Find the coordinator of a group (key type 0) or a transactional id (1), with retries."""
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        while True:
            response = yield from self.request(self.any_broker(), FIND_COORDINATOR_VERSION, request)
            if response is None:
                continue
            (found,) = response.coordinators
            if not found.error_code:
                return PeerAddress(found.host, found.port)
            self.check_retriable(found.error_code, "FindCoordinator")
            yield self.backoff()

    def check_retriable(self, code: int, what: str) -> None:
        """Raise Violation for an error that clients do not retry."""
        if not ErrorCode(code).retriable:
            raise Violation(f"{self.name} got {ErrorCode(code).name} from {what}")

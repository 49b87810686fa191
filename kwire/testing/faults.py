"""Faults that a broker injects into the next requests of clients.

    broker.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", times=3, topic="orders")
    broker.faults.delay("Fetch", 0.5, client_id="billing", times=None)
    broker.faults.drop_response("Produce")      # the records are written, but the client cannot know
    broker.faults.random(7, probability=0.1)    # one request in ten gets a random fault

Only the first fault that matches a request applies. A request that names several partitions gets the fault
for all of them if one of them matches. Requests between the brokers of a cluster are never affected.
"""

from __future__ import annotations

import random
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from kwire.host.system_time import libc_time_ns
from kwire.testing.arguments import check_seconds, check_text
from kwire.testing.recorder import check_api, check_partition, matches_partition
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from typing import Unpack

    from kwire.testing.names import ApiName, ErrorName

ANY_API: Final = ""
"""Matches requests of every API."""
DROPPED: Final = "processed, then the response was dropped"
TRUNCATED: Final = "processed, then the response was truncated"
MAX_RANDOM_DELAY_S: Final = 0.5
MAX_REMEMBERED: Final = 100
"""The number of faults that `Faults.active_since` considers."""
COORDINATOR_ERRORS: Final = "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"
RETRIABLE_ERRORS: Final[dict[str, tuple[str, ...]]] = {
    "Produce": ("NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS"),
    "Fetch": ("NOT_LEADER_OR_FOLLOWER",),
    "ListOffsets": ("NOT_LEADER_OR_FOLLOWER",),
    "Metadata": (),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE",),
    "JoinGroup": COORDINATOR_ERRORS,
    "SyncGroup": COORDINATOR_ERRORS,
    "Heartbeat": COORDINATOR_ERRORS,
    "ConsumerGroupHeartbeat": COORDINATOR_ERRORS,
    "OffsetCommit": COORDINATOR_ERRORS,
    "OffsetFetch": COORDINATOR_ERRORS,
    "InitProducerId": COORDINATOR_ERRORS,
    "AddPartitionsToTxn": COORDINATOR_ERRORS,
    "AddOffsetsToTxn": COORDINATOR_ERRORS,
    "TxnOffsetCommit": COORDINATOR_ERRORS,
    "EndTxn": COORDINATOR_ERRORS,
}
"""Per API, the retriable errors that `Faults.random` returns. Other APIs get no random faults."""

FaultKind = Literal["return_error", "delay", "drop_response", "truncate_response", "ignore"]


class FaultOptions(TypedDict, total=False):
    """The requests that a fault affects, and their number: `times` is 1 by default; None means all."""

    times: int | None
    """The number of requests that get the fault."""
    client_id: str | None
    """The client id of these requests; None for all clients."""
    topic: str | None
    """A topic that these requests name; None for all topics."""
    partition: int | None
    """The number of a partition that these requests name; None for all partitions."""


class FaultCount:
    """The numbers of requests that have got a fault, and that will still get it."""

    def __init__(self, remaining: int | None) -> None:
        """Count from 0. With `remaining` None, all requests will get the fault."""
        self._hits, self._remaining = 0, remaining

    def read(self) -> tuple[int, int | None]:
        """Return `Fault.hits` and `Fault.remaining`."""
        return self._hits, self._remaining

    def add(self) -> None:
        """Count a request that gets the fault."""
        self._hits += 1
        if self._remaining is not None:
            self._remaining -= 1

    def cancel(self) -> None:
        """Let no more requests get the fault."""
        self._remaining = 0


class Fault:
    """An injected fault, and how many requests it has affected."""

    def __init__(
        self,
        kind: FaultKind,
        api: str,
        options: FaultOptions,
        *,
        error_code: int = 0,
        delay_s: float = 0.0,
        description: str,
    ) -> None:
        if unknown := sorted(options.keys() - FaultOptions.__annotations__.keys()):
            raise TypeError(
                f"a fault has the options {', '.join(FaultOptions.__annotations__)}, not {unknown[0]}"
            )
        self.kind = kind
        self.api = api
        self.count = FaultCount(options.get("times", 1))
        self.client_id, self.topic, self.partition = (
            options.get("client_id"),
            options.get("topic"),
            options.get("partition"),
        )
        self.error_code = error_code
        self.delay_s = delay_s
        self.description = description

    def __repr__(self) -> str:
        return f"<{self.api}: {self.description}, {plural(self.hits, 'time')} so far>"

    @property
    def hits(self) -> int:
        """The number of requests that have got the fault."""
        return self.count.read()[0]

    @property
    def remaining(self) -> int | None:
        """The number of requests that will still get the fault. None means all."""
        return self.count.read()[1]

    @property
    def is_over(self) -> bool:
        """Whether the fault affects no more requests."""
        return self.remaining == 0

    def cancel(self) -> None:
        """Stop injecting this fault."""
        self.count.cancel()

    def matches(self, api: str, client_id: str, partitions: frozenset[tuple[str, int]]) -> bool:
        """Return whether the fault applies to a request."""
        return (
            not self.is_over
            and self.api in (ANY_API, api)
            and self.client_id in (None, client_id)
            and matches_partition(partitions, self.topic, self.partition)
        )

    def match(self, api: str, client_id: str, partitions: frozenset[tuple[str, int]]) -> Fault | None:
        """Count a request and return the fault to inject, or return None if this fault does not apply."""
        if not self.matches(api, client_id, partitions):
            return None
        self.count.add()
        return self


class SeededFault(Fault):
    """Random faults for a share of all requests.

    Each client and API has its own random stream. So the seventh Produce of a client gets the same fault
    regardless of when it arrives and of what other clients do.
    """

    def __init__(self, seed: int, probability: float, options: FaultOptions) -> None:
        super().__init__("delay", ANY_API, {"times": None, **options}, description=f"by seed {seed}")
        self._seed, self._probability = seed, probability
        self._rngs: dict[tuple[str, str], random.Random] = {}

    def match(self, api: str, client_id: str, partitions: frozenset[tuple[str, int]]) -> Fault | None:
        """Decide at random whether a request gets a fault, and which fault."""
        if api not in RETRIABLE_ERRORS or not self.matches(api, client_id, partitions):
            return None
        rng = self._rngs.get((api, client_id))
        if rng is None:
            rng = self._rngs[api, client_id] = random.Random(f"{self._seed} {api} {client_id}")
        # Draw for every request, so that the probability changes the number of faults, but not the faults.
        fault = self._draw(api, rng)
        if rng.random() >= self._probability:
            return None
        fault.description += f" {self.description}"
        super().match(api, client_id, partitions)
        return fault

    def _draw(self, api: str, rng: random.Random) -> Fault:
        delay_s = rng.uniform(0.01, MAX_RANDOM_DELAY_S)
        errors = RETRIABLE_ERRORS[api]
        kind = rng.choice(
            ("return_error", "delay", "drop_response", "truncate_response")
            if errors
            else ("delay", "drop_response", "truncate_response")
        )
        if kind == "return_error":
            code, name = _parse_error(rng.choice(errors))
            return Fault("return_error", api, {}, error_code=code, description=f"returned {name}")
        if kind == "delay":
            return Fault("delay", api, {}, delay_s=delay_s, description=f"delayed by {delay_s:.2f} s")
        if kind == "drop_response":
            return Fault("drop_response", api, {}, description=DROPPED)
        return Fault("truncate_response", api, {}, description=TRUNCATED)


class Faults:
    """The faults of a broker. Can be used from any thread.

    `api` is a name from Kafka's protocol documentation, such as "Produce": see `ApiName`. All methods that
    add a fault take the options of `FaultOptions`: `times`, `client_id`, `topic` and `partition`. They return
    the fault, which can be canceled, and raise ValueError or TypeError for invalid arguments.
    """

    def __init__(self) -> None:
        """Create the faults of a broker: none at first."""
        self._lock = Lock()
        self._pending: list[Fault] = []
        self._remembered: deque[tuple[float, Fault]] = deque(maxlen=MAX_REMEMBERED)
        """The last faults with the times of their injection, in seconds since 1970."""

    def return_error(self, api: ApiName, error: ErrorName | int, **options: Unpack[FaultOptions]) -> Fault:
        """Add a fault: the broker returns `error`, a name or code, and does not process the request."""
        code, name = _parse_error(error)
        return self._add(Fault("return_error", api, options, error_code=code, description=f"returned {name}"))

    def delay(self, api: ApiName, seconds: float, **options: Unpack[FaultOptions]) -> Fault:
        """Add a fault: the request, and later requests on its connection, wait for `seconds`.

        The broker's clock measures this time.
        """
        check_seconds("seconds", seconds)
        if not seconds >= 0:
            raise ValueError(f"a delay of {seconds:g} s: pass 0 or more")
        return self._add(
            Fault("delay", api, options, delay_s=seconds, description=f"delayed by {seconds:g} s")
        )

    def drop_response(self, api: ApiName, **options: Unpack[FaultOptions]) -> Fault:
        """Add a fault: the broker processes the request, and closes the connection without a response."""
        return self._add(Fault("drop_response", api, options, description=DROPPED))

    def truncate_response(self, api: ApiName, **options: Unpack[FaultOptions]) -> Fault:
        """Add a fault: the broker processes the request, sends half of the response, and disconnects."""
        return self._add(Fault("truncate_response", api, options, description=TRUNCATED))

    def ignore(self, api: ApiName, **options: Unpack[FaultOptions]) -> Fault:
        """Add a fault: the broker processes no more requests of the connection, and keeps it open."""
        return self._add(Fault("ignore", api, options, description="ignored"))

    def random(self, seed: int, *, probability: float = 0.05, **options: Unpack[FaultOptions]) -> Fault:
        """Add random faults: errors, delays, and dropped or truncated responses.

        Each client and API has its own random stream, so other clients do not change its faults.
        `probability` is the share of requests that get a fault. By default, `times` is not limited.
        """
        if not isinstance(probability, int | float) or not 0 < probability <= 1:
            raise ValueError(
                f"probability={probability!r}: pass a share of the requests, above 0 and at most 1"
            )
        fault = SeededFault(seed, probability, options)
        check_partition(fault.topic, fault.partition)
        return self._check_times(fault)

    def clear(self) -> None:
        """Cancel all faults."""
        with self._lock:
            for fault in self._pending:
                fault.cancel()
            self._pending.clear()

    @property
    def any_pending(self) -> bool:
        """Whether any fault may apply to a request."""
        return bool(self._pending)

    def match(self, api: str, client_id: str, partitions: frozenset[tuple[str, int]]) -> Fault | None:
        """Return the first fault that applies to a request, and count the request. None if none applies."""
        with self._lock:
            self._pending = [fault for fault in self._pending if not fault.is_over]
            for fault in self._pending:
                matched = fault.match(api, client_id, partitions)
                if matched is not None:
                    return matched
        return None

    def _add(self, fault: Fault) -> Fault:
        check_api(fault.api, fault.topic, fault.partition)
        return self._check_times(fault)

    def _check_times(self, fault: Fault) -> Fault:
        if fault.client_id is not None:
            check_text("client_id", fault.client_id)
        times = fault.remaining
        if times is not None and (not isinstance(times, int) or times < 1):
            raise ValueError(f"times={times!r}: pass a number of requests, or None for all")
        self.register(fault)
        return fault

    def register(self, fault: Fault) -> None:
        """Add a fault to those that may apply to requests."""
        with self._lock:
            self._pending.append(fault)
        self.remember(fault)

    def remember(self, fault: Fault) -> None:
        """Keep a fault for `active_since`."""
        self._remembered.append((libc_time_ns() / 1_000_000_000, fault))

    def active_since(self, since_s: float) -> list[Fault]:
        """Return the last faults since `since_s`, in seconds since 1970, and older ones that are not over."""
        return [fault for at_s, fault in list(self._remembered) if at_s >= since_s or not fault.is_over]


def _parse_error(given: str | int) -> tuple[int, str]:
    from kwire.wire.errors import ErrorCode

    try:
        code = ErrorCode[given] if isinstance(given, str) else ErrorCode(given)
    except (KeyError, ValueError):
        from difflib import get_close_matches

        names = [name for name in ErrorCode.__members__ if name != "NONE"]
        near = get_close_matches(str(given), names, 1) or ["NOT_LEADER_OR_FOLLOWER"]
        hint = f"did you mean {near[0]!r}?" if isinstance(given, str) else f"pass a name such as {near[0]}"
        raise ValueError(f"{given!r} is not a Kafka error: {hint}") from None
    if code is ErrorCode.NONE:
        raise ValueError("NONE is not an error")
    return int(code), code.name

"""What is to go wrong in a broker, on purpose: with the next requests of some kind, as many as are told.

    broker.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", times=3, topic="orders")
    broker.faults.delay("Fetch", 0.5, client_id="billing", times=None)
    broker.faults.drop_response("Produce")        # it is written, and the client cannot know
    broker.faults.random(7, probability=0.1)         # one of ten goes wrong, in some way

A request meets the first fault that is for it, and no second one. A request that names several partitions has
it for all of them where it names one that is meant. What brokers of a cluster ask each other meets none.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from kwire.testing.recorder import check_api, matches_partition

if TYPE_CHECKING:
    from typing import Unpack

ANY_API: Final = ""
"""In the place of an API."""
DROPPED: Final = "done, and its answer is lost"
TRUNCATED: Final = "done, and its answer is cut in half"
MAX_RANDOM_DELAY_S: Final = 0.5
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
"""By API, of those that go wrong by a seed: what Apache Kafka refuses with, and clients try again after."""

Kind = Literal["return_error", "delay", "drop_response", "truncate_response", "ignore"]


class FaultOptions(TypedDict, total=False):
    """Which requests are meant, and how many of them: one, unless `times` says more, or None for all."""

    times: int | None
    client_id: str | None
    topic: str | None
    partition: int | None


class Fault:
    """One of them: how often it has been met, and how often it will be."""

    def __init__(
        self,
        kind: Kind,
        api: str,
        options: FaultOptions,
        *,
        error_code: int = 0,
        delay_s: float = 0.0,
        description: str,
    ) -> None:
        if unknown := sorted(options.keys() - FaultOptions.__annotations__.keys()):
            raise TypeError(
                f"a fault is narrowed down by {', '.join(FaultOptions.__annotations__)}, not {unknown[0]}"
            )
        self.kind = kind
        self.api = api
        self.remaining = options.get("times", 1)
        """How many more requests will meet it; None is all."""
        self.hits = 0
        """How many have met it."""
        self.client_id, self.topic, self.partition = (
            options.get("client_id"),
            options.get("topic"),
            options.get("partition"),
        )
        self.error_code = error_code
        self.delay_s = delay_s
        self.description = description

    def __repr__(self) -> str:
        return f"<{self.api}: {self.description}, {self.hits} times by now>"

    @property
    def is_over(self) -> bool:
        """Whether nobody will meet it any more."""
        return self.remaining == 0

    def cancel(self) -> None:
        """Let nobody meet it any more."""
        self.remaining = 0

    def matches(self, api: str, client_id: str, partitions: frozenset[tuple[str, int]]) -> bool:
        return (
            not self.is_over
            and self.api in (ANY_API, api)
            and self.client_id in (None, client_id)
            and matches_partition(partitions, self.topic, self.partition)
        )

    def match(self, api: str, client_id: str, partitions: frozenset[tuple[str, int]]) -> Fault | None:
        """What becomes of a request, which is counted where it is for it."""
        if not self.matches(api, client_id, partitions):
            return None
        self.hits += 1
        if self.remaining is not None:
            self.remaining -= 1
        return self


class SeededFault(Fault):
    """Some of many requests go wrong, each in its own way.

    Each client has its own fate for each API: its seventh Produce is lost or not, however many others there
    are, and whenever it comes.
    """

    def __init__(self, seed: int, probability: float, options: FaultOptions) -> None:
        super().__init__("delay", ANY_API, {"times": None, **options}, description=f"by seed {seed}")
        self._seed, self._probability = seed, probability
        self._chances: dict[tuple[str, str], random.Random] = {}

    def match(self, api: str, client_id: str, partitions: frozenset[tuple[str, int]]) -> Fault | None:
        if api not in RETRIABLE_ERRORS or not self.matches(api, client_id, partitions):
            return None
        chance = self._chances.get((api, client_id))
        if chance is None:
            chance = self._chances[api, client_id] = random.Random(f"{self._seed} {api} {client_id}")
        fault = self._draw(api, chance)  # always, so that a share decides of how many, and not of how
        if chance.random() >= self._probability:
            return None
        fault.description += f" {self.description}"
        super().match(api, client_id, partitions)
        return fault

    def _draw(self, api: str, chance: random.Random) -> Fault:
        delay_s = chance.uniform(0.01, MAX_RANDOM_DELAY_S)
        refusals = RETRIABLE_ERRORS[api]
        kind = chance.choice(
            ("return_error", "delay", "drop_response", "truncate_response")
            if refusals
            else ("delay", "drop_response", "truncate_response")
        )
        if kind == "return_error":
            code, name = _parse_error(chance.choice(refusals))
            return Fault("return_error", api, {}, error_code=code, description=f"refused with {name}")
        if kind == "delay":
            return Fault("delay", api, {}, delay_s=delay_s, description=f"delayed by {delay_s:.2f} s")
        return (
            Fault("drop_response", api, {}, description=DROPPED)
            if kind == "drop_response"
            else Fault("truncate_response", api, {}, description=TRUNCATED)
        )


class Faults:
    """See the module. `api` is as in Kafka's documentation: "Produce"; `times=None` lasts until cancelled.

    `client_id`, `topic` and `partition` narrow down which requests are meant. For any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[Fault] = []

    def return_error(
        self,
        api: str,
        error: str | int,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Answer with an error, by Kafka's name or number, and do nothing."""
        code, name = _parse_error(error)
        fault = Fault(
            "return_error",
            api,
            options,
            error_code=code,
            description=f"refused with {name}",
        )
        return self._add(fault)

    def delay(
        self,
        api: str,
        seconds: float,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Take the request up so much later (of the broker's time), and what comes behind it."""
        if not seconds >= 0:
            raise ValueError(f"a delay of {seconds:g} s: say 0 or more")
        fault = Fault(
            "delay",
            api,
            options,
            delay_s=seconds,
            description=f"delayed by {seconds:g} s",
        )
        return self._add(fault)

    def drop_response(
        self,
        api: str,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Do what is asked, and close the connection instead of answering."""
        fault = Fault(
            "drop_response",
            api,
            options,
            description=DROPPED,
        )
        return self._add(fault)

    def truncate_response(
        self,
        api: str,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Do what is asked, send half of the answer, and close the connection."""
        fault = Fault(
            "truncate_response",
            api,
            options,
            description=TRUNCATED,
        )
        return self._add(fault)

    def ignore(
        self,
        api: str,
        **options: Unpack[FaultOptions],
    ) -> Fault:
        """Do nothing, answer nothing, and take nothing more from the connection, which stays open."""
        fault = Fault(
            "ignore",
            api,
            options,
            description="ignored",
        )
        return self._add(fault)

    def random(self, seed: int, *, probability: float = 0.05, **options: Unpack[FaultOptions]) -> Fault:
        """Have this share of all requests refused, delayed, or done and not answered, until cancelled."""
        if not 0 < probability <= 1:
            raise ValueError(
                f"probability={probability}: say which part of the requests, above 0 and up to 1"
            )
        return self._register(SeededFault(seed, probability, options))

    def clear(self) -> None:
        """Let nothing go wrong any more."""
        with self._lock:
            for fault in self._pending:
                fault.cancel()
            self._pending.clear()

    @property
    def any_pending(self) -> bool:
        """Whether a request may meet one."""
        return bool(self._pending)

    def match(self, api: str, client_id: str, partitions: frozenset[tuple[str, int]]) -> Fault | None:
        """The fault that a request meets, which is counted."""
        with self._lock:
            self._pending = [fault for fault in self._pending if not fault.is_over]
            for fault in self._pending:
                met = fault.match(api, client_id, partitions)
                if met is not None:
                    return met
        return None

    def _add(self, fault: Fault) -> Fault:
        check_api(fault.api, fault.topic, fault.partition)
        return self._register(fault)

    def _register(self, fault: Fault) -> Fault:
        if fault.remaining is not None and fault.remaining < 1:
            raise ValueError(f"times={fault.remaining}: say how many requests, or None for all")
        with self._lock:
            self._pending.append(fault)
        return fault


def _parse_error(given: str | int) -> tuple[int, str]:
    from kwire.wire.errors import ErrorCode

    try:
        code = ErrorCode[given] if isinstance(given, str) else ErrorCode(given)
    except (KeyError, ValueError):
        from difflib import get_close_matches

        near = get_close_matches(str(given), ErrorCode.__members__, 1) or ["NOT_LEADER_OR_FOLLOWER"]
        hint = f"did you mean {near[0]!r}?" if isinstance(given, str) else f"name one as in {near[0]}"
        raise ValueError(f"{given!r} is no error of Kafka's: {hint}") from None
    if code is ErrorCode.NONE:
        raise ValueError("NONE is no error: leave the request alone")
    return int(code), code.name

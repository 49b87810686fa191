"""What a node's machines ask of the world: the time, chance, later calls, work off the loop, other nodes.

Everything outside of `broker/net` and `broker/storage/disk.py` is synchronous and reaches the world through a
`Host`. `broker.net` implements it on one loop of a real process; `kwire.testing` implements it on
virtual time, so that a test waits a week in a millisecond and gives the same result every time.

All callbacks run on the loop, one at a time, never inside the call that asked for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from kwire.host.loggers import NodeLogger
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message

T = TypeVar("T")


class Timer(Protocol):
    """A call that is due at some time."""

    def cancel(self) -> None:
        """Do not make the call. Does nothing when it was made already."""

    def postpone(self, delay_ms: int) -> bool:
        """Make the call when `delay_ms` have passed from now, instead of before.

        As if it were called off and asked for again, but much cheaper. False, and nothing changes, where
        there is nothing to postpone: the call was made or called off, or this would be sooner.
        """


class Timing(Protocol):
    """A clock to measure with, and calls that wait for it."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment, which never go back: for durations."""

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, when `delay_ms` have passed. Not affected by changes of the wall clock."""


class Host(Timing, Protocol):
    """The world as a node sees it."""

    def random(self, purpose: str) -> random.Random:
        """The source of every random choice for some purpose; seeded, each on its own, in simulations."""

    def logger(self, name: str) -> NodeLogger:
        """The logger of that name, for this node."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970: for record timestamps and times that are stored."""

    @property
    def between_nodes(self) -> Timing:
        """The time that nodes wait for each other, and in which they miss each other.

        It stands still where a test makes all nodes of a cluster older at once.
        """

    def schedule_look(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """`schedule` for a look at whether anything is due, which asks for the next look itself.

        It may come later where a test moves the time far, so that a week has no million of them.
        """

    def run_in_worker(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` in a thread; `done` gets what it returned, or the exception that it raised.

        For work that waits for the disk. Work that computes in Python would hold back the loop (the GIL).
        """

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` in this turn of the loop or the next, after what is running now."""

    @property
    def peers(self) -> Peers:
        """The other nodes of the cluster."""


class PeerAddress(NamedTuple):
    """Where a node listens to other nodes."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PeerUnreachable(Exception):
    """The other node was not reached, or did not answer in time; it may have done what it was asked.

    Its text says why.
    """


class PeerTooOld(PeerUnreachable):
    """The other node does not know a version of the request that can say this."""


OnAnswer = Callable[[Message | PeerUnreachable], None]


class Peers(Protocol):
    """The other nodes of a cluster, for those parts of a node that ask them."""

    def send(
        self,
        to: PeerAddress,
        purpose: str,
        request: Message,
        *,
        deadline_ms: int,
        on_answer: OnAnswer,
        max_version: int | None = None,
        to_controller: bool = False,
    ) -> None:
        """Ask a node, and have `on_answer` called once: with its answer, or, by `deadline_ms`, without one.

        Each purpose ("metadata", "fetch-0") has a connection of its own to each address: what is sent for one
        is done and answered in its order, and waits for nothing that is sent for another. The deadline is a
        moment of `Host.between_nodes`. The version is the highest that both have, at most `max_version`.

        `to_controller` says that a controllers' listener is asked there, not the one between brokers: each
        may want to be shown in its own way who this node is. Of a purpose it is always the same.
        """

    def versions_of(self, peer: PeerAddress) -> Mapping[int, tuple[int, int]]:
        """Which APIs a node serves, by key and as it has said last; nothing where it was not asked lately."""


class NoPeers:
    """`Peers` of a node that can reach nobody."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._call_soon = call_soon

    def send(
        self,
        to: PeerAddress,
        purpose: str,
        request: Message,
        *,
        deadline_ms: int,
        on_answer: OnAnswer,
        max_version: int | None = None,
        to_controller: bool = False,
    ) -> None:
        self._call_soon(lambda: on_answer(PeerUnreachable(f"{to}: there is no network")))

    def versions_of(self, peer: PeerAddress) -> Mapping[int, tuple[int, int]]:
        return {}

"""What the active controller does in its time, without being asked: leaders bettered, tokens removed.

All of it are commands, decided like any other. Nothing runs but while this controller is active.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kwire.broker.controller.commands import (
    Command,
    Election,
    ElectWherePossible,
    OnDone,
    RemoveExpiredTokens,
)
from kwire.host.host import Host, Timer
from kwire.wire.errors import ApiError
from kwire.wire.named_tuple import NamedTuple

AT_ONCE_MS: Final = 10
"""Where there was more to do than is done in one go, others get a turn in between."""
AFTER_ERROR_MS: Final = 300_000


class Periods(NamedTuple):
    """How often something is done; None for never."""

    preferred_ms: int | None = None
    """leader.imbalance.check.interval.seconds, where auto.leader.rebalance.enable."""
    unclean_ms: int | None = None
    """unclean.leader.election.interval.ms."""
    tokens_ms: int | None = None
    """delegation.token.expiry.check.interval.ms, where there are tokens."""


NEVER: Final = Periods()


class _Round(NamedTuple):
    """A command that is given again and again. Its reply is True where there may be more to do at once."""

    period_ms: int | None
    command: Callable[[], Command]


class Periodic:
    """Rounds that come again and again, from `start` to `stop`."""

    def __init__(self, host: Host, periods: Periods, submit: Callable[[Command, OnDone[Any]], None]) -> None:
        self._host = host
        self._submit = submit
        self._rounds = (
            _Round(periods.preferred_ms, lambda: ElectWherePossible(Election.PREFERRED)),
            _Round(periods.unclean_ms, lambda: ElectWherePossible(Election.UNCLEAN)),
            _Round(periods.tokens_ms, lambda: RemoveExpiredTokens(host.now_ms())),
        )
        self._timers: dict[_Round, Timer] = {}

    def start(self) -> None:
        """Begin each in its time from now on."""
        for one in self._rounds:
            self._schedule(one, one.period_ms)

    def stop(self) -> None:
        """Begin none any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _schedule(self, one: _Round, delay_ms: int | None) -> None:
        if delay_ms is not None:
            self._timers[one] = self._host.schedule_check(delay_ms, lambda: self._due(one))

    def _due(self, one: _Round) -> None:
        timer = self._timers[one]

        def done(reply: object) -> None:
            if self._timers.get(one) is not timer:
                return
            if reply is True:
                self._timers[one] = self._host.schedule(AT_ONCE_MS, lambda: self._due(one))
            else:
                self._schedule(one, AFTER_ERROR_MS if isinstance(reply, ApiError) else one.period_ms)

        self._submit(one.command(), done)

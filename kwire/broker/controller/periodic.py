"""What the active controller does for leaders without being asked: it betters them, in its time.

All of it are commands, decided like any other. Nothing runs but while this controller is active.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kwire.broker.controller.commands import Command, Election, ElectWherePossible, OnDone
from kwire.broker.host.host import Host, Timer
from kwire.wire.errors import ApiError
from kwire.wire.named_tuple import NamedTuple

AT_ONCE_MS: Final = 10
"""Where there was more to do than is done in one go, others get a turn in between."""
AFTER_ERROR_MS: Final = 300_000


class Periods(NamedTuple):
    """How often leaders are bettered; None for never."""

    preferred_ms: int | None = None
    """leader.imbalance.check.interval.seconds, where auto.leader.rebalance.enable."""
    unclean_ms: int | None = None
    """unclean.leader.election.interval.ms."""


NEVER: Final = Periods()


class PeriodicElections:
    """Elections that are held again and again, from `start` to `stop`."""

    def __init__(self, host: Host, periods: Periods, submit: Callable[[Command, OnDone[Any]], None]) -> None:
        self._host = host
        self._periods = {Election.PREFERRED: periods.preferred_ms, Election.UNCLEAN: periods.unclean_ms}
        self._submit = submit
        self._timers: dict[Election, Timer] = {}

    def start(self) -> None:
        """Hold each in its time from now on."""
        for election, period_ms in self._periods.items():
            self._schedule(election, period_ms)

    def stop(self) -> None:
        """Hold none any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _schedule(self, election: Election, delay_ms: int | None) -> None:
        if delay_ms is not None:
            self._timers[election] = self._host.schedule(delay_ms, lambda: self._due(election))

    def _due(self, election: Election) -> None:
        timer = self._timers[election]

        def done(reply: bool | ApiError) -> None:
            if self._timers.get(election) is not timer:
                return
            period_ms = AFTER_ERROR_MS if isinstance(reply, ApiError) else self._periods[election]
            self._schedule(election, AT_ONCE_MS if reply is True else period_ms)

        self._submit(ElectWherePossible(election), done)

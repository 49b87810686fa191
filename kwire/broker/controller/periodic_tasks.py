"""Periodic tasks of the active controller: leader elections, and removal of expired delegation tokens.

Each task submits a command. No task runs while this controller is not active.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kwire.broker.controller.commands import (
    Command,
    Election,
    OnDone,
    RemoveExpiredTokens,
    RunPeriodicElection,
)
from kwire.host.host import Host, Timer
from kwire.wire.errors import ApiError
from kwire.wire.named_tuple import NamedTuple

CONTINUE_MS: Final = 10
"""The delay in ms after a run that reached its limit. Other commands can run in between."""
RETRY_MS: Final = 300_000


class TaskPeriods(NamedTuple):
    """The period of each task; None disables it."""

    preferred_election_ms: int | None = None
    """leader.imbalance.check.interval.seconds, if auto.leader.rebalance.enable is set."""
    unclean_election_ms: int | None = None
    """unclean.leader.election.interval.ms."""
    token_expiry_ms: int | None = None
    """delegation.token.expiry.check.interval.ms, if delegation.token.secret.key is set."""


NO_PERIODIC_TASKS: Final = TaskPeriods()


class _Task(NamedTuple):
    """A command that runs periodically. If its response is True, it runs again after CONTINUE_MS."""

    period_ms: int | None
    command: Callable[[], Command]


class PeriodicTasks:
    """The timers of all tasks, between `start` and `stop`."""

    def __init__(
        self, host: Host, periods: TaskPeriods, submit: Callable[[Command, OnDone[Any]], None]
    ) -> None:
        self._host = host
        self._submit = submit
        self._tasks = (
            _Task(periods.preferred_election_ms, lambda: RunPeriodicElection(Election.PREFERRED)),
            _Task(periods.unclean_election_ms, lambda: RunPeriodicElection(Election.UNCLEAN)),
            _Task(periods.token_expiry_ms, lambda: RemoveExpiredTokens(host.now_ms())),
        )
        self._timers: dict[_Task, Timer] = {}

    def start(self) -> None:
        """Schedule every task that has a period."""
        for task in self._tasks:
            self._schedule(task, task.period_ms)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _schedule(self, task: _Task, delay_ms: int | None) -> None:
        if delay_ms is not None:
            self._timers[task] = self._host.schedule_check(delay_ms, lambda: self._due(task))

    def _due(self, task: _Task) -> None:
        timer = self._timers[task]

        def done(response: object) -> None:
            if self._timers.get(task) is not timer:
                return
            if response is True:
                self._timers[task] = self._host.schedule(CONTINUE_MS, lambda: self._due(task))
            else:
                self._schedule(task, RETRY_MS if isinstance(response, ApiError) else task.period_ms)

        self._submit(task.command(), done)

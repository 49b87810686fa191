"""The brokers and clusters that a test has started, for the report of a failure.

`with Broker() as broker` stops the broker before pytest reports the failure. So the state of the broker is
read when the exception leaves the `with` statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from kwire.host.system_time import libc_time_ns

Sections = Sequence[tuple[str, str]]
"""Titles and texts of a report."""


class StartedBrokers:
    """The brokers and clusters of this process that still exist. They are not kept alive."""

    def __init__(self) -> None:
        self._started_at_s: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._states: WeakKeyDictionary[Any, Sections] = WeakKeyDictionary()
        self.read_state: Callable[[Any], Sections] | None = None
        """Reads the state of a broker or cluster, if pytest reports failures."""

    def add(self, started: Any) -> None:
        """Add a broker or cluster that starts."""
        self._started_at_s[started] = libc_time_ns() / 1_000_000_000
        self._states.pop(started, None)

    def keep_state(self, failed: Any) -> None:
        """Read the state of a broker or cluster that will be stopped because of an exception."""
        if self.read_state is not None:
            self._states[failed] = self.read_state(failed)

    def started_at_s(self, started: Any) -> float:
        """Return the time of the last start in seconds since 1970, or 0 if there was none."""
        return self._started_at_s.get(started, 0.0)

    def state(self, started: Any) -> Sections | None:
        """Return the state that was kept when the broker or cluster was stopped."""
        return self._states.get(started)

    def take_errors(self) -> list[str]:
        """Remove and return the unexpected exceptions inside the brokers, as text."""
        taken = []
        for one in self.all():
            with suppress(Exception):  # the child process has died, which another error reports
                taken += one._take_errors()
        return taken

    def pause_clocks(self) -> None:
        """Stop the clocks of all brokers, so that nothing expires while a debugger has stopped the test."""
        self._change_clocks("pause_clock")

    def resume_clocks(self) -> None:
        """Continue the clocks of all brokers."""
        self._change_clocks("resume_clock")

    def _change_clocks(self, method: str) -> None:
        for one in self.all():
            for broker in getattr(one, "brokers", {1: one}).values():
                with suppress(Exception):  # as in `take_errors`
                    getattr(broker._embedded, method)()

    def all(self) -> list[Any]:
        """Return the brokers and clusters, in the order of their starts."""
        return sorted(self._started_at_s, key=self.started_at_s)


STARTED_BROKERS = StartedBrokers()
"""The brokers and clusters of this process."""

"""Timers of group members, by group id and member id."""

from __future__ import annotations

from collections.abc import Callable

from kwire.coordinator.state_machine import CoordinatorContext, CoordinatorResult, TimerHandle


class MemberTimers:
    """Timers of one kind, at most one for each member."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        self._timers: dict[tuple[str, str], TimerHandle] = {}

    def start(
        self, group_id: str, member_id: str, delay_ms: int, command: Callable[[], CoordinatorResult]
    ) -> None:
        """Run `command` after `delay_ms`. An earlier timer of the member is canceled."""
        key = (group_id, member_id)
        known = self._timers.get(key)
        if known is not None:
            known.cancel()

        def due() -> CoordinatorResult:
            self._timers.pop(key, None)
            return command()

        self._timers[key] = self._context.schedule(delay_ms, due)

    def postpone(self, group_id: str, member_id: str, delay_ms: int) -> bool:
        """Reschedule the member's timer to `delay_ms` from now, and return whether that was possible.

        Returns False, and changes nothing, if the member has no timer, or if the timer is due later already.
        """
        known = self._timers.get((group_id, member_id))
        return known is not None and known.postpone(delay_ms)

    def get(self, group_id: str, member_id: str) -> TimerHandle | None:
        return self._timers.get((group_id, member_id))

    def start_if_absent(
        self, group_id: str, member_id: str, delay_ms: int, command: Callable[[], CoordinatorResult]
    ) -> None:
        """Run `command` after `delay_ms`, unless the member has a timer."""
        if (group_id, member_id) not in self._timers:
            self.start(group_id, member_id, delay_ms, command)

    def stop(self, group_id: str, member_id: str) -> None:
        """Cancel the member's timer, if there is one."""
        known = self._timers.pop((group_id, member_id), None)
        if known is not None:
            known.cancel()

    def stop_all(self) -> None:
        timers, self._timers = self._timers, {}
        for timer in timers.values():
            timer.cancel()

"""The timers of consumer group members: one of each kind for a member, by group and member id."""

from __future__ import annotations

from collections.abc import Callable

from kwire.coordinator.state_machine import CoordinatorContext, CoordinatorResult, TimerHandle


class MemberTimers:
    """Timers of one kind."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        self._timers: dict[tuple[str, str], TimerHandle] = {}

    def start(
        self, group_id: str, member_id: str, delay_ms: int, command: Callable[[], CoordinatorResult]
    ) -> None:
        """Run `command` when the time has passed; an earlier timer of the member is called off."""
        key = (group_id, member_id)
        known = self._timers.get(key)
        if known is not None:
            known.cancel()

        def due() -> CoordinatorResult:
            self._timers.pop(key, None)
            return command()

        self._timers[key] = self._context.schedule(delay_ms, due)

    def postpone(self, group_id: str, member_id: str, delay_ms: int) -> bool:
        """Run what the member's timer was started with when the time has passed from now.

        False, and nothing changes, where it has none, or one that would run later than that.
        """
        known = self._timers.get((group_id, member_id))
        return known is not None and known.postpone(delay_ms)

    def get(self, group_id: str, member_id: str) -> TimerHandle | None:
        """The member's timer."""
        return self._timers.get((group_id, member_id))

    def start_if_absent(
        self, group_id: str, member_id: str, delay_ms: int, command: Callable[[], CoordinatorResult]
    ) -> None:
        """Likewise, but leave an earlier timer of the member as it is."""
        if (group_id, member_id) not in self._timers:
            self.start(group_id, member_id, delay_ms, command)

    def stop(self, group_id: str, member_id: str) -> None:
        """Call a member's timer off, if there is one."""
        known = self._timers.pop((group_id, member_id), None)
        if known is not None:
            known.cancel()

    def stop_all(self) -> None:
        """Call everything off."""
        timers, self._timers = self._timers, {}
        for timer in timers.values():
            timer.cancel()

"""Times of the two monotonic clocks of a host have different types."""

from __future__ import annotations

from kwire.host.host import Host, InternodeTime, TimerClock
from kwire.testing.virtual_host import VirtualHost


def test_mypy_rejects_the_wrong_clock() -> None:
    """If mypy accepted one of these lines, it would report that the comment is not needed."""
    host: Host = VirtualHost()
    deadline_ms = host.internode_clock.monotonic_ms() + 1_000
    now_ms: InternodeTime = host.monotonic_ms()  # type: ignore[assignment]
    host_ms: int = host.internode_clock.monotonic_ms()  # type: ignore[assignment]
    clock: TimerClock = host.internode_clock  # type: ignore[assignment]
    assert host.monotonic_ms() < deadline_ms  # type: ignore[operator]
    assert deadline_ms - host.monotonic_ms() == 1_000  # type: ignore[operator]
    assert int(now_ms) == host_ms == clock.monotonic_ms()

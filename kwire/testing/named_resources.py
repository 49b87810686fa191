"""The topics and groups that the calls of a test have named, and when."""

from __future__ import annotations

from typing import Final

from kwire.host.system_time import libc_time_ns

MAX_NAMES: Final = 1_000
"""The maximum number of names. Beyond it, the oldest are dropped."""


class NamedResources:
    """Names with the time of their last use."""

    def __init__(self) -> None:
        self._used_at_s: dict[str, float] = {}

    def add(self, name: str) -> None:
        """Note the use of a name."""
        self._used_at_s.pop(name, None)
        self._used_at_s[name] = libc_time_ns() / 1_000_000_000
        if len(self._used_at_s) > MAX_NAMES:
            self._used_at_s.pop(next(iter(self._used_at_s)), None)

    def since(self, at_s: float) -> set[str]:
        """Return the names that have been used since a time in seconds since 1970."""
        return {name for name, used_at_s in list(self._used_at_s.items()) if used_at_s >= at_s}

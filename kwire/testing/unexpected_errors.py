"""Unexpected exceptions inside a broker. They are bugs of kwire, and fail the test."""

from __future__ import annotations

from collections import deque
from typing import Final

MAX_ERRORS: Final = 20
"""The maximum number of errors that are kept. Beyond it, the oldest are dropped."""
MAX_CHARACTERS: Final = 10_000
"""The maximum number of characters of an error and its traceback."""
EXPLAINED: Final = OSError, MemoryError
"""Errors of the operating system, which a test may cause, as with a full disk or a replaced function."""


class UnexpectedError(RuntimeError):
    """An unexpected exception inside a broker."""


class UnexpectedErrors:
    """The last errors of a broker, as text. Can be used from any thread."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque(maxlen=MAX_ERRORS)

    def add(self, message: str, error: BaseException) -> None:
        """Add an error with its log message, unless the operating system is the cause."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, EXPLAINED):
                return
            cause = cause.__cause__
        import traceback

        text = "".join(traceback.format_exception(error))
        self._texts.append(f"{message}\n{text}"[-MAX_CHARACTERS:])

    def take(self) -> list[str]:
        """Remove and return all errors."""
        taken = []
        while self._texts:
            taken.append(self._texts.popleft())
        return taken


def failure_of(texts: list[str]) -> UnexpectedError:
    """Return the failure of a test with these errors."""
    return UnexpectedError(
        "An unexpected exception inside the broker. This is a bug of kwire:\n" + "\n".join(texts)
    )

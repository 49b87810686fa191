"""How a question fails: `ApiError` where a broker refuses, and what is here where nobody could answer."""

from __future__ import annotations

from kwire.wire.errors import ApiError, ErrorCode, WireError


class Disconnected(OSError):
    """A connection that could not be made, or has ended; the request may be tried again."""

    may_have_executed = False
    """Whether the request may have arrived: what makes something anew each time is not to be tried again."""


class ClosedByPeer(Disconnected):
    """The other side has ended a connection."""


class NoReachableBroker(Disconnected):
    """No broker of the cluster was reached yet."""


class SecurityMismatch(WireError):
    """The two sides do not secure a connection alike, so that to try again is of no use.

    To one of them the other's first bytes are no protocol, or come out of turn. The sentence says what the
    other side wants. Who shows a wrong password is told by an `ApiError`.
    """


class UnknownPartition(LookupError):
    """A topic has no partition of that number."""

    def __init__(self, topic: str, index: int, count: int) -> None:
        there = "partition 0 alone" if count == 1 else f"partitions 0 to {count - 1}"
        super().__init__(f"topic {topic} has {there}, and no {index}")


def raise_for_code(code: int, message: str | None, about: str) -> None:
    """Nothing where all went well. ApiError with what was asked for otherwise."""
    if code:
        raise ApiError(_known(code), f"{about}: {message}" if message else about)


def _known(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:  # of a newer release
        return ErrorCode.UNKNOWN_SERVER_ERROR

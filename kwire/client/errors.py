"""Errors of requests that get no response. A response with an error code raises `ApiError` instead."""

from __future__ import annotations

from typing import Final

from kwire.wire.errors import ApiError, ErrorCode, WireError

PRODUCER_ID_DENIED: Final = "the user has no WRITE on any topic"
"""The reason why a broker denies a producer id of an idempotent producer (KIP-679)."""


class Disconnected(OSError):
    """A connection that could not be opened, or has ended. The request can be retried."""

    may_have_executed = False
    """Whether the broker may have executed the request, so that a retry may execute it twice."""


class ClosedByPeer(Disconnected):
    """A connection that the peer has closed."""


class NoReachableBroker(Disconnected):
    """The error if no broker of the cluster was ever reached."""


class SecurityMismatch(WireError):
    """Different security settings of client and listener, which retries cannot fix.

    One side cannot parse the first bytes of the other side, or does not expect them. The message says which
    settings the listener expects. A wrong password is an `ApiError` instead.
    """


class UnknownPartition(LookupError):
    """A partition that its topic does not have."""

    def __init__(self, topic: str, index: int, count: int) -> None:
        existing = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
        super().__init__(f"topic {topic} has {existing}, not {index}")


def raise_for_code(code: int, message: str | None, about: str) -> None:
    """Raise ApiError unless the code is 0; `about` describes the request."""
    if code:
        raise ApiError(_known(code), f"{about}: {message}" if message else about)


def _known(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:  # a code of a newer release
        return ErrorCode.UNKNOWN_SERVER_ERROR

"""DescribeUserScramCredentials v0, DescribeDelegationToken v1–3 on controller listeners. KIP-919."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from kwire.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole


def describe_unsupported(
    _node: ControllerRole, _context: ControllerRequestContext, _request: object
) -> NoReturn:
    """Raise UNKNOWN_SERVER_ERROR. Apache Kafka's controllers also advertise these APIs and return it."""
    raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)

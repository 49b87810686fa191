"""DescribeUserScramCredentials v0 and DescribeDelegationToken v1–3 where a controller is asked. KIP-919."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from kwire.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole


def describe_unsupported(
    _node: ControllerRole, _context: ControllerRequestContext, _request: object
) -> NoReturn:
    """Apache Kafka's controllers offer it, and do not know it: `kafka-configs` shows its users that error."""
    raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)

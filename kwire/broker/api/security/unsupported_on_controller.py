"""DescribeUserScramCredentials v0 and DescribeDelegationToken v1–3 on a controller's listener. KIP-919."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from kwire.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole


def describe_unsupported(
    _node: ControllerRole, _context: ControllerRequestContext, _request: object
) -> NoReturn:
    """Raise UNKNOWN_SERVER_ERROR, as Apache Kafka's controllers do, which advertise both APIs."""
    raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)

"""The response to a request whose handler has raised an exception other than a protocol error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.context import RequestContext
from kwire.broker.storage.disk import is_shortage
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.host.host import Host


def unexpected_error(
    host: Host, context: RequestContext, error: Exception, request: Message | None
) -> Message:
    """Log the exception, and return an error response.

    The code is KAFKA_STORAGE_ERROR, which clients retry, if the process is short of descriptors or memory.
    Otherwise the exception is a bug in the broker, and the code is UNKNOWN_SERVER_ERROR. `request` is in the
    log unless it is None.
    """
    logger = host.logger("kwire.dispatch")
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    if is_shortage(error):
        code = ErrorCode.KAFKA_STORAGE_ERROR
        logger.warning(
            "Handling request %s from %s failed because the process is short of descriptors or memory; "
            "responding with KAFKA_STORAGE_ERROR: %s",
            *(context.header, context.peer_host, error),
            extra={"request": context.request_id},
        )
    else:
        logger.error(
            "Handling request %s from %s failed; responding with UNKNOWN_SERVER_ERROR. "
            "The request is %.2000r",
            *(context.header, context.peer_host, request if request is not None else "large"),
            exc_info=error,
            extra={"request": context.request_id},
        )
    return context.error_response(ApiError(code))

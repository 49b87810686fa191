"""Translation of errors of `__consumer_offsets` to errors of group APIs."""

from __future__ import annotations

from kwire.wire.errors import ApiError, ErrorCode


def group_not_found(group_id: str) -> ApiError:
    """Return Kafka's error for a group that does not exist."""
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")


def response_error(error: ApiError) -> ErrorCode:
    """Return the error code of the response to a request whose records could not be stored."""
    if error.code in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
    ):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error.code

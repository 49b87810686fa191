"""Sentences for errors of brokers and files: what is wrong, and what to do."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from kwire.cli.shared.command_error import CommandError
from kwire.client.errors import PRODUCER_ID_DENIED
from kwire.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

_ON_DENIAL: Final = (
    "use a user with access, or add the ACL: the broker's log has the user and the denied operation"
)
ADVICE: Final = {
    ErrorCode.TOPIC_ALREADY_EXISTS: "use --if-not-exists to ignore this",
    ErrorCode.INVALID_REPLICATION_FACTOR: "--replication-factor cannot exceed the number of brokers",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "use at most 249 ASCII letters, digits, '.', '_' and '-'",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _ON_DENIAL,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _ON_DENIAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _ON_DENIAL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _ON_DENIAL,
    ErrorCode.SECURITY_DISABLED: "set authorizer.class.name on brokers and controllers",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "check username and password in sasl.jaas.config",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key on brokers and controllers",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "create another one with 'kwire tokens create' and a password",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "only its owner and its renewers can do that",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "use a SASL listener, and a user with a password",
    ErrorCode.INVALID_CONFIG: "'kwire configs describe KIND NAME --all --docs' describes the keys",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions can only be increased",
    ErrorCode.TOPIC_DELETION_DISABLED: "set delete.topic.enable=true on the brokers",
    ErrorCode.NON_EMPTY_GROUP: "stop the group's members first",
    ErrorCode.UNKNOWN_MEMBER_ID: "stop the group's members first",
    ErrorCode.REBALANCE_IN_PROGRESS: "stop the group's members first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the members that consume the topic first",
    ErrorCode.GROUP_ID_NOT_FOUND: "'kwire groups list' lists the groups",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "'kwire transactions list' lists the transactional ids",
    ErrorCode.MESSAGE_TOO_LARGE: "raise max.message.bytes of the topic, or send smaller batches",
    ErrorCode.RECORD_LIST_TOO_LARGE: "raise segment.bytes of the topic, or send smaller batches",
    ErrorCode.NOT_ENOUGH_REPLICAS: "start the missing brokers, or lower min.insync.replicas",
    ErrorCode.OFFSET_OUT_OF_RANGE: "'kwire topics describe --offsets' shows the valid offsets",
    ErrorCode.UNSUPPORTED_VERSION: "use a broker of another release, or fewer options",
    ErrorCode.LEADER_NOT_AVAILABLE: "start a broker that has a replica of the partition, and try again",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the cluster has no coordinator yet: try again in a moment",
    ErrorCode.CONCURRENT_TRANSACTIONS: "another transaction is still completing: try again in a moment",
    ErrorCode.LOG_DIR_NOT_FOUND: "'kwire logs list' lists the log directories of each broker",
}
"""Advice for protocol errors whose names do not suggest what to do."""
ADVICE_BY_MESSAGE: Final = {
    PRODUCER_ID_DENIED: "an ACL for WRITE on the topic is enough",
    "collides with": "'.' and '_' are equal in metric names: choose a name that differs in more",
    "xcessively large number of partitions": "use at most 10000 --partitions at once",
}
"""Advice by a part of the error's message, where the message is more specific than the code."""


class FormatMismatch(ValueError):
    """Data that is not in the expected format; the message says why."""


def describe_api_error(error: ApiError) -> str:
    """Return a sentence for a broker's error, with advice."""
    message = error.message or "the request"
    name = error.code.name.lower().replace("_", " ").removesuffix(" exception")
    about, _, detail = message.rpartition(": ")
    if detail.rstrip(".").lower() in (name, "authorization failed"):
        message = about or "the request"  # some responses repeat the code in words
    advice = next(
        (advice for words, advice in ADVICE_BY_MESSAGE.items() if words in message), ADVICE.get(error.code)
    )
    message = f"{message.rstrip('.')} ({name})" if message.count(": ") else f"{message}: {name}"
    return f"{message}; {advice}" if advice else message


def cannot_read(path: str, error: OSError) -> CommandError:
    """Return the error for a file or directory that cannot be read."""
    what = ": run this as the user that runs the broker" if isinstance(error, PermissionError) else ""
    return CommandError(f"{path}: {error.strerror}{what}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a similar known name as the end of a sentence, or an empty text if none is similar."""
    near = get_close_matches(name, list(known), 1)
    return f", did you mean '{near[0]}'?" if near else ""


def unknown_topic(name: str, known: Iterable[str]) -> CommandError:
    """Return the error for a topic that a broker did not list: it is missing, or the user lacks DESCRIBE."""
    near = suggestion(name, known) or ": 'kwire topics list' lists the topics"
    return CommandError(f"there is no topic '{name}', or this user may not describe it{near}")

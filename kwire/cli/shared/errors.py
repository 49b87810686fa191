"""How a command fails: one sentence that says what to do."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from kwire.cli.shared.command_error import CommandError
from kwire.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

ADVICE: Final = {
    ErrorCode.TOPIC_ALREADY_EXISTS: "--if-not-exists lets it be",
    ErrorCode.INVALID_REPLICATION_FACTOR: "give --replication-factor no more than there are brokers",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "use at most 249 letters of English, digits, and '.', '_' or '-'",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "ask as a user who may, or have the topic's ACLs changed",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "ask as a user who may, or have the group's ACLs changed",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "ask as a user who may, or have the cluster's ACLs changed",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "ask as a user who may, or have the id's ACLs changed",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "look at username and password of sasl.jaas.config",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key for brokers and controllers",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "'kwire tokens create' makes another one, as a user with a password",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "ask as its owner, or as a renewer",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "ask by a listener of SASL, as a user with a password",
    ErrorCode.INVALID_CONFIG: "'kwire configs describe KIND NAME --all --docs' tells keys and what they do",
    ErrorCode.INVALID_PARTITIONS: "a topic can only be given more partitions than it has",
    ErrorCode.TOPIC_DELETION_DISABLED: "set delete.topic.enable=true for the brokers",
    ErrorCode.NON_EMPTY_GROUP: "stop the group's members first",
    ErrorCode.UNKNOWN_MEMBER_ID: "stop the group's members first",
    ErrorCode.REBALANCE_IN_PROGRESS: "stop the group's members first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the members that read the topic first",
    ErrorCode.GROUP_ID_NOT_FOUND: "'kwire groups list' names those that there are",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "'kwire transactions list' names those that there are",
    ErrorCode.MESSAGE_TOO_LARGE: "raise max.message.bytes of the topic, or send less at once",
    ErrorCode.RECORD_LIST_TOO_LARGE: "raise segment.bytes of the topic, or send less at once",
    ErrorCode.NOT_ENOUGH_REPLICAS: "start the brokers that are missing, or lower min.insync.replicas",
    ErrorCode.OFFSET_OUT_OF_RANGE: "'kwire topics describe --offsets' tells which offsets there are",
    ErrorCode.UNSUPPORTED_VERSION: "ask a broker of another release, or leave options off",
    ErrorCode.LEADER_NOT_AVAILABLE: "start the broker that has the partition, and ask again",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the cluster has no coordinator yet: ask again in a moment",
    ErrorCode.CONCURRENT_TRANSACTIONS: "a transaction is being ended just now: ask again in a moment",
    ErrorCode.LOG_DIR_NOT_FOUND: "'kwire logs list' names the directories of each broker",
}
"""What to do about errors of the protocol that do not say it by their names."""
ADVICE_BY_MESSAGE: Final = {
    "collides with": "'.' and '_' count as one there: give a name that differs in more",
    "xcessively large number of partitions": "give at most 10000 --partitions at once",
}
"""What to do where a broker's words say more than the code."""


class FormatMismatch(ValueError):
    """Bytes that are not what they were taken for; the message says why."""


def describe_api_error(error: ApiError) -> str:
    """What a broker has refused, for a person."""
    told = error.message or "the request"
    name = error.code.name.lower().replace("_", " ").removesuffix(" exception")
    advice = next(
        (advice for words, advice in ADVICE_BY_MESSAGE.items() if words in told), ADVICE.get(error.code)
    )
    told = f"{told.rstrip('.')} ({name})" if told.count(": ") else f"{told}: {name}"
    return f"{told}; {advice}" if advice else told


def cannot_read(path: str, error: OSError) -> CommandError:
    """A file or directory of a broker's cannot be read."""
    what = ": read it as the user that the broker runs as" if isinstance(error, PermissionError) else ""
    return CommandError(f"{path}: {error.strerror}{what}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """A name that was perhaps meant, as the end of a sentence; empty where none is near."""
    near = get_close_matches(name, list(known), 1)
    return f", did you mean '{near[0]}'?" if near else ""


def unknown_topic(name: str, known: Iterable[str]) -> CommandError:
    """There is none of that name."""
    near = suggestion(name, known) or ": 'kwire topics list' names those that there are"
    return CommandError(f"there is no topic '{name}'{near}")

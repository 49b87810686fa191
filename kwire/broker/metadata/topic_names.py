"""Legal topic names, and the names of internal topics."""

from __future__ import annotations

from typing import Final

from kwire.wire.primitives import utf16_length

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"

INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})

MAX_NAME_LENGTH: Final = 249
"""The maximum length of a topic name. A log directory is `<name>-<partition>`, plus a suffix after deletion,
and file systems allow names of 255 bytes."""

_LEGAL: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def is_internal(name: str) -> bool:
    """Return whether Metadata responses mark this topic as internal."""
    return name in INTERNAL_TOPICS


def topic_name_fault(name: str) -> str | None:
    """Return why the name is illegal for a topic, or None if it is legal."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if utf16_length(name) > MAX_NAME_LENGTH:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than "
            f"the max allowed length {MAX_NAME_LENGTH}"
        )
    if not _LEGAL.issuperset(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None

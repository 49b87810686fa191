"""Positions in partitions as users write them: an offset, a time, the beginning or the end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import UsageError
from kwire.client.offsets import find_offsets
from kwire.wire.batch import NO_OFFSET
from kwire.wire.messages.list_offsets import EARLIEST, LATEST
from kwire.wire.primitives import TopicPartition

BEGINNING, END = "beginning", "end"
POSITIONS_HELP: Final = (
    "'beginning', 'end', an offset, -5 for the last five, 10m for ten minutes ago, or a time"
)
AGE_HELP: Final = "10m for ten minutes (or ms, s, h, d), or a time"
MAX_OFFSET: Final = (1 << 63) - 1
MAX_CHARS: Final = 40
"""Longest position; Python refuses to parse thousands of digits."""
_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def resolve_position(
    cluster: CommandClient,
    position: str,
    partitions: Iterable[TopicPartition],
    now_ms: int,
    option: str,
    *,
    committed: bool = False,
) -> dict[TopicPartition, int]:
    """Return the offset of a position in each partition. Raises UsageError, ApiError, CommandError.

    With `committed`, the end of a partition is its last stable offset. A UsageError starts with `option`.
    """
    wanted = list(partitions)
    if len(position) > MAX_CHARS or (position.isdecimal() and int(position) > MAX_OFFSET):
        raise UsageError(
            f"{option} {position[:MAX_CHARS]}: expected {POSITIONS_HELP}, with an offset up to {MAX_OFFSET}"
        )
    if position == BEGINNING:
        return find_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    if position.isdecimal():
        return dict.fromkeys(wanted, int(position))
    ends = find_offsets(cluster, dict.fromkeys(wanted, LATEST), committed=committed)
    if position == END:
        return ends
    if position[:1] == "-" and position[1:].isdecimal():
        firsts = find_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
        return {one: max(firsts[one], ends[one] - int(position[1:])) for one in wanted}
    found = find_offsets(
        cluster, dict.fromkeys(wanted, parse_timestamp(position, now_ms, option, POSITIONS_HELP))
    )
    return {one: ends[one] if found[one] == NO_OFFSET else found[one] for one in wanted}


def parse_duration_ms(text: str) -> int | None:
    """Parse a duration like 10m. Returns None if the text is not a duration."""
    found = _DURATION.fullmatch(text)
    return None if found is None else int(found[1]) * _UNITS_MS[found[2]]


def parse_timestamp(text: str, now_ms: int, option: str, expected: str = AGE_HELP) -> int:
    """Return a Unix time in ms for a duration before now or an ISO 8601 time, in UTC by default.

    Raises UsageError, which contains `option` and `expected`.
    """
    if (ago_ms := parse_duration_ms(text)) is not None:
        return max(0, now_ms - ago_ms)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text}: expected {expected} like 2026-01-31T12:00 (UTC, unless it has a zone)"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, round(moment.timestamp() * 1000))

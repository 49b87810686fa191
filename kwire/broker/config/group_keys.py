"""What a group of the newer protocols can be told (KIP-848, KIP-932, KIP-1071).

Names, types and defaults are those of Apache Kafka 4.3.1. A key's default is the broker's setting of the same
name behind `group.`.
"""

from __future__ import annotations

import re
from typing import Final

from kwire.broker.config.definition import BOOLEAN, INT, STRING, Key, Value, at_least, one_of

BY_DURATION: Final = "by_duration:"

DURATION: Final = re.compile(
    r"(?P<sign>[+-]?)P(?:(?P<days>[+-]?\d+)D)?"
    r"(?P<time>T(?:(?P<hours>[+-]?\d+)H)?(?:(?P<minutes>[+-]?\d+)M)?"
    r"(?:(?P<seconds>[+-]?\d+)(?:[.,]\d{0,9})?S)?)?",
    re.IGNORECASE | re.ASCII,
)
"""A duration of ISO 8601 as Java reads it."""

SECONDS: Final = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}


def reset_fault(value: Value) -> str | None:
    """Share groups start at the earliest or latest offset, or a duration ago. KIP-932."""
    text = str(value)
    if text in ("earliest", "latest") or (
        text.startswith(BY_DURATION) and _is_past(text[len(BY_DURATION) :])
    ):
        return None
    return (
        f"Invalid value `{text}` for configuration share.auto.offset.reset. The value must be either "
        "'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    )


def _is_past(duration: str) -> bool:
    found = DURATION.fullmatch(duration)
    if found is None or (found["time"] or "").upper() == "T":
        return False
    parts = {unit: int(found[unit]) for unit in SECONDS if found[unit] is not None}
    total = sum(SECONDS[unit] * count for unit, count in parts.items())
    return bool(parts) and (total <= 0 if found["sign"] == "-" else total >= 0)


GROUP_KEYS: Final = (
    Key("consumer.assignment.interval.ms", INT, "1000", at_least(0)),
    Key("consumer.heartbeat.interval.ms", INT, "5000", at_least(1)),
    Key("consumer.session.timeout.ms", INT, "45000", at_least(1)),
    Key("share.assignment.interval.ms", INT, "1000", at_least(0)),
    Key("share.auto.offset.reset", STRING, "latest", reset_fault),
    Key("share.delivery.count.limit", INT, "5", at_least(2)),
    Key("share.heartbeat.interval.ms", INT, "5000", at_least(1)),
    Key("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted")),
    Key("share.partition.max.record.locks", INT, "2000", at_least(100)),
    Key("share.record.lock.duration.ms", INT, "30000", at_least(1000)),
    Key("share.renew.acknowledge.enable", BOOLEAN, "true"),
    Key("share.session.timeout.ms", INT, "45000", at_least(1)),
    Key("streams.assignment.interval.ms", INT, "1000", at_least(0)),
    Key("streams.heartbeat.interval.ms", INT, "5000", at_least(1)),
    Key("streams.initial.rebalance.delay.ms", INT, "3000", at_least(0)),
    Key("streams.num.standby.replicas", INT, "0", at_least(0)),
    Key("streams.session.timeout.ms", INT, "45000", at_least(1)),
)

SOURCE_PREFIX: Final = "group."

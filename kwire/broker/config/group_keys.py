"""What a group of the newer protocols can be reachable (KIP-848, KIP-932, KIP-1071).

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


# fmt: off
GROUP_KEYS: Final = (
    Key("consumer.assignment.interval.ms", INT, "1000", at_least(0),
        doc="The least time, in milliseconds, between two assignments of the consumer group; 0 assigns as "
            "soon as something changes."),
    Key("consumer.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="How often, in milliseconds, members of the consumer group have to send a heartbeat."),
    Key("consumer.session.timeout.ms", INT, "45000", at_least(1),
        doc="How long, in milliseconds, a member of the consumer group may go without a heartbeat before it "
            "is removed."),
    Key("share.assignment.interval.ms", INT, "1000", at_least(0),
        doc="The least time, in milliseconds, between two assignments of the share group; 0 assigns as soon "
            "as something changes."),
    Key("share.auto.offset.reset", STRING, "latest", reset_fault,
        doc="Where the share group starts in a partition it has not read yet: earliest, latest, or "
            "by_duration: with an ISO 8601 duration, which is that long ago."),
    Key("share.delivery.count.limit", INT, "5", at_least(2),
        doc="How many times the share group's members may be given a record before it counts as "
            "undeliverable and is skipped."),
    Key("share.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="How often, in milliseconds, members of the share group have to send a heartbeat."),
    Key("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted"),
        doc="Which transactional records the share group gets: read_committed only those of committed "
            "transactions, read_uncommitted all of them."),
    Key("share.partition.max.record.locks", INT, "2000", at_least(100),
        doc="How many records of one partition the share group's members may hold unacknowledged at a time. "
            "At this limit no further ones are given out."),
    Key("share.record.lock.duration.ms", INT, "30000", at_least(1000),
        doc="How long, in milliseconds, a member of the share group has a record to itself. Without an "
            "acknowledgement the record is then given out again."),
    Key("share.renew.acknowledge.enable", BOOLEAN, "true",
        doc="Whether a member of the share group may extend the time it has a record to itself."),
    Key("share.session.timeout.ms", INT, "45000", at_least(1),
        doc="How long, in milliseconds, a member of the share group may go without a heartbeat before it is "
            "removed."),
    Key("streams.assignment.interval.ms", INT, "1000", at_least(0),
        doc="The least time, in milliseconds, between two assignments of the streams group; 0 assigns as "
            "soon as something changes."),
    Key("streams.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="How often, in milliseconds, members of the streams group have to send a heartbeat."),
    Key("streams.initial.rebalance.delay.ms", INT, "3000", at_least(0),
        doc="How long, in milliseconds, the streams group waits after its first member joined for others to "
            "join too; 0 means it assigns at once."),
    Key("streams.num.standby.replicas", INT, "0", at_least(0),
        doc="How many members besides the active one keep a copy of each stateful task's state; 0 means no "
            "copies."),
    Key("streams.session.timeout.ms", INT, "45000", at_least(1),
        doc="How long, in milliseconds, a member of the streams group may go without a heartbeat before it "
            "is removed."),
)
# fmt: on

BROKER_KEY_PREFIX: Final = "group."

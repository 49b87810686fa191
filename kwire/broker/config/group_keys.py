"""Keys of consumer, share and streams groups (KIP-848, KIP-932, KIP-1071).

Names, types and defaults are those of Apache Kafka 4.3.1. If the broker has the key with the prefix `group.`,
the broker's value is the default.
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
"""An ISO 8601 duration, as Java parses it."""

SECONDS: Final = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}


def validate_offset_reset(value: Value) -> str | None:
    """Validate share.auto.offset.reset: earliest, latest, or a duration in the past. KIP-932."""
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
        doc="The minimum time, in milliseconds, between two assignments of the consumer group. With 0, "
            "every change leads to an assignment immediately."),
    Key("consumer.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The time, in milliseconds, between two heartbeats of a member of the consumer group."),
    Key("consumer.session.timeout.ms", INT, "45000", at_least(1),
        doc="The time, in milliseconds, without a heartbeat after which a member is removed from the "
            "consumer group."),
    Key("share.assignment.interval.ms", INT, "1000", at_least(0),
        doc="The minimum time, in milliseconds, between two assignments of the share group. With 0, every "
            "change leads to an assignment immediately."),
    Key("share.auto.offset.reset", STRING, "latest", validate_offset_reset,
        doc="The position at which the share group starts in a partition: earliest, latest, or by_duration: "
            "followed by an ISO 8601 duration, which means that long ago."),
    Key("share.delivery.count.limit", INT, "5", at_least(2),
        doc="The maximum number of times that a record is delivered to members of the share group before it "
            "is archived."),
    Key("share.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The time, in milliseconds, between two heartbeats of a member of the share group."),
    Key("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted"),
        doc="The isolation level of the share group: read_committed returns only the records of committed "
            "transactions, read_uncommitted returns all records."),
    Key("share.partition.max.record.locks", INT, "2000", at_least(100),
        doc="The maximum number of records per partition that members of the share group have acquired and "
            "not acknowledged. At the limit, no further records are delivered."),
    Key("share.record.lock.duration.ms", INT, "30000", at_least(1000),
        doc="The time, in milliseconds, that a record stays acquired by a member of the share group. "
            "Without an acknowledgement, the record is then delivered again."),
    Key("share.renew.acknowledge.enable", BOOLEAN, "true",
        doc="Whether a member of the share group can extend the time that a record stays acquired."),
    Key("share.session.timeout.ms", INT, "45000", at_least(1),
        doc="The time, in milliseconds, without a heartbeat after which a member is removed from the share "
            "group."),
    Key("streams.assignment.interval.ms", INT, "1000", at_least(0),
        doc="The minimum time, in milliseconds, between two assignments of the streams group. With 0, every "
            "change leads to an assignment immediately."),
    Key("streams.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The time, in milliseconds, between two heartbeats of a member of the streams group."),
    Key("streams.initial.rebalance.delay.ms", INT, "3000", at_least(0),
        doc="The time, in milliseconds, that an empty streams group waits for further members after the "
            "first one joins. With 0, the group does not wait."),
    Key("streams.num.standby.replicas", INT, "0", at_least(0),
        doc="The number of standby replicas of each stateful task in the streams group. 0 means no standby "
            "replicas."),
    Key("streams.session.timeout.ms", INT, "45000", at_least(1),
        doc="The time, in milliseconds, without a heartbeat after which a member is removed from the "
            "streams group."),
)
# fmt: on

BROKER_KEY_PREFIX: Final = "group."

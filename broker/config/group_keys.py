"""What a group of the newer protocols can be told (KIP-848, KIP-932, KIP-1071).

Names, types and defaults are those of Apache Kafka 4.3.1. A key's default is the broker's setting of the same
name behind `group.`.
"""

from __future__ import annotations

from typing import Final

from broker.config.definition import BOOLEAN, INT, STRING, Key, at_least, one_of

GROUP_KEYS: Final = (
    Key("consumer.assignment.interval.ms", INT, "1000", at_least(0)),
    Key("consumer.heartbeat.interval.ms", INT, "5000", at_least(1)),
    Key("consumer.session.timeout.ms", INT, "45000", at_least(1)),
    Key("share.assignment.interval.ms", INT, "1000", at_least(0)),
    Key("share.auto.offset.reset", STRING, "latest"),
    Key("share.delivery.count.limit", INT, "5", at_least(1)),
    Key("share.heartbeat.interval.ms", INT, "5000", at_least(1)),
    Key("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted")),
    Key("share.partition.max.record.locks", INT, "2000", at_least(1)),
    Key("share.record.lock.duration.ms", INT, "30000", at_least(1)),
    Key("share.renew.acknowledge.enable", BOOLEAN, "true"),
    Key("share.session.timeout.ms", INT, "45000", at_least(1)),
    Key("streams.assignment.interval.ms", INT, "1000", at_least(0)),
    Key("streams.heartbeat.interval.ms", INT, "5000", at_least(1)),
    Key("streams.initial.rebalance.delay.ms", INT, "3000", at_least(0)),
    Key("streams.num.standby.replicas", INT, "0", at_least(0)),
    Key("streams.session.timeout.ms", INT, "45000", at_least(1)),
)

SOURCE_PREFIX: Final = "group."

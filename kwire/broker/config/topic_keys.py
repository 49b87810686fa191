"""What a topic can be told, and which of a broker's settings each key takes its default from.

Names, types, defaults and ranges are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kwire.broker.config.definition import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    STRING,
    Entries,
    Key,
    ThrottledReplicas,
    at_least,
    between,
    gzip_level,
    one_of,
)

TOPIC_KEYS: Final = (
    Key("segment.bytes", INT, "1073741824", at_least(1_048_576)),
    Key("segment.ms", LONG, "604800000", at_least(1)),
    Key("segment.jitter.ms", LONG, "0", at_least(0)),
    Key("segment.index.bytes", INT, "10485760", at_least(4)),
    Key("flush.messages", LONG, "9223372036854775807", at_least(1)),
    Key("flush.ms", LONG, "9223372036854775807", at_least(0)),
    Key("retention.bytes", LONG, "-1"),
    Key("retention.ms", LONG, "604800000", at_least(-1)),
    Key("max.message.bytes", INT, "1048588", at_least(0)),
    Key("index.interval.bytes", INT, "4096", at_least(0)),
    Key("delete.retention.ms", LONG, "86400000", at_least(0)),
    Key("min.compaction.lag.ms", LONG, "0", at_least(0)),
    Key("max.compaction.lag.ms", LONG, "9223372036854775807", at_least(1)),
    Key("file.delete.delay.ms", LONG, "60000", at_least(0)),
    Key("min.cleanable.dirty.ratio", DOUBLE, "0.5", between(0, 1)),
    Key("cleanup.policy", LIST, "delete", Entries("compact", "delete")),
    Key("unclean.leader.election.enable", BOOLEAN, "false"),
    Key("min.insync.replicas", INT, "1", at_least(1)),
    Key(
        "compression.type",
        STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    Key("compression.gzip.level", INT, "-1", gzip_level),
    Key("compression.lz4.level", INT, "9", between(1, 17)),
    Key("compression.zstd.level", INT, "3", between(-131_072, 22)),
    Key("preallocate", BOOLEAN, "false"),
    Key("message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime")),
    Key("message.timestamp.before.max.ms", LONG, "9223372036854775807", at_least(0)),
    Key("message.timestamp.after.max.ms", LONG, "3600000", at_least(0)),
    Key("leader.replication.throttled.replicas", LIST, "", ThrottledReplicas()),
    Key("follower.replication.throttled.replicas", LIST, "", ThrottledReplicas()),
    Key("remote.storage.enable", BOOLEAN, "false"),
    Key("local.retention.ms", LONG, "-2", at_least(-2)),
    Key("local.retention.bytes", LONG, "-2", at_least(-2)),
    Key("remote.log.copy.disable", BOOLEAN, "false"),
    Key("remote.log.delete.on.disable", BOOLEAN, "false"),
    Key("internal.segment.bytes", INT, None, internal=True),
)


class Source(NamedTuple):
    """A broker's key that says what topics do by default, and how many of the topic's units its unit has."""

    name: str
    units: int = 1


_HOUR_MS: Final = 60 * 60 * 1000
_MINUTE_MS: Final = 60 * 1000

SOURCES: Final[dict[str, tuple[Source, ...]]] = {
    "segment.bytes": (Source("log.segment.bytes"),),
    "segment.ms": (Source("log.roll.ms"), Source("log.roll.hours", _HOUR_MS)),
    "segment.jitter.ms": (Source("log.roll.jitter.ms"), Source("log.roll.jitter.hours", _HOUR_MS)),
    "segment.index.bytes": (Source("log.index.size.max.bytes"),),
    "flush.messages": (Source("log.flush.interval.messages"),),
    "flush.ms": (Source("log.flush.interval.ms"), Source("log.flush.scheduler.interval.ms")),
    "retention.bytes": (Source("log.retention.bytes"),),
    "retention.ms": (
        Source("log.retention.ms"),
        Source("log.retention.minutes", _MINUTE_MS),
        Source("log.retention.hours", _HOUR_MS),
    ),
    "max.message.bytes": (Source("message.max.bytes"),),
    "index.interval.bytes": (Source("log.index.interval.bytes"),),
    "delete.retention.ms": (Source("log.cleaner.delete.retention.ms"),),
    "min.compaction.lag.ms": (Source("log.cleaner.min.compaction.lag.ms"),),
    "max.compaction.lag.ms": (Source("log.cleaner.max.compaction.lag.ms"),),
    "file.delete.delay.ms": (Source("log.segment.delete.delay.ms"),),
    "min.cleanable.dirty.ratio": (Source("log.cleaner.min.cleanable.ratio"),),
    "cleanup.policy": (Source("log.cleanup.policy"),),
    "unclean.leader.election.enable": (Source("unclean.leader.election.enable"),),
    "min.insync.replicas": (Source("min.insync.replicas"),),
    "compression.type": (Source("compression.type"),),
    "compression.gzip.level": (Source("compression.gzip.level"),),
    "compression.lz4.level": (Source("compression.lz4.level"),),
    "compression.zstd.level": (Source("compression.zstd.level"),),
    "preallocate": (Source("log.preallocate"),),
    "message.timestamp.type": (Source("log.message.timestamp.type"),),
    "message.timestamp.before.max.ms": (Source("log.message.timestamp.before.max.ms"),),
    "message.timestamp.after.max.ms": (Source("log.message.timestamp.after.max.ms"),),
    "local.retention.ms": (Source("log.local.retention.ms"),),
    "local.retention.bytes": (Source("log.local.retention.bytes"),),
}
"""Where a topic's key takes its value from when the topic says nothing: the first of these that is set."""

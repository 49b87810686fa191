"""Keys of topics, and the broker keys that provide their defaults.

Names, types, defaults and ranges are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.config.definition import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    STRING,
    Key,
    ListValidator,
    ThrottledReplicasValidator,
    at_least,
    between,
    gzip_level,
    one_of,
)
from kwire.wire.named_tuple import NamedTuple

# fmt: off
TOPIC_KEYS: Final = (
    # A key without a doc has the same name and meaning on brokers, and is documented there.
    Key("segment.bytes", INT, "1073741824", at_least(1_048_576),
        doc="The maximum size, in bytes, of a segment. The partition then rolls a new segment. The active "
            "segment is not compacted."),
    Key("segment.ms", LONG, "604800000", at_least(1),
        doc="The time, in milliseconds, after which a partition rolls a new segment even if the active one "
            "is not full, so that its records can be deleted or compacted."),
    Key("segment.jitter.ms", LONG, "0", at_least(0),
        doc="The maximum random time, in milliseconds, that is subtracted from segment.ms, so that "
            "partitions do not roll their segments at the same time."),
    Key("segment.index.bytes", INT, "10485760", at_least(4),
        doc="The maximum size, in bytes, of an offset or time index. The partition rolls a new segment when "
            "an index is full."),
    Key("flush.messages", LONG, "9223372036854775807", at_least(1),
        doc="The number of records after which a partition is flushed to disk. The default leaves flushing "
            "to the operating system, and durability to replication."),
    Key("flush.ms", LONG, "9223372036854775807", at_least(0),
        doc="The maximum time, in milliseconds, that a record stays in memory before the partition is "
            "flushed to disk. The default leaves flushing to the operating system."),
    Key("retention.bytes", LONG, "-1",
        doc="The maximum size, in bytes, of a partition before its oldest segments are deleted, if "
            "cleanup.policy contains delete. -1 means no limit."),
    Key("retention.ms", LONG, "604800000", at_least(-1),
        doc="The time, in milliseconds, that a partition retains a segment before it deletes it, if "
            "cleanup.policy contains delete. -1 means no limit."),
    Key("max.message.bytes", INT, "1048588", at_least(0),
        doc="The maximum size, in bytes, of a record batch, after compression."),
    Key("index.interval.bytes", INT, "4096", at_least(0),
        doc="The number of bytes of a partition's log between two entries of its offset index. A smaller "
            "interval makes lookups faster and the index larger."),
    Key("delete.retention.ms", LONG, "86400000", at_least(0),
        doc="The time, in milliseconds, that a compacted partition retains tombstones. A consumer that "
            "starts at the beginning must reach the end within this time to see all of them."),
    Key("min.compaction.lag.ms", LONG, "0", at_least(0),
        doc="The minimum time, in milliseconds, that a record remains uncompacted. With 0, only the active "
            "segment is excluded from compaction."),
    Key("max.compaction.lag.ms", LONG, "9223372036854775807", at_least(1),
        doc="The maximum time, in milliseconds, that a record remains ineligible for compaction. The "
            "default means no limit."),
    Key("file.delete.delay.ms", LONG, "60000", at_least(0),
        doc="The time, in milliseconds, between the removal of a segment and the deletion of its files."),
    Key("min.cleanable.dirty.ratio", DOUBLE, "0.5", between(0, 1),
        doc="The share of a log, from 0 to 1, that must be uncompacted before compaction starts. A larger "
            "value means fewer compactions and more disk space."),
    Key("cleanup.policy", LIST, "delete", ListValidator("compact", "delete"),
        doc="The retention policies of the topic, separated by commas: delete removes old segments by age "
            "and size, compact retains the latest record of each key. An empty list retains everything."),
    Key("unclean.leader.election.enable", BOOLEAN, "false"),
    Key("min.insync.replicas", INT, "1", at_least(1)),
    Key("compression.type", STRING, "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    Key("compression.gzip.level", INT, "-1", gzip_level),
    Key("compression.lz4.level", INT, "9", between(1, 17)),
    Key("compression.zstd.level", INT, "3", between(-131_072, 22)),
    Key("preallocate", BOOLEAN, "false",
        doc="Whether the file of a new segment is created with its full size."),
    Key("message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
        doc="The timestamp of records: CreateTime is the producer's time, LogAppendTime is the broker's "
            "time at the append."),
    Key("message.timestamp.before.max.ms", LONG, "9223372036854775807", at_least(0),
        doc="The maximum time, in milliseconds, by which a record's timestamp may precede the broker's "
            "time. Older records are rejected. It does not apply to LogAppendTime. The default means no "
            "limit."),
    Key("message.timestamp.after.max.ms", LONG, "3600000", at_least(0),
        doc="The maximum time, in milliseconds, by which a record's timestamp may exceed the broker's time. "
            "Newer records are rejected. It does not apply to LogAppendTime."),
    Key("leader.replication.throttled.replicas", LIST, "", ThrottledReplicasValidator(),
        doc="The leader replicas whose replication is throttled, as PARTITION:BROKER pairs, separated by "
            "commas. * means all replicas, and an empty list means none."),
    Key("follower.replication.throttled.replicas", LIST, "", ThrottledReplicasValidator(),
        doc="The follower replicas whose replication is throttled, as PARTITION:BROKER pairs, separated by "
            "commas. * means all replicas, and an empty list means none."),
    Key("remote.storage.enable", BOOLEAN, "false",
        doc="Whether the topic's segments are copied to remote storage. It requires "
            "remote.log.storage.system.enable on the broker."),
    Key("local.retention.ms", LONG, "-2", at_least(-2),
        doc="The time, in milliseconds, that a segment stays on local disk after it was copied to remote "
            "storage. -2 means the value of retention.ms, and -1 means no limit."),
    Key("local.retention.bytes", LONG, "-2", at_least(-2),
        doc="The maximum size, in bytes, of a partition on local disk if it is also in remote storage. -2 "
            "means the value of retention.bytes, and -1 means no limit."),
    Key("remote.log.copy.disable", BOOLEAN, "false",
        doc="Whether the topic stops copying segments to remote storage. Existing remote segments remain "
            "readable. Their deletion then depends only on retention.ms and retention.bytes."),
    Key("remote.log.delete.on.disable", BOOLEAN, "false",
        doc="Whether the topic's remote segments are deleted when remote.storage.enable is turned off. "
            "Turning it off fails without this setting."),
    Key("internal.segment.bytes", INT, None, internal=True,
        doc="Overrides segment.bytes without its lower bound, in bytes. For tests that need small segments. "
            "Unset means no override."),
)
# fmt: on


class BrokerSynonym(NamedTuple):
    """A broker key that provides a topic key's default.

    The unit of the broker key is `units` times the unit of the topic key.
    """

    name: str
    units: int = 1


MINUTE_MS: Final = 60 * 1000
HOUR_MS: Final = 60 * MINUTE_MS

BROKER_SYNONYMS: Final[dict[str, tuple[BrokerSynonym, ...]]] = {
    "segment.bytes": (BrokerSynonym("log.segment.bytes"),),
    "segment.ms": (BrokerSynonym("log.roll.ms"), BrokerSynonym("log.roll.hours", HOUR_MS)),
    "segment.jitter.ms": (
        BrokerSynonym("log.roll.jitter.ms"),
        BrokerSynonym("log.roll.jitter.hours", HOUR_MS),
    ),
    "segment.index.bytes": (BrokerSynonym("log.index.size.max.bytes"),),
    "flush.messages": (BrokerSynonym("log.flush.interval.messages"),),
    "flush.ms": (BrokerSynonym("log.flush.interval.ms"), BrokerSynonym("log.flush.scheduler.interval.ms")),
    "retention.bytes": (BrokerSynonym("log.retention.bytes"),),
    "retention.ms": (
        BrokerSynonym("log.retention.ms"),
        BrokerSynonym("log.retention.minutes", MINUTE_MS),
        BrokerSynonym("log.retention.hours", HOUR_MS),
    ),
    "max.message.bytes": (BrokerSynonym("message.max.bytes"),),
    "index.interval.bytes": (BrokerSynonym("log.index.interval.bytes"),),
    "delete.retention.ms": (BrokerSynonym("log.cleaner.delete.retention.ms"),),
    "min.compaction.lag.ms": (BrokerSynonym("log.cleaner.min.compaction.lag.ms"),),
    "max.compaction.lag.ms": (BrokerSynonym("log.cleaner.max.compaction.lag.ms"),),
    "file.delete.delay.ms": (BrokerSynonym("log.segment.delete.delay.ms"),),
    "min.cleanable.dirty.ratio": (BrokerSynonym("log.cleaner.min.cleanable.ratio"),),
    "cleanup.policy": (BrokerSynonym("log.cleanup.policy"),),
    "unclean.leader.election.enable": (BrokerSynonym("unclean.leader.election.enable"),),
    "min.insync.replicas": (BrokerSynonym("min.insync.replicas"),),
    "compression.type": (BrokerSynonym("compression.type"),),
    "compression.gzip.level": (BrokerSynonym("compression.gzip.level"),),
    "compression.lz4.level": (BrokerSynonym("compression.lz4.level"),),
    "compression.zstd.level": (BrokerSynonym("compression.zstd.level"),),
    "preallocate": (BrokerSynonym("log.preallocate"),),
    "message.timestamp.type": (BrokerSynonym("log.message.timestamp.type"),),
    "message.timestamp.before.max.ms": (BrokerSynonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.after.max.ms": (BrokerSynonym("log.message.timestamp.after.max.ms"),),
    "local.retention.ms": (BrokerSynonym("log.local.retention.ms"),),
    "local.retention.bytes": (BrokerSynonym("log.local.retention.bytes"),),
}
"""The broker keys that provide the default of a topic key. The first one that is set wins."""

"""What a topic can be reachable, and which of a broker's settings each key takes its default from.

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
    # Those that a broker has under the same name, and the same text, stand without one.
    Key("segment.bytes", INT, "1073741824", at_least(1_048_576),
        doc="The size in bytes at which a partition closes a segment and starts another. Compaction leaves "
            "the open segment alone."),
    Key("segment.ms", LONG, "604800000", at_least(1),
        doc="The age in milliseconds at which a partition closes a segment even if it is not full, so that "
            "its records can be deleted or compacted."),
    Key("segment.jitter.ms", LONG, "0", at_least(0),
        doc="The most milliseconds taken at random off segment.ms, so that many partitions do not start "
            "segments at the same moment; 0 means no variation."),
    Key("segment.index.bytes", INT, "10485760", at_least(4),
        doc="The most bytes an offset or time index of a segment may grow to; a full index closes its "
            "segment."),
    Key("flush.messages", LONG, "9223372036854775807", at_least(1),
        doc="How many records may be appended to a partition before it is forced to disk. The largest "
            "number leaves it to the operating system, and durability to replication."),
    Key("flush.ms", LONG, "9223372036854775807", at_least(0),
        doc="Milliseconds an appended record may be in memory only before the partition is forced to disk. "
            "The largest number leaves it to the operating system."),
    Key("retention.bytes", LONG, "-1",
        doc="The size in bytes above which each partition deletes its oldest segments, where cleanup.policy "
            "has delete; -1 means size deletes nothing."),
    Key("retention.ms", LONG, "604800000", at_least(-1),
        doc="Milliseconds a partition keeps a segment before it deletes it, where cleanup.policy has "
            "delete; -1 means age deletes nothing."),
    Key("max.message.bytes", INT, "1048588", at_least(0),
        doc="The largest batch of records, in bytes and as compressed, that the topic accepts."),
    Key("index.interval.bytes", INT, "4096", at_least(0),
        doc="Bytes of a partition's log between two entries of its offset index. Fewer make look-ups more "
            "exact and the index larger."),
    Key("delete.retention.ms", LONG, "86400000", at_least(0),
        doc="Milliseconds a compacted partition keeps the markers of deleted keys. A reader that starts at "
            "the beginning has this long to see all of them."),
    Key("min.compaction.lag.ms", LONG, "0", at_least(0),
        doc="Milliseconds after it was written during which a record is never compacted away. 0 leaves only "
            "the segment being written alone."),
    Key("max.compaction.lag.ms", LONG, "9223372036854775807", at_least(1),
        doc="Milliseconds after it was written by which a record has to be considered for compaction. The "
            "largest number means age alone never causes it."),
    Key("file.delete.delay.ms", LONG, "60000", at_least(0),
        doc="Milliseconds a segment's files stay on disk after the partition stopped using them."),
    Key("min.cleanable.dirty.ratio", DOUBLE, "0.5", between(0, 1),
        doc="The share of a partition's log, 0 to 1, that is not compacted yet from which compaction "
            "begins. Higher means fewer passes and more disk space."),
    Key("cleanup.policy", LIST, "delete", ListValidator("compact", "delete"),
        doc="What becomes of old records: delete drops segments by age and size, compact keeps the latest "
            "record of each key, and both may be given. An empty list keeps everything."),
    Key("unclean.leader.election.enable", BOOLEAN, "false"),
    Key("min.insync.replicas", INT, "1", at_least(1)),
    Key("compression.type", STRING, "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    Key("compression.gzip.level", INT, "-1", gzip_level),
    Key("compression.lz4.level", INT, "9", between(1, 17)),
    Key("compression.zstd.level", INT, "3", between(-131_072, 22)),
    Key("preallocate", BOOLEAN, "false",
        doc="Whether the file of a new segment is given its full size on disk at once."),
    Key("message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
        doc="Which time records carry: CreateTime is the producer's, LogAppendTime the broker's at the "
            "moment it appends them."),
    Key("message.timestamp.before.max.ms", LONG, "9223372036854775807", at_least(0),
        doc="Milliseconds by which a record's time may lie before the broker's; older ones are refused. "
            "Does not apply to LogAppendTime, and the largest number means no limit."),
    Key("message.timestamp.after.max.ms", LONG, "3600000", at_least(0),
        doc="Milliseconds by which a record's time may lie ahead of the broker's; later ones are refused. "
            "Does not apply to LogAppendTime."),
    Key("leader.replication.throttled.replicas", LIST, "", ThrottledReplicasValidator(),
        doc="The replicas whose replication is throttled where they lead, as PARTITION:BROKER pairs "
            "separated by commas; * means all, empty means none."),
    Key("follower.replication.throttled.replicas", LIST, "", ThrottledReplicasValidator(),
        doc="The replicas whose replication is throttled where they follow, as PARTITION:BROKER pairs "
            "separated by commas; * means all, empty means none."),
    Key("remote.storage.enable", BOOLEAN, "false",
        doc="Whether the topic's older segments are kept in remote storage. The broker's "
            "remote.log.storage.system.enable has to be on as well."),
    Key("local.retention.ms", LONG, "-2", at_least(-2),
        doc="Milliseconds a segment stays on local disk once it is stored remotely. -2 means as long as "
            "retention.ms, -1 means no limit."),
    Key("local.retention.bytes", LONG, "-2", at_least(-2),
        doc="Bytes of a remotely stored partition that may stay on local disk. -2 means as much as "
            "retention.bytes, -1 means no limit."),
    Key("remote.log.copy.disable", BOOLEAN, "false",
        doc="Whether the topic stops copying segments to remote storage. What is there stays readable, and "
            "retention.ms and retention.bytes alone then decide what is deleted."),
    Key("remote.log.delete.on.disable", BOOLEAN, "false",
        doc="Whether what the topic has in remote storage is deleted when remote.storage.enable is turned "
            "off. Turning it off is refused without this."),
    Key("internal.segment.bytes", INT, None, internal=True,
        doc="Replaces segment.bytes without its lower bound, for tests that need tiny segments. Unset means "
            "it does not apply."),
)
# fmt: on


class BrokerSynonym(NamedTuple):
    """A broker's key that says what topics do by default, and how many of the topic's units its unit has."""

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
"""Where a topic's key takes its value from when the topic says nothing: the first of these that is set."""

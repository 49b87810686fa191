"""What a topic's keys do, those aside that a broker has under the same name."""

from __future__ import annotations

from typing import Final

TOPIC_DOCS: Final = {
    "segment.bytes": (
        "The size in bytes at which a partition closes a segment and starts another. Compaction leaves the "
        "open segment alone."
    ),
    "segment.ms": (
        "The age in milliseconds at which a partition closes a segment even if it is not full, so that its "
        "records can be deleted or compacted."
    ),
    "segment.jitter.ms": (
        "The most milliseconds taken at random off segment.ms, so that many partitions do not start segments "
        "at the same moment; 0 means no variation."
    ),
    "segment.index.bytes": (
        "The most bytes an offset or time index of a segment may grow to; a full index closes its segment."
    ),
    "flush.messages": (
        "How many records may be appended to a partition before it is forced to disk. The largest number "
        "leaves it to the operating system, and durability to replication."
    ),
    "flush.ms": (
        "Milliseconds an appended record may be in memory only before the partition is forced to disk. The "
        "largest number leaves it to the operating system."
    ),
    "retention.bytes": (
        "The size in bytes above which each partition deletes its oldest segments, where cleanup.policy has "
        "delete; -1 means size deletes nothing."
    ),
    "retention.ms": (
        "Milliseconds a partition keeps a segment before it deletes it, where cleanup.policy has delete; -1 "
        "means age deletes nothing."
    ),
    "max.message.bytes": "The largest batch of records, in bytes and as compressed, that the topic accepts.",
    "index.interval.bytes": (
        "Bytes of a partition's log between two entries of its offset index. Fewer make look-ups more exact "
        "and the index larger."
    ),
    "delete.retention.ms": (
        "Milliseconds a compacted partition keeps the markers of deleted keys. A reader that starts at the "
        "beginning has this long to see all of them."
    ),
    "min.compaction.lag.ms": (
        "Milliseconds after it was written during which a record is never compacted away. 0 leaves only the "
        "segment being written alone."
    ),
    "max.compaction.lag.ms": (
        "Milliseconds after it was written by which a record has to be considered for compaction. The "
        "largest number means age alone never causes it."
    ),
    "file.delete.delay.ms": (
        "Milliseconds a segment's files stay on disk after the partition stopped using them."
    ),
    "min.cleanable.dirty.ratio": (
        "The share of a partition's log, 0 to 1, that is not compacted yet from which compaction begins. "
        "Higher means fewer passes and more disk space."
    ),
    "cleanup.policy": (
        "What becomes of old records: delete drops segments by age and size, compact keeps the latest record "
        "of each key, and both may be given. An empty list keeps everything."
    ),
    "preallocate": "Whether the file of a new segment is given its full size on disk at once.",
    "message.timestamp.type": (
        "Which time records carry: CreateTime is the producer's, LogAppendTime the broker's at the moment it "
        "appends them."
    ),
    "message.timestamp.before.max.ms": (
        "Milliseconds by which a record's time may lie before the broker's; older ones are refused. Does not "
        "apply to LogAppendTime, and the largest number means no limit."
    ),
    "message.timestamp.after.max.ms": (
        "Milliseconds by which a record's time may lie ahead of the broker's; later ones are refused. Does "
        "not apply to LogAppendTime."
    ),
    "leader.replication.throttled.replicas": (
        "The replicas whose replication is throttled where they lead, as PARTITION:BROKER pairs separated by "
        "commas; * means all, empty means none."
    ),
    "follower.replication.throttled.replicas": (
        "The replicas whose replication is throttled where they follow, as PARTITION:BROKER pairs separated "
        "by commas; * means all, empty means none."
    ),
    "remote.storage.enable": (
        "Whether the topic's older segments are kept in remote storage. The broker's "
        "remote.log.storage.system.enable has to be on as well."
    ),
    "local.retention.ms": (
        "Milliseconds a segment stays on local disk once it is stored remotely. -2 means as long as "
        "retention.ms, -1 means no limit."
    ),
    "local.retention.bytes": (
        "Bytes of a remotely stored partition that may stay on local disk. -2 means as much as "
        "retention.bytes, -1 means no limit."
    ),
    "remote.log.copy.disable": (
        "Whether the topic stops copying segments to remote storage. What is there stays readable, and "
        "retention.ms and retention.bytes alone then decide what is deleted."
    ),
    "remote.log.delete.on.disable": (
        "Whether what the topic has in remote storage is deleted when remote.storage.enable is turned off. "
        "Turning it off is refused without this."
    ),
    "internal.segment.bytes": (
        "Replaces segment.bytes without its lower bound, for tests that need tiny segments. Unset means it "
        "does not apply."
    ),
}

"""Logs and topics: a broker's defaults of topic settings, its directories, the cleaner, tiered storage.

Names, types, defaults and ranges are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.config.definition import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PER_BROKER,
    STRING,
    Key,
    ListValidator,
    at_least,
    between,
    gzip_level,
    non_empty,
    one_of,
)

# fmt: off
STORAGE_KEYS: Final = (
    Key("remote.log.storage.system.enable", BOOLEAN, "false",
        doc="Whether the broker can keep older segments in remote storage. A topic uses it only if its "
            "remote.storage.enable says so too."),
    Key("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", non_empty,
        doc="Keys that begin with this are handed, without it, to the class that stores segments remotely."),
    Key("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", non_empty,
        doc="Keys that begin with this are handed, without it, to the class that keeps track of remote "
            "segments."),
    Key("remote.log.storage.manager.class.name", STRING, None, non_empty,
        doc="The class that moves segments to remote storage and back. Needed once remote storage is "
            "enabled."),
    Key("remote.log.storage.manager.class.path", STRING, None,
        doc="Where the class that stores segments remotely, and what it depends on, is loaded from. Unset "
            "means the broker's own class path."),
    Key("remote.log.metadata.manager.class.name", STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager", non_empty,
        doc="The class that keeps track of which segments are in remote storage. The default keeps that in "
            "an internal topic."),
    Key("remote.log.metadata.manager.class.path", STRING, None,
        doc="Where the class that keeps track of remote segments, and what it depends on, is loaded from. "
            "Unset means the broker's own class path."),
    Key("remote.log.metadata.manager.listener.name", STRING, None, non_empty,
        doc="The listener on which the class that keeps track of remote segments reaches the brokers. The "
            "default class cannot do without it."),
    Key("remote.log.metadata.custom.metadata.max.bytes", INT, "128", at_least(0),
        doc="The most bytes a storage class may attach to a remote segment. If it attaches more, no further "
            "segment of that partition is copied."),
    Key("remote.log.index.file.cache.total.size.bytes", LONG, "1073741824", at_least(1),
        update_mode=CLUSTER_WIDE,
        doc="Bytes of local disk for index files brought back from remote storage."),
    Key("remote.log.index.file.cache.ttl.ms", LONG, "900000", at_least(-1), internal=True,
        doc="Milliseconds an index file brought back from remote storage is kept after its last use; -1 "
            "means time removes none."),
    Key("remote.log.manager.thread.pool.size", INT, "2", at_least(1),
        doc="The deprecated name of remote.log.manager.follower.thread.pool.size: how many threads keep "
            "followers informed of what is stored remotely."),
    Key("remote.log.manager.copier.thread.pool.size", INT, "10", at_least(1), update_mode=CLUSTER_WIDE,
        doc="How many threads copy segments to remote storage."),
    Key("remote.log.manager.expiration.thread.pool.size", INT, "10", at_least(1), update_mode=CLUSTER_WIDE,
        doc="How many threads delete segments from remote storage once they are past retention."),
    Key("remote.log.manager.follower.thread.pool.size", INT, "2", at_least(1), update_mode=CLUSTER_WIDE,
        doc="How many threads look up, for the partitions this broker follows, how far their logs are "
            "stored remotely."),
    Key("remote.log.manager.task.interval.ms", LONG, "30000", at_least(1),
        doc="Milliseconds between two rounds of copying to, and clearing out of, remote storage."),
    Key("remote.log.manager.task.retry.backoff.ms", LONG, "500", at_least(1), internal=True,
        doc="Milliseconds before a failed remote storage request is first repeated."),
    Key("remote.log.manager.task.retry.backoff.max.ms", LONG, "30000", at_least(1), internal=True,
        doc="The ceiling, in milliseconds, for the growing pause between repeats of a failed remote storage "
            "request."),
    Key("remote.log.manager.task.retry.jitter", DOUBLE, "0.2", between(0, 0.5), internal=True,
        doc="The share, 0 to 0.5, by which each pause between remote storage retries is varied at random."),
    Key("remote.log.reader.threads", INT, "10", at_least(1), update_mode=CLUSTER_WIDE,
        doc="How many threads read from remote storage for consumers."),
    Key("remote.log.reader.max.pending.tasks", INT, "100", at_least(1),
        doc="How many reads may wait for a remote reader thread; further ones are refused with an error."),
    Key("log.local.retention.ms", LONG, "-2", at_least(-2), update_mode=CLUSTER_WIDE,
        doc="The default of local.retention.ms: milliseconds a segment stays on local disk once it is "
            "stored remotely. -2 means as long as log.retention.ms, -1 means no limit."),
    Key("log.local.retention.bytes", LONG, "-2", at_least(-2), update_mode=CLUSTER_WIDE,
        doc="The default of local.retention.bytes: bytes a remotely stored partition may keep on local "
            "disk. -2 means as much as log.retention.bytes, -1 means no limit."),
    Key("remote.log.manager.copy.max.bytes.per.second", LONG, "9223372036854775807", at_least(1),
        update_mode=CLUSTER_WIDE,
        doc="Bytes a second this broker copies to remote storage at most. The largest number means no "
            "limit."),
    Key("remote.log.manager.copy.quota.window.num", INT, "11", at_least(1),
        doc="How many time windows the rate of copies to remote storage is computed over."),
    Key("remote.log.manager.copy.quota.window.size.seconds", INT, "1", at_least(1),
        doc="The length, in seconds, of each window the rate of copies to remote storage is computed over."),
    Key("remote.log.manager.fetch.max.bytes.per.second", LONG, "9223372036854775807", at_least(1),
        update_mode=CLUSTER_WIDE,
        doc="Bytes a second this broker reads from remote storage at most. The largest number means no "
            "limit."),
    Key("remote.log.manager.fetch.quota.window.num", INT, "11", at_least(1),
        doc="How many time windows the rate of reads from remote storage is computed over."),
    Key("remote.log.manager.fetch.quota.window.size.seconds", INT, "1", at_least(1),
        doc="The length, in seconds, of each window the rate of reads from remote storage is computed over."),
    Key("remote.fetch.max.wait.ms", INT, "500", at_least(1), update_mode=CLUSTER_WIDE,
        doc="Milliseconds a consumer's fetch waits for remote storage before it is answered without that "
            "data."),
    Key("remote.list.offsets.request.timeout.ms", LONG, "30000", at_least(1), update_mode=CLUSTER_WIDE,
        doc="Milliseconds a ListOffsets request may take when the answer has to be looked up in remote "
            "storage."),
    Key("message.max.bytes", INT, "1048588", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of max.message.bytes: the largest batch of records, in bytes and as compressed, "
            "that a topic accepts."),
    Key("delete.topic.enable", BOOLEAN, "true",
        doc="Whether topics can be deleted. If not, DeleteTopics is refused."),
    Key("compression.type", STRING, "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), update_mode=CLUSTER_WIDE,
        doc="The codec in which a topic's batches are stored: gzip, snappy, lz4 or zstd. With uncompressed "
            "nothing is compressed; with producer batches stay as they arrived."),
    Key("compression.gzip.level", INT, "-1", gzip_level, update_mode=CLUSTER_WIDE,
        doc="How hard gzip compresses where batches are stored as gzip, 1 to 9; -1 is gzip's own default."),
    Key("compression.lz4.level", INT, "9", between(1, 17), update_mode=CLUSTER_WIDE,
        doc="How hard lz4 compresses where batches are stored as lz4, 1 to 17."),
    Key("compression.zstd.level", INT, "3", between(-131_072, 22), update_mode=CLUSTER_WIDE,
        doc="How hard zstd compresses where batches are stored as zstd, up to 22. Negative levels are "
            "faster and compress less."),
    Key("unclean.leader.election.interval.ms", LONG, "300000", at_least(1), internal=True,
        doc="Milliseconds between the controller's looks for partitions without a leader that could get an "
            "unclean one."),
    Key("unclean.leader.election.enable", BOOLEAN, "false", update_mode=CLUSTER_WIDE,
        doc="Whether a replica that is out of sync may lead when none in sync is left. The partition comes "
            "back, and acknowledged records can be lost."),
    Key("follower.fetch.last.tiered.offset.enable", BOOLEAN, "false", update_mode=CLUSTER_WIDE,
        doc="Whether a follower with an empty log starts at the first offset that is not stored remotely "
            "yet, instead of at the first its leader has on disk."),
    Key("log.cleaner.threads", INT, "1", at_least(0), update_mode=CLUSTER_WIDE,
        doc="How many threads compact logs."),
    Key("log.cleaner.io.max.bytes.per.second", DOUBLE, "1.7976931348623157E308", update_mode=CLUSTER_WIDE,
        doc="Bytes a second that all compaction threads together read and write at most. The largest number "
            "means no limit."),
    Key("log.cleaner.dedupe.buffer.size", LONG, "134217728", update_mode=CLUSTER_WIDE,
        doc="Bytes of memory for the keys being compacted, shared by all compaction threads. More lets one "
            "pass cover more of a log."),
    Key("log.cleaner.io.buffer.size", INT, "524288", at_least(0), update_mode=CLUSTER_WIDE,
        doc="Bytes of read and write buffers, shared by all compaction threads."),
    Key("log.cleaner.io.buffer.load.factor", DOUBLE, "0.9", update_mode=CLUSTER_WIDE,
        doc="How full the memory for keys may get, as a share of it. Fuller covers more of a log in one "
            "pass and makes keys collide more."),
    Key("log.cleaner.backoff.ms", LONG, "15000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="Milliseconds a compaction thread sleeps when there is nothing to compact."),
    Key("log.cleaner.min.cleanable.ratio", DOUBLE, "0.5", between(0, 1), update_mode=CLUSTER_WIDE,
        doc="The default of min.cleanable.dirty.ratio: the share of a log, 0 to 1, not compacted yet from "
            "which it is worth compacting."),
    Key("log.cleaner.enable", BOOLEAN, "true",
        doc="Whether compaction runs. Without it logs with the policy compact grow without limit, the one "
            "with the committed offsets included."),
    Key("log.cleaner.delete.retention.ms", LONG, "86400000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of delete.retention.ms: milliseconds a compacted log keeps the markers of deleted "
            "keys, so that readers get to see them."),
    Key("log.cleaner.min.compaction.lag.ms", LONG, "0", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of min.compaction.lag.ms: milliseconds a record is safe from compaction. 0 leaves "
            "only the segment being written alone."),
    Key("log.cleaner.max.compaction.lag.ms", LONG, "9223372036854775807", at_least(1),
        update_mode=CLUSTER_WIDE,
        doc="The default of max.compaction.lag.ms: milliseconds after which a record has to be considered "
            "for compaction. The largest number means that never happens by age."),
    Key("num.partitions", INT, "1", at_least(1),
        doc="How many partitions topics get that were created automatically or with no count given."),
    Key("log.dir", LIST, "/tmp/kafka-logs",
        doc="The data directory used when log.dirs is not set. Several may be given, separated by commas."),
    Key("log.dirs", LIST, None,
        doc="The data directories, separated by commas. Unset means log.dir."),
    Key("cordoned.log.dirs", LIST, "", update_mode=PER_BROKER,
        doc="Data directories that get no new partitions but keep those they have, separated by commas. * "
            "means all of them, empty none."),
    Key("log.segment.bytes", INT, "1073741824", at_least(1_048_576), update_mode=CLUSTER_WIDE,
        doc="The default of segment.bytes: the size in bytes at which a log closes a segment and starts "
            "another."),
    Key("log.roll.ms", LONG, None, update_mode=CLUSTER_WIDE,
        doc="The default of segment.ms: the age in milliseconds at which a log closes a segment even if it "
            "is not full. Unset means log.roll.hours."),
    Key("log.roll.hours", INT, "168", at_least(1),
        doc="The age in hours at which a log closes a segment even if it is not full. Counts only while "
            "log.roll.ms is unset."),
    Key("log.roll.jitter.ms", LONG, None, update_mode=CLUSTER_WIDE,
        doc="The default of segment.jitter.ms: the most milliseconds taken at random off a segment's "
            "allowed age. Unset means log.roll.jitter.hours."),
    Key("log.roll.jitter.hours", INT, "0", at_least(0),
        doc="The most hours taken at random off a segment's allowed age. Counts only while "
            "log.roll.jitter.ms is unset; 0 means no variation."),
    Key("log.retention.ms", LONG, None, update_mode=CLUSTER_WIDE,
        doc="The default of retention.ms: milliseconds a log keeps a segment before it is deleted. Unset "
            "means log.retention.minutes, -1 means no limit."),
    Key("log.retention.minutes", INT, None,
        doc="Minutes a log keeps a segment before it is deleted. Counts only while log.retention.ms is "
            "unset; when unset itself, log.retention.hours counts."),
    Key("log.retention.hours", INT, "168",
        doc="Hours a log keeps a segment before it is deleted. Counts only while log.retention.ms and "
            "log.retention.minutes are unset; -1 means no limit."),
    Key("log.retention.bytes", LONG, "-1", update_mode=CLUSTER_WIDE,
        doc="The default of retention.bytes: the size in bytes above which a partition's oldest segments "
            "are deleted; -1 means no limit. A topic may take this once for each partition."),
    Key("log.retention.check.interval.ms", LONG, "300000", at_least(1),
        doc="Milliseconds between the broker's looks for segments that are past retention."),
    Key("log.cleanup.policy", LIST, "delete", ListValidator("compact", "delete"), update_mode=CLUSTER_WIDE,
        doc="The default of cleanup.policy: delete drops old segments, compact keeps the latest record of "
            "each key, and both may be given. An empty list keeps everything."),
    Key("log.index.size.max.bytes", INT, "10485760", at_least(4), update_mode=CLUSTER_WIDE,
        doc="The default of segment.index.bytes: the most bytes an offset or time index of one segment may "
            "grow to."),
    Key("log.index.interval.bytes", INT, "4096", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of index.interval.bytes: bytes of log between two entries of its offset index."),
    Key("log.flush.interval.messages", LONG, "9223372036854775807", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The default of flush.messages: how many records may be appended before a log is forced to "
            "disk. The largest number leaves it to the operating system."),
    Key("log.segment.delete.delay.ms", LONG, "60000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of file.delete.delay.ms: milliseconds between taking a segment out of use and "
            "removing its files."),
    Key("log.flush.scheduler.interval.ms", LONG, "9223372036854775807",
        doc="Milliseconds between the broker's looks for logs that are due to be forced to disk. The "
            "largest number means it does not look."),
    Key("log.flush.interval.ms", LONG, None, update_mode=CLUSTER_WIDE,
        doc="The default of flush.ms: milliseconds a record may be in memory only before its log is forced "
            "to disk. Unset means log.flush.scheduler.interval.ms."),
    Key("log.flush.offset.checkpoint.interval.ms", INT, "60000", at_least(0),
        doc="Milliseconds between the times it is noted on disk up to where each log is known to be "
            "flushed, which is where recovery starts."),
    Key("log.flush.start.offset.checkpoint.interval.ms", INT, "60000", at_least(0),
        doc="Milliseconds between the times each log's first offset is noted on disk."),
    Key("log.preallocate", BOOLEAN, "false", update_mode=CLUSTER_WIDE,
        doc="The default of preallocate: whether a new segment's file is given its full size at once."),
    Key("num.recovery.threads.per.data.dir", INT, "2", at_least(1), update_mode=CLUSTER_WIDE,
        doc="How many threads each data directory gets for recovering logs at start and flushing them at "
            "shutdown."),
    Key("auto.create.topics.enable", BOOLEAN, "true",
        doc="Whether asking for the metadata of a topic that does not exist may create it."),
    Key("min.insync.replicas", INT, "1", at_least(1), update_mode=CLUSTER_WIDE,
        doc="How many replicas have to be in sync for a write with acks=all to be accepted; with fewer it "
            "fails."),
    Key("log.message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
        update_mode=CLUSTER_WIDE,
        doc="The default of message.timestamp.type: CreateTime keeps the producer's time, LogAppendTime "
            "stamps records as they are appended."),
    Key("log.message.timestamp.before.max.ms", LONG, "9223372036854775807", at_least(0),
        update_mode=CLUSTER_WIDE,
        doc="The default of message.timestamp.before.max.ms: milliseconds a record's time may lie before "
            "the broker's. Does not apply to LogAppendTime; the largest number means no limit."),
    Key("log.message.timestamp.after.max.ms", LONG, "3600000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of message.timestamp.after.max.ms: milliseconds a record's time may lie ahead of "
            "the broker's. Does not apply to LogAppendTime."),
    Key("create.topic.policy.class.name", CLASS, None,
        doc="The class that may refuse the creation of a topic. Unset means none is asked."),
    Key("alter.config.policy.class.name", CLASS, None,
        doc="The class that may refuse a change of settings. Unset means none is asked."),
    Key("log.dir.failure.timeout.ms", LONG, "30000", at_least(1),
        doc="Milliseconds the broker tries to tell the controller that a data directory failed before it "
            "shuts down."),
    Key("log.initial.task.delay.ms", LONG, "30000", at_least(0), internal=True,
        doc="Milliseconds after start before retention, flushing and checkpoints first run."),
)
# fmt: on

"""Keys of logs and topics: topic defaults, log directories, the cleaner and tiered storage.

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
        doc="Whether the broker supports remote storage. A topic uses it only if its remote.storage.enable "
            "is true."),
    Key("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", non_empty,
        doc="The prefix of the keys that are passed, without the prefix, to the remote storage manager."),
    Key("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", non_empty,
        doc="The prefix of the keys that are passed, without the prefix, to the remote log metadata "
            "manager."),
    Key("remote.log.storage.manager.class.name", STRING, None, non_empty,
        doc="The class of the remote storage manager, which copies segments to remote storage and reads "
            "them. It is required if remote storage is enabled."),
    Key("remote.log.storage.manager.class.path", STRING, None,
        doc="The class path of the remote storage manager. Unset means the class path of the broker."),
    Key("remote.log.metadata.manager.class.name", STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager", non_empty,
        doc="The class of the remote log metadata manager, which stores the list of remote segments. The "
            "default class stores it in an internal topic."),
    Key("remote.log.metadata.manager.class.path", STRING, None,
        doc="The class path of the remote log metadata manager. Unset means the class path of the broker."),
    Key("remote.log.metadata.manager.listener.name", STRING, None, non_empty,
        doc="The listener on which the remote log metadata manager connects to brokers. The default class "
            "requires it."),
    Key("remote.log.metadata.custom.metadata.max.bytes", INT, "128", at_least(0),
        doc="The maximum size, in bytes, of the custom metadata of a remote segment. If it is exceeded, the "
            "broker stops copying segments of the partition."),
    Key("remote.log.index.file.cache.total.size.bytes", LONG, "1073741824", at_least(1),
        update_mode=CLUSTER_WIDE,
        doc="The maximum size, in bytes, of the local cache of index files from remote storage."),
    Key("remote.log.index.file.cache.ttl.ms", LONG, "900000", at_least(-1), internal=True,
        doc="The time, in milliseconds, that the local cache keeps an index file from remote storage after "
            "its last use. -1 means no limit."),
    Key("remote.log.manager.thread.pool.size", INT, "2", at_least(1),
        doc="The deprecated name of remote.log.manager.follower.thread.pool.size."),
    Key("remote.log.manager.copier.thread.pool.size", INT, "10", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The number of threads that copy segments to remote storage."),
    Key("remote.log.manager.expiration.thread.pool.size", INT, "10", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The number of threads that delete expired segments from remote storage."),
    Key("remote.log.manager.follower.thread.pool.size", INT, "2", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The number of threads that update the remote log offsets of the partitions that this broker "
            "follows."),
    Key("remote.log.manager.task.interval.ms", LONG, "30000", at_least(1),
        doc="The time, in milliseconds, between two runs of the tasks that copy segments to remote storage "
            "and delete them there."),
    Key("remote.log.manager.task.retry.backoff.ms", LONG, "500", at_least(1), internal=True,
        doc="The time, in milliseconds, before the first retry of a failed remote storage request."),
    Key("remote.log.manager.task.retry.backoff.max.ms", LONG, "30000", at_least(1), internal=True,
        doc="The upper limit, in milliseconds, to which the time between retries of a remote storage "
            "request grows."),
    Key("remote.log.manager.task.retry.jitter", DOUBLE, "0.2", between(0, 0.5), internal=True,
        doc="The share, from 0 to 0.5, by which the time between retries of a remote storage request varies "
            "randomly."),
    Key("remote.log.reader.threads", INT, "10", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The number of threads that read from remote storage for consumers."),
    Key("remote.log.reader.max.pending.tasks", INT, "100", at_least(1),
        doc="The maximum number of reads that wait for a thread in remote.log.reader.threads. Further reads "
            "fail with an error."),
    Key("log.local.retention.ms", LONG, "-2", at_least(-2), update_mode=CLUSTER_WIDE,
        doc="The default of local.retention.ms: the time, in milliseconds, that a segment stays on local "
            "disk after it was copied to remote storage. -2 means the value of log.retention.ms, and -1 "
            "means no limit."),
    Key("log.local.retention.bytes", LONG, "-2", at_least(-2), update_mode=CLUSTER_WIDE,
        doc="The default of local.retention.bytes: the maximum size, in bytes, of a partition on local disk "
            "if it is also in remote storage. -2 means the value of log.retention.bytes, and -1 means no "
            "limit."),
    Key("remote.log.manager.copy.max.bytes.per.second", LONG, "9223372036854775807", at_least(1),
        update_mode=CLUSTER_WIDE,
        doc="The maximum rate, in bytes per second, at which this broker copies to remote storage. The "
            "default means no limit."),
    Key("remote.log.manager.copy.quota.window.num", INT, "11", at_least(1),
        doc="The number of samples from which the rate of copies to remote storage is computed."),
    Key("remote.log.manager.copy.quota.window.size.seconds", INT, "1", at_least(1),
        doc="The duration, in seconds, of each sample of the rate of copies to remote storage."),
    Key("remote.log.manager.fetch.max.bytes.per.second", LONG, "9223372036854775807", at_least(1),
        update_mode=CLUSTER_WIDE,
        doc="The maximum rate, in bytes per second, at which this broker reads from remote storage. The "
            "default means no limit."),
    Key("remote.log.manager.fetch.quota.window.num", INT, "11", at_least(1),
        doc="The number of samples from which the rate of reads from remote storage is computed."),
    Key("remote.log.manager.fetch.quota.window.size.seconds", INT, "1", at_least(1),
        doc="The duration, in seconds, of each sample of the rate of reads from remote storage."),
    Key("remote.fetch.max.wait.ms", INT, "500", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The maximum time, in milliseconds, that a fetch waits for data from remote storage. The broker "
            "then responds without that data."),
    Key("remote.list.offsets.request.timeout.ms", LONG, "30000", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The maximum time, in milliseconds, of a ListOffsets request that has to read remote storage."),
    Key("message.max.bytes", INT, "1048588", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of max.message.bytes: the maximum size, in bytes, of a record batch, after "
            "compression."),
    Key("delete.topic.enable", BOOLEAN, "true",
        doc="Whether topics can be deleted. If it is false, DeleteTopics requests fail."),
    Key("compression.type", STRING, "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), update_mode=CLUSTER_WIDE,
        doc="The compression codec of the topic's batches: gzip, snappy, lz4, zstd, uncompressed, or "
            "producer. With producer, the broker stores batches as the producer compressed them."),
    Key("compression.gzip.level", INT, "-1", gzip_level, update_mode=CLUSTER_WIDE,
        doc="The gzip compression level, from 1 to 9, if compression.type is gzip. -1 means gzip's default "
            "level."),
    Key("compression.lz4.level", INT, "9", between(1, 17), update_mode=CLUSTER_WIDE,
        doc="The lz4 compression level, from 1 to 17, if compression.type is lz4."),
    Key("compression.zstd.level", INT, "3", between(-131_072, 22), update_mode=CLUSTER_WIDE,
        doc="The zstd compression level, up to 22, if compression.type is zstd. Negative levels are faster "
            "and compress less."),
    Key("unclean.leader.election.interval.ms", LONG, "300000", at_least(1), internal=True,
        doc="The time, in milliseconds, between two checks of the controller for leaderless partitions that "
            "can get a leader in an unclean leader election."),
    Key("unclean.leader.election.enable", BOOLEAN, "false", update_mode=CLUSTER_WIDE,
        doc="Whether a replica outside of the ISR can become leader if no replica in the ISR is available. "
            "The partition becomes available again, but acknowledged records can be lost."),
    Key("follower.fetch.last.tiered.offset.enable", BOOLEAN, "false", update_mode=CLUSTER_WIDE,
        doc="Whether a follower with an empty log starts at the first offset that is not in remote storage "
            "yet, instead of the leader's local log start offset."),
    Key("log.cleaner.threads", INT, "1", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The number of threads that compact logs."),
    Key("log.cleaner.io.max.bytes.per.second", DOUBLE, "1.7976931348623157E308", update_mode=CLUSTER_WIDE,
        doc="The maximum rate, in bytes per second, at which all cleaner threads together read and write. "
            "The default means no limit."),
    Key("log.cleaner.dedupe.buffer.size", LONG, "134217728", update_mode=CLUSTER_WIDE,
        doc="The size, in bytes, of the memory for record keys that all cleaner threads share. With more "
            "memory, one compaction covers a larger part of a log."),
    Key("log.cleaner.io.buffer.size", INT, "524288", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The size, in bytes, of the I/O buffers that all cleaner threads share."),
    Key("log.cleaner.io.buffer.load.factor", DOUBLE, "0.9", update_mode=CLUSTER_WIDE,
        doc="The share of the memory for record keys that may be filled. With a larger value, one "
            "compaction covers a larger part of a log, but more keys collide."),
    Key("log.cleaner.backoff.ms", LONG, "15000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The time, in milliseconds, that a cleaner thread sleeps if there is nothing to compact."),
    Key("log.cleaner.min.cleanable.ratio", DOUBLE, "0.5", between(0, 1), update_mode=CLUSTER_WIDE,
        doc="The default of min.cleanable.dirty.ratio: the share of a log, from 0 to 1, that must be "
            "uncompacted before compaction starts."),
    Key("log.cleaner.enable", BOOLEAN, "true",
        doc="Whether the log cleaner runs. Without it, topics with the policy compact grow without limit, "
            "including the internal topic of committed offsets."),
    Key("log.cleaner.delete.retention.ms", LONG, "86400000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of delete.retention.ms: the time, in milliseconds, that a compacted partition "
            "retains tombstones."),
    Key("log.cleaner.min.compaction.lag.ms", LONG, "0", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of min.compaction.lag.ms: the minimum time, in milliseconds, that a record remains "
            "uncompacted."),
    Key("log.cleaner.max.compaction.lag.ms", LONG, "9223372036854775807", at_least(1),
        update_mode=CLUSTER_WIDE,
        doc="The default of max.compaction.lag.ms: the maximum time, in milliseconds, that a record remains "
            "ineligible for compaction. The default means no limit."),
    Key("num.partitions", INT, "1", at_least(1),
        doc="The number of partitions of topics that are created automatically, or without a partition "
            "count."),
    Key("log.dir", LIST, "/tmp/kafka-logs",
        doc="The log directory if log.dirs is not set. It can name several directories, separated by "
            "commas."),
    Key("log.dirs", LIST, None,
        doc="The log directories, separated by commas. Unset means the value of log.dir."),
    Key("cordoned.log.dirs", LIST, "", update_mode=PER_BROKER,
        doc="The log directories that receive no new partitions, separated by commas. Their existing "
            "partitions stay. * means all log directories."),
    Key("log.segment.bytes", INT, "1073741824", at_least(1_048_576), update_mode=CLUSTER_WIDE,
        doc="The default of segment.bytes: the maximum size, in bytes, of a segment."),
    Key("log.roll.ms", LONG, None, update_mode=CLUSTER_WIDE,
        doc="The default of segment.ms: the time, in milliseconds, after which a partition rolls a new "
            "segment even if the active one is not full. Unset means the value of log.roll.hours."),
    Key("log.roll.hours", INT, "168", at_least(1),
        doc="The default of segment.ms, in hours, if log.roll.ms is not set."),
    Key("log.roll.jitter.ms", LONG, None, update_mode=CLUSTER_WIDE,
        doc="The default of segment.jitter.ms: the maximum random time, in milliseconds, that is subtracted "
            "from segment.ms. Unset means the value of log.roll.jitter.hours."),
    Key("log.roll.jitter.hours", INT, "0", at_least(0),
        doc="The default of segment.jitter.ms, in hours, if log.roll.jitter.ms is not set."),
    Key("log.retention.ms", LONG, None, update_mode=CLUSTER_WIDE,
        doc="The default of retention.ms: the time, in milliseconds, that a partition retains a segment "
            "before it deletes it. Unset means the value of log.retention.minutes, and -1 means no limit."),
    Key("log.retention.minutes", INT, None,
        doc="The default of retention.ms, in minutes, if log.retention.ms is not set. Unset means the value "
            "of log.retention.hours."),
    Key("log.retention.hours", INT, "168",
        doc="The default of retention.ms, in hours, if neither log.retention.ms nor log.retention.minutes "
            "is set. -1 means no limit."),
    Key("log.retention.bytes", LONG, "-1", update_mode=CLUSTER_WIDE,
        doc="The default of retention.bytes: the maximum size, in bytes, of a partition before its oldest "
            "segments are deleted. -1 means no limit. The limit applies to each partition of a topic."),
    Key("log.retention.check.interval.ms", LONG, "300000", at_least(1),
        doc="The time, in milliseconds, between two checks for segments to delete."),
    Key("log.cleanup.policy", LIST, "delete", ListValidator("compact", "delete"), update_mode=CLUSTER_WIDE,
        doc="The default of cleanup.policy: delete removes old segments by age and size, compact retains "
            "the latest record of each key. An empty list retains everything."),
    Key("log.index.size.max.bytes", INT, "10485760", at_least(4), update_mode=CLUSTER_WIDE,
        doc="The default of segment.index.bytes: the maximum size, in bytes, of an offset or time index."),
    Key("log.index.interval.bytes", INT, "4096", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of index.interval.bytes: the number of bytes of a partition's log between two "
            "entries of its offset index."),
    Key("log.flush.interval.messages", LONG, "9223372036854775807", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The default of flush.messages: the number of records after which a partition is flushed to "
            "disk. The default leaves flushing to the operating system."),
    Key("log.segment.delete.delay.ms", LONG, "60000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of file.delete.delay.ms: the time, in milliseconds, between the removal of a "
            "segment and the deletion of its files."),
    Key("log.flush.scheduler.interval.ms", LONG, "9223372036854775807",
        doc="The time, in milliseconds, between two checks for partitions to flush to disk. The default "
            "means no checks."),
    Key("log.flush.interval.ms", LONG, None, update_mode=CLUSTER_WIDE,
        doc="The default of flush.ms: the maximum time, in milliseconds, that a record stays in memory "
            "before the partition is flushed to disk. Unset means the value of "
            "log.flush.scheduler.interval.ms."),
    Key("log.flush.offset.checkpoint.interval.ms", INT, "60000", at_least(0),
        doc="The time, in milliseconds, between two checkpoints of the partitions' flushed offsets, from "
            "which log recovery starts."),
    Key("log.flush.start.offset.checkpoint.interval.ms", INT, "60000", at_least(0),
        doc="The time, in milliseconds, between two checkpoints of the partitions' log start offsets."),
    Key("log.preallocate", BOOLEAN, "false", update_mode=CLUSTER_WIDE,
        doc="The default of preallocate: whether the file of a new segment is created with its full size."),
    Key("num.recovery.threads.per.data.dir", INT, "2", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The number of threads per log directory that recover logs at startup and flush them at "
            "shutdown."),
    Key("auto.create.topics.enable", BOOLEAN, "true",
        doc="Whether a Metadata request for an unknown topic can create the topic."),
    Key("min.insync.replicas", INT, "1", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The minimum number of replicas in the ISR for a write with acks=all. With fewer replicas, the "
            "write fails."),
    Key("log.message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
        update_mode=CLUSTER_WIDE,
        doc="The default of message.timestamp.type: CreateTime is the producer's time, LogAppendTime is the "
            "broker's time at the append."),
    Key("log.message.timestamp.before.max.ms", LONG, "9223372036854775807", at_least(0),
        update_mode=CLUSTER_WIDE,
        doc="The default of message.timestamp.before.max.ms: the maximum time, in milliseconds, by which a "
            "record's timestamp may precede the broker's time. It does not apply to LogAppendTime."),
    Key("log.message.timestamp.after.max.ms", LONG, "3600000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of message.timestamp.after.max.ms: the maximum time, in milliseconds, by which a "
            "record's timestamp may exceed the broker's time. It does not apply to LogAppendTime."),
    Key("create.topic.policy.class.name", CLASS, None,
        doc="The class that can reject the creation of a topic. Unset means no such policy."),
    Key("alter.config.policy.class.name", CLASS, None,
        doc="The class that can reject a change of configuration. Unset means no such policy."),
    Key("log.dir.failure.timeout.ms", LONG, "30000", at_least(1),
        doc="The time, in milliseconds, that the broker tries to report a failed log directory to the "
            "controller before it shuts down."),
    Key("log.initial.task.delay.ms", LONG, "30000", at_least(0), internal=True,
        doc="The time, in milliseconds, between the start of the broker and the first run of retention, "
            "flushing and checkpoints."),
)
# fmt: on

"""What the keys of logs do: a broker's defaults for topics, its directories, the cleaner, tiered storage."""

from __future__ import annotations

from typing import Final

STORAGE_DOCS: Final = {
    "remote.log.storage.system.enable": (
        "Whether the broker can keep older segments in remote storage. A topic uses it only if its "
        "remote.storage.enable says so too."
    ),
    "remote.log.storage.manager.impl.prefix": (
        "Keys that begin with this are handed, without it, to the class that stores segments remotely."
    ),
    "remote.log.metadata.manager.impl.prefix": (
        "Keys that begin with this are handed, without it, to the class that keeps track of remote segments."
    ),
    "remote.log.storage.manager.class.name": (
        "The class that moves segments to remote storage and back. Needed once remote storage is enabled."
    ),
    "remote.log.storage.manager.class.path": (
        "Where the class that stores segments remotely, and what it depends on, is loaded from. Unset means "
        "the broker's own class path."
    ),
    "remote.log.metadata.manager.class.name": (
        "The class that keeps track of which segments are in remote storage. The default keeps that in an "
        "internal topic."
    ),
    "remote.log.metadata.manager.class.path": (
        "Where the class that keeps track of remote segments, and what it depends on, is loaded from. Unset "
        "means the broker's own class path."
    ),
    "remote.log.metadata.manager.listener.name": (
        "The listener on which the class that keeps track of remote segments reaches the brokers. The "
        "default class cannot do without it."
    ),
    "remote.log.metadata.custom.metadata.max.bytes": (
        "The most bytes a storage class may attach to a remote segment. If it attaches more, no further "
        "segment of that partition is copied."
    ),
    "remote.log.index.file.cache.total.size.bytes": (
        "Bytes of local disk for index files brought back from remote storage."
    ),
    "remote.log.index.file.cache.ttl.ms": (
        "Milliseconds an index file brought back from remote storage is kept after its last use; -1 means "
        "time removes none."
    ),
    "remote.log.manager.thread.pool.size": (
        "The deprecated name of remote.log.manager.follower.thread.pool.size: how many threads keep "
        "followers informed of what is stored remotely."
    ),
    "remote.log.manager.copier.thread.pool.size": "How many threads copy segments to remote storage.",
    "remote.log.manager.expiration.thread.pool.size": (
        "How many threads delete segments from remote storage once they are past retention."
    ),
    "remote.log.manager.follower.thread.pool.size": (
        "How many threads look up, for the partitions this broker follows, how far their logs are stored "
        "remotely."
    ),
    "remote.log.manager.task.interval.ms": (
        "Milliseconds between two rounds of copying to, and clearing out of, remote storage."
    ),
    "remote.log.manager.task.retry.backoff.ms": (
        "Milliseconds before a failed remote storage request is first repeated."
    ),
    "remote.log.manager.task.retry.backoff.max.ms": (
        "The ceiling, in milliseconds, for the growing pause between repeats of a failed remote storage "
        "request."
    ),
    "remote.log.manager.task.retry.jitter": (
        "The share, 0 to 0.5, by which each pause between remote storage retries is varied at random."
    ),
    "remote.log.reader.threads": "How many threads read from remote storage for consumers.",
    "remote.log.reader.max.pending.tasks": (
        "How many reads may wait for a remote reader thread; further ones are refused with an error."
    ),
    "log.local.retention.ms": (
        "The default of local.retention.ms: milliseconds a segment stays on local disk once it is stored "
        "remotely. -2 means as long as log.retention.ms, -1 means no limit."
    ),
    "log.local.retention.bytes": (
        "The default of local.retention.bytes: bytes a remotely stored partition may keep on local disk. -2 "
        "means as much as log.retention.bytes, -1 means no limit."
    ),
    "remote.log.manager.copy.max.bytes.per.second": (
        "Bytes a second this broker copies to remote storage at most. The largest number means no limit."
    ),
    "remote.log.manager.copy.quota.window.num": (
        "How many time windows the rate of copies to remote storage is computed over."
    ),
    "remote.log.manager.copy.quota.window.size.seconds": (
        "The length, in seconds, of each window the rate of copies to remote storage is computed over."
    ),
    "remote.log.manager.fetch.max.bytes.per.second": (
        "Bytes a second this broker reads from remote storage at most. The largest number means no limit."
    ),
    "remote.log.manager.fetch.quota.window.num": (
        "How many time windows the rate of reads from remote storage is computed over."
    ),
    "remote.log.manager.fetch.quota.window.size.seconds": (
        "The length, in seconds, of each window the rate of reads from remote storage is computed over."
    ),
    "remote.fetch.max.wait.ms": (
        "Milliseconds a consumer's fetch waits for remote storage before it is answered without that data."
    ),
    "remote.list.offsets.request.timeout.ms": (
        "Milliseconds a ListOffsets request may take when the answer has to be looked up in remote storage."
    ),
    "message.max.bytes": (
        "The default of max.message.bytes: the largest batch of records, in bytes and as compressed, that a "
        "topic accepts."
    ),
    "delete.topic.enable": "Whether topics can be deleted. If not, DeleteTopics is refused.",
    "compression.type": (
        "The codec in which a topic's batches are stored: gzip, snappy, lz4 or zstd. With uncompressed "
        "nothing is compressed; with producer batches stay as they arrived."
    ),
    "compression.gzip.level": (
        "How hard gzip compresses where batches are stored as gzip, 1 to 9; -1 is gzip's own default."
    ),
    "compression.lz4.level": "How hard lz4 compresses where batches are stored as lz4, 1 to 17.",
    "compression.zstd.level": (
        "How hard zstd compresses where batches are stored as zstd, up to 22. Negative levels are faster and "
        "compress less."
    ),
    "unclean.leader.election.interval.ms": (
        "Milliseconds between the controller's looks for partitions without a leader that could get an "
        "unclean one."
    ),
    "unclean.leader.election.enable": (
        "Whether a replica that is out of sync may lead when none in sync is left. The partition comes back, "
        "and acknowledged records can be lost."
    ),
    "follower.fetch.last.tiered.offset.enable": (
        "Whether a follower with an empty log starts at the first offset that is not stored remotely yet, "
        "instead of at the first its leader has on disk."
    ),
    "log.cleaner.threads": "How many threads compact logs.",
    "log.cleaner.io.max.bytes.per.second": (
        "Bytes a second that all compaction threads together read and write at most. The largest number "
        "means no limit."
    ),
    "log.cleaner.dedupe.buffer.size": (
        "Bytes of memory for the keys being compacted, shared by all compaction threads. More lets one pass "
        "cover more of a log."
    ),
    "log.cleaner.io.buffer.size": "Bytes of read and write buffers, shared by all compaction threads.",
    "log.cleaner.io.buffer.load.factor": (
        "How full the memory for keys may get, as a share of it. Fuller covers more of a log in one pass and "
        "makes keys collide more."
    ),
    "log.cleaner.backoff.ms": "Milliseconds a compaction thread sleeps when there is nothing to compact.",
    "log.cleaner.min.cleanable.ratio": (
        "The default of min.cleanable.dirty.ratio: the share of a log, 0 to 1, not compacted yet from which "
        "it is worth compacting."
    ),
    "log.cleaner.enable": (
        "Whether compaction runs. Without it logs with the policy compact grow without limit, the one with "
        "the committed offsets included."
    ),
    "log.cleaner.delete.retention.ms": (
        "The default of delete.retention.ms: milliseconds a compacted log keeps the markers of deleted keys, "
        "so that readers get to see them."
    ),
    "log.cleaner.min.compaction.lag.ms": (
        "The default of min.compaction.lag.ms: milliseconds a record is safe from compaction. 0 leaves only "
        "the segment being written alone."
    ),
    "log.cleaner.max.compaction.lag.ms": (
        "The default of max.compaction.lag.ms: milliseconds after which a record has to be considered for "
        "compaction. The largest number means that never happens by age."
    ),
    "num.partitions": (
        "How many partitions topics get that were created automatically or with no count given."
    ),
    "log.dir": "The data directory used when log.dirs is not set. Several may be given, separated by commas.",
    "log.dirs": "The data directories, separated by commas. Unset means log.dir.",
    "cordoned.log.dirs": (
        "Data directories that get no new partitions but keep those they have, separated by commas. * means "
        "all of them, empty none."
    ),
    "log.segment.bytes": (
        "The default of segment.bytes: the size in bytes at which a log closes a segment and starts another."
    ),
    "log.roll.ms": (
        "The default of segment.ms: the age in milliseconds at which a log closes a segment even if it is "
        "not full. Unset means log.roll.hours."
    ),
    "log.roll.hours": (
        "The age in hours at which a log closes a segment even if it is not full. Counts only while "
        "log.roll.ms is unset."
    ),
    "log.roll.jitter.ms": (
        "The default of segment.jitter.ms: the most milliseconds taken at random off a segment's allowed "
        "age. Unset means log.roll.jitter.hours."
    ),
    "log.roll.jitter.hours": (
        "The most hours taken at random off a segment's allowed age. Counts only while log.roll.jitter.ms is "
        "unset; 0 means no variation."
    ),
    "log.retention.ms": (
        "The default of retention.ms: milliseconds a log keeps a segment before it is deleted. Unset means "
        "log.retention.minutes, -1 means no limit."
    ),
    "log.retention.minutes": (
        "Minutes a log keeps a segment before it is deleted. Counts only while log.retention.ms is unset; "
        "when unset itself, log.retention.hours counts."
    ),
    "log.retention.hours": (
        "Hours a log keeps a segment before it is deleted. Counts only while log.retention.ms and "
        "log.retention.minutes are unset; -1 means no limit."
    ),
    "log.retention.bytes": (
        "The default of retention.bytes: the size in bytes above which a partition's oldest segments are "
        "deleted; -1 means no limit. A topic may take this once for each partition."
    ),
    "log.retention.check.interval.ms": (
        "Milliseconds between the broker's looks for segments that are past retention."
    ),
    "log.cleanup.policy": (
        "The default of cleanup.policy: delete drops old segments, compact keeps the latest record of each "
        "key, and both may be given. An empty list keeps everything."
    ),
    "log.index.size.max.bytes": (
        "The default of segment.index.bytes: the most bytes an offset or time index of one segment may grow "
        "to."
    ),
    "log.index.interval.bytes": (
        "The default of index.interval.bytes: bytes of log between two entries of its offset index."
    ),
    "log.flush.interval.messages": (
        "The default of flush.messages: how many records may be appended before a log is forced to disk. The "
        "largest number leaves it to the operating system."
    ),
    "log.segment.delete.delay.ms": (
        "The default of file.delete.delay.ms: milliseconds between taking a segment out of use and removing "
        "its files."
    ),
    "log.flush.scheduler.interval.ms": (
        "Milliseconds between the broker's looks for logs that are due to be forced to disk. The largest "
        "number means it does not look."
    ),
    "log.flush.interval.ms": (
        "The default of flush.ms: milliseconds a record may be in memory only before its log is forced to "
        "disk. Unset means log.flush.scheduler.interval.ms."
    ),
    "log.flush.offset.checkpoint.interval.ms": (
        "Milliseconds between the times it is noted on disk up to where each log is known to be flushed, "
        "which is where recovery starts."
    ),
    "log.flush.start.offset.checkpoint.interval.ms": (
        "Milliseconds between the times each log's first offset is noted on disk."
    ),
    "log.preallocate": (
        "The default of preallocate: whether a new segment's file is given its full size at once."
    ),
    "num.recovery.threads.per.data.dir": (
        "How many threads each data directory gets for recovering logs at start and flushing them at "
        "shutdown."
    ),
    "auto.create.topics.enable": (
        "Whether asking for the metadata of a topic that does not exist may create it."
    ),
    "min.insync.replicas": (
        "How many replicas have to be in sync for a write with acks=all to be accepted; with fewer it fails."
    ),
    "log.message.timestamp.type": (
        "The default of message.timestamp.type: CreateTime keeps the producer's time, LogAppendTime stamps "
        "records as they are appended."
    ),
    "log.message.timestamp.before.max.ms": (
        "The default of message.timestamp.before.max.ms: milliseconds a record's time may lie before the "
        "broker's. Does not apply to LogAppendTime; the largest number means no limit."
    ),
    "log.message.timestamp.after.max.ms": (
        "The default of message.timestamp.after.max.ms: milliseconds a record's time may lie ahead of the "
        "broker's. Does not apply to LogAppendTime."
    ),
    "create.topic.policy.class.name": (
        "The class that may refuse the creation of a topic. Unset means none is asked."
    ),
    "alter.config.policy.class.name": (
        "The class that may refuse a change of settings. Unset means none is asked."
    ),
    "log.dir.failure.timeout.ms": (
        "Milliseconds the broker tries to tell the controller that a data directory failed before it shuts "
        "down."
    ),
    "log.initial.task.delay.ms": (
        "Milliseconds after start before retention, flushing and checkpoints first run."
    ),
}

"""Keys of groups, committed offsets, share groups, streams groups and transactions.

Names, types, defaults and ranges are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.config.definition import (
    BOOLEAN,
    CLUSTER_WIDE,
    INT,
    LIST,
    LONG,
    SHORT,
    STRING,
    Key,
    ListValidator,
    at_least,
    between,
    one_of_any_case,
)

# fmt: off
COORDINATOR_KEYS: Final = (
    Key("group.coordinator.rebalance.protocols", LIST, "classic,consumer,streams",
        ListValidator("consumer", "classic", "share", "streams"),
        doc="The rebalance protocols that the group coordinator supports, separated by commas: classic, "
            "consumer, streams, share. Deprecated: feature levels enable the protocols."),
    Key("group.coordinator.threads", INT, "4", at_least(1),
        doc="The number of threads that process requests in the group coordinator."),
    Key("group.coordinator.background.threads", INT, "2", at_least(1),
        doc="The number of threads for slow tasks of the group coordinator, such as matching topic names "
            "against regular expressions."),
    Key("group.coordinator.append.linger.ms", INT, "-1", at_least(-1),
        doc="The time, in milliseconds, that the group coordinator collects records before it appends them. "
            "With 0, records are appended immediately. With -1, the time adapts to the load."),
    Key("offsets.commit.timeout.ms", INT, "5000", at_least(1),
        doc="The maximum time, in milliseconds, that a write of the group coordinator, such as an offset "
            "commit, waits for its replicas."),
    Key("offsets.load.buffer.size", INT, "5242880", at_least(1),
        doc="The number of bytes that a group coordinator reads at a time when it loads a partition of the "
            "offsets topic. A batch larger than this is still read."),
    Key("offsets.topic.replication.factor", SHORT, "3", at_least(1),
        doc="The replication factor of the offsets topic. The topic is created only when that many brokers "
            "are available."),
    Key("offsets.topic.num.partitions", INT, "50", at_least(1),
        doc="The number of partitions of the offsets topic. A later change is not supported, because it "
            "moves groups to other coordinators."),
    Key("offsets.topic.segment.bytes", INT, "104857600", at_least(1),
        doc="The segment size, in bytes, of the offsets topic. Smaller segments are compacted and loaded "
            "faster."),
    Key("offsets.topic.compression.codec", INT, "0",
        doc="The compression codec of the group coordinator's records: 0 means none, 1 gzip, 2 snappy, 3 "
            "lz4, 4 zstd."),
    Key("group.coordinator.cached.buffer.max.bytes", INT, "1048588", at_least(524_288),
        update_mode=CLUSTER_WIDE,
        doc="The maximum size, in bytes, of a buffer that the group coordinator keeps for its next write."),
    Key("offset.metadata.max.bytes", INT, "4096",
        doc="The maximum size, in bytes, of the metadata that a client commits with an offset."),
    Key("offsets.retention.minutes", INT, "10080", at_least(1),
        doc="The time, in minutes, that committed offsets are retained after a group becomes empty or no "
            "longer subscribes to the topic. For offsets that are committed outside of a group, the time "
            "starts at the last commit."),
    Key("offsets.retention.check.interval.ms", LONG, "600000", at_least(1),
        doc="The time, in milliseconds, between two checks of the group coordinator for expired offsets."),
    Key("group.min.session.timeout.ms", INT, "6000",
        doc="The minimum session timeout, in milliseconds, of a member of a classic group."),
    Key("group.max.session.timeout.ms", INT, "1800000",
        doc="The maximum session timeout, in milliseconds, of a member of a classic group."),
    Key("group.initial.rebalance.delay.ms", INT, "3000",
        doc="The time, in milliseconds, that an empty classic group waits for further members before its "
            "first rebalance. With 0, the group does not wait."),
    Key("group.max.size", INT, "2147483647", at_least(1),
        doc="The maximum number of members of a classic group."),
    Key("group.consumer.session.timeout.ms", INT, "45000", at_least(1),
        doc="The default of consumer.session.timeout.ms: the time, in milliseconds, without a heartbeat "
            "after which a member is removed from a consumer group."),
    Key("group.consumer.min.session.timeout.ms", INT, "45000", at_least(1),
        doc="The minimum, in milliseconds, of consumer.session.timeout.ms."),
    Key("group.consumer.max.session.timeout.ms", INT, "60000", at_least(1),
        doc="The maximum, in milliseconds, of consumer.session.timeout.ms."),
    Key("group.consumer.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The default of consumer.heartbeat.interval.ms: the time, in milliseconds, between two "
            "heartbeats of a member of a consumer group."),
    Key("group.consumer.min.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The minimum, in milliseconds, of consumer.heartbeat.interval.ms."),
    Key("group.consumer.max.heartbeat.interval.ms", INT, "15000", at_least(1),
        doc="The maximum, in milliseconds, of consumer.heartbeat.interval.ms."),
    Key("group.consumer.max.size", INT, "2147483647", at_least(1),
        doc="The maximum number of members of a consumer group."),
    Key("group.consumer.assignors", LIST, "uniform,range",
        doc="The server-side assignors of consumer groups, by name (uniform, range) or class, separated by "
            "commas. The first one is used if no member selects an assignor."),
    Key("group.consumer.migration.policy", STRING, "bidirectional",
        one_of_any_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
        doc="The conversions between classic and consumer groups that are allowed while a group has "
            "members: upgrade, downgrade, bidirectional, or disabled."),
    Key("group.consumer.assignment.interval.ms", INT, "1000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of consumer.assignment.interval.ms: the minimum time, in milliseconds, between two "
            "assignments of a consumer group. With 0, the group is assigned at once."),
    Key("group.consumer.min.assignment.interval.ms", INT, "0", at_least(0),
        doc="The minimum, in milliseconds, of consumer.assignment.interval.ms."),
    Key("group.consumer.max.assignment.interval.ms", INT, "15000", at_least(0),
        doc="The maximum, in milliseconds, of consumer.assignment.interval.ms."),
    Key("group.consumer.regex.refresh.interval.ms", INT, "600000", at_least(10_000), internal=True,
        doc="The time, in milliseconds, after which the regular expressions of a consumer group are "
            "resolved again."),
    Key("group.share.session.timeout.ms", INT, "45000", at_least(1),
        doc="The default of share.session.timeout.ms: the time, in milliseconds, without a heartbeat after "
            "which a member is removed from a share group."),
    Key("group.share.min.session.timeout.ms", INT, "45000", at_least(1),
        doc="The minimum, in milliseconds, of share.session.timeout.ms."),
    Key("group.share.max.session.timeout.ms", INT, "60000", at_least(1),
        doc="The maximum, in milliseconds, of share.session.timeout.ms."),
    Key("group.share.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The default of share.heartbeat.interval.ms: the time, in milliseconds, between two heartbeats "
            "of a member of a share group."),
    Key("group.share.min.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The minimum, in milliseconds, of share.heartbeat.interval.ms."),
    Key("group.share.max.heartbeat.interval.ms", INT, "15000", at_least(1),
        doc="The maximum, in milliseconds, of share.heartbeat.interval.ms."),
    Key("group.share.max.size", INT, "200", between(1, 1000),
        doc="The maximum number of members of a share group."),
    Key("group.share.assignors", LIST, "simple",
        doc="The assignor of share groups, by name (simple) or class."),
    Key("group.share.assignment.interval.ms", INT, "1000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of share.assignment.interval.ms: the minimum time, in milliseconds, between two "
            "assignments of a share group. With 0, the group is assigned at once."),
    Key("group.share.min.assignment.interval.ms", INT, "0", at_least(0),
        doc="The minimum, in milliseconds, of share.assignment.interval.ms."),
    Key("group.share.max.assignment.interval.ms", INT, "15000", at_least(0),
        doc="The maximum, in milliseconds, of share.assignment.interval.ms."),
    Key("group.share.initialize.retry.interval.ms", INT, "30000", at_least(1), internal=True,
        doc="The time, in milliseconds, after which the initialization of a share group's partitions is "
            "retried if it has not completed."),
    Key("group.streams.session.timeout.ms", INT, "45000", at_least(1),
        doc="The default of streams.session.timeout.ms: the time, in milliseconds, without a heartbeat "
            "after which a member is removed from a streams group."),
    Key("group.streams.min.session.timeout.ms", INT, "45000", at_least(1),
        doc="The minimum, in milliseconds, of streams.session.timeout.ms."),
    Key("group.streams.max.session.timeout.ms", INT, "60000", at_least(1),
        doc="The maximum, in milliseconds, of streams.session.timeout.ms."),
    Key("group.streams.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The default of streams.heartbeat.interval.ms: the time, in milliseconds, between two "
            "heartbeats of a member of a streams group."),
    Key("group.streams.min.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The minimum, in milliseconds, of streams.heartbeat.interval.ms."),
    Key("group.streams.max.heartbeat.interval.ms", INT, "15000", at_least(1),
        doc="The maximum, in milliseconds, of streams.heartbeat.interval.ms."),
    Key("group.streams.max.size", INT, "2147483647", at_least(1),
        doc="The maximum number of members of a streams group."),
    Key("group.streams.num.standby.replicas", INT, "0", at_least(0),
        doc="The default of streams.num.standby.replicas: the number of standby replicas of each stateful "
            "task in a streams group."),
    Key("group.streams.max.standby.replicas", INT, "2", at_least(0),
        doc="The maximum of streams.num.standby.replicas."),
    Key("group.streams.initial.rebalance.delay.ms", INT, "3000", at_least(0),
        doc="The default of streams.initial.rebalance.delay.ms: the time, in milliseconds, that an empty "
            "streams group waits for further members after the first one joins. With 0, the group does not "
            "wait."),
    Key("group.streams.assignment.interval.ms", INT, "1000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of streams.assignment.interval.ms: the minimum time, in milliseconds, between two "
            "assignments of a streams group. With 0, the group is assigned at once."),
    Key("group.streams.min.assignment.interval.ms", INT, "0", at_least(0),
        doc="The minimum, in milliseconds, of streams.assignment.interval.ms."),
    Key("group.streams.max.assignment.interval.ms", INT, "15000", at_least(0),
        doc="The maximum, in milliseconds, of streams.assignment.interval.ms."),
    Key("group.share.delivery.count.limit", INT, "5", between(2, 10),
        doc="The default of share.delivery.count.limit: the maximum number of times that a record is "
            "delivered to members of a share group before it is archived."),
    Key("group.share.max.delivery.count.limit", INT, "10", between(5, 25),
        doc="The maximum of share.delivery.count.limit."),
    Key("group.share.min.delivery.count.limit", INT, "2", between(2, 5),
        doc="The minimum of share.delivery.count.limit."),
    Key("group.share.record.lock.duration.ms", INT, "30000", between(1000, 3_600_000),
        doc="The default of share.record.lock.duration.ms: the time, in milliseconds, that a record stays "
            "acquired by a member of a share group."),
    Key("group.share.min.record.lock.duration.ms", INT, "15000", between(1000, 30_000),
        doc="The minimum, in milliseconds, of share.record.lock.duration.ms."),
    Key("group.share.max.record.lock.duration.ms", INT, "60000", between(30_000, 3_600_000),
        doc="The maximum, in milliseconds, of share.record.lock.duration.ms."),
    Key("group.share.partition.max.record.locks", INT, "2000", between(100, 10_000),
        doc="The default of share.partition.max.record.locks: the maximum number of records per partition "
            "that members of a share group have acquired and not acknowledged."),
    Key("group.share.max.partition.max.record.locks", INT, "4000", between(2000, 10_000),
        doc="The maximum of share.partition.max.record.locks."),
    Key("group.share.min.partition.max.record.locks", INT, "100", between(100, 2000),
        doc="The minimum of share.partition.max.record.locks."),
    Key("share.fetch.purgatory.purge.interval.requests", INT, "1000",
        doc="The number of completed requests in the purgatory of delayed share fetches that triggers their "
            "removal."),
    Key("group.share.max.share.sessions", INT, "2000", at_least(1),
        doc="The maximum number of share sessions of a broker."),
    Key("group.share.persister.class.name", STRING,
        "org.apache.kafka.server.share.persister.DefaultStatePersister", internal=True,
        doc="The class that stores the delivery state of share groups. Only tests should change it."),
    Key("share.coordinator.state.topic.num.partitions", INT, "50", at_least(1),
        doc="The number of partitions of the share state topic. A later change is not supported."),
    Key("share.coordinator.state.topic.replication.factor", SHORT, "3", at_least(1),
        doc="The replication factor of the share state topic. The topic is created only when that many "
            "brokers are available."),
    Key("share.coordinator.state.topic.min.isr", SHORT, "2", at_least(1),
        doc="The min.insync.replicas of the share state topic."),
    Key("share.coordinator.state.topic.segment.bytes", INT, "104857600", at_least(1),
        doc="The segment size, in bytes, of the share state topic."),
    Key("share.coordinator.threads", INT, "1", at_least(1),
        doc="The number of threads that process requests in the share coordinator."),
    Key("share.coordinator.snapshot.update.records.per.snapshot", INT, "500", between(0, 500),
        doc="The number of update records of a partition's share state between two snapshots. With 0, only "
            "snapshots are written."),
    Key("share.coordinator.load.buffer.size", INT, "5242880", at_least(1),
        doc="The number of bytes that a share coordinator reads at a time when it loads a partition of the "
            "share state topic. A batch larger than this is still read."),
    Key("share.coordinator.state.topic.compression.codec", INT, "0",
        doc="The compression codec of the share coordinator's records: 0 means none, 1 gzip, 2 snappy, 3 "
            "lz4, 4 zstd."),
    Key("share.coordinator.append.linger.ms", INT, "-1", at_least(-1),
        doc="The time, in milliseconds, that the share coordinator collects records before it appends them. "
            "With 0, records are appended immediately. With -1, the time adapts to the load."),
    Key("share.coordinator.write.timeout.ms", INT, "5000", at_least(1),
        doc="The maximum time, in milliseconds, that a write of the share coordinator waits for its "
            "replicas."),
    Key("share.coordinator.state.topic.prune.interval.ms", INT, "300000", at_least(1), internal=True,
        doc="The time, in milliseconds, between two deletions of records that the share coordinator no "
            "longer needs."),
    Key("share.coordinator.cold.partition.snapshot.interval.ms", INT, "300000", at_least(1), internal=True,
        doc="The time, in milliseconds, between two checks for unchanged share state to write as a "
            "snapshot, so that older records can be deleted."),
    Key("share.coordinator.cached.buffer.max.bytes", INT, "1048588", at_least(524_288),
        update_mode=CLUSTER_WIDE,
        doc="The maximum size, in bytes, of a buffer that the share coordinator keeps for its next write."),
    Key("transaction.state.log.min.isr", INT, "2", at_least(1),
        doc="The min.insync.replicas of the transaction topic."),
    Key("transaction.state.log.load.buffer.size", INT, "5242880", at_least(1),
        doc="The number of bytes that a transaction coordinator reads at a time when it loads a partition "
            "of the transaction topic. A batch larger than this is still read."),
    Key("transaction.state.log.replication.factor", SHORT, "3", at_least(1),
        doc="The replication factor of the transaction topic. The topic is created only when that many "
            "brokers are available."),
    Key("transaction.state.log.num.partitions", INT, "50", at_least(1),
        doc="The number of partitions of the transaction topic. A later change is not supported, because it "
            "moves transactional ids to other coordinators."),
    Key("transaction.state.log.segment.bytes", INT, "104857600", at_least(1),
        doc="The segment size, in bytes, of the transaction topic. Smaller segments are compacted and "
            "loaded faster."),
    Key("transaction.partition.verification.enable", BOOLEAN, "true", update_mode=CLUSTER_WIDE,
        doc="Whether the broker verifies with the transaction coordinator that a partition is part of the "
            "transaction before it accepts transactional records."),
    Key("producer.id.expiration.ms", INT, "86400000", at_least(1), update_mode=CLUSTER_WIDE,
        doc="The time, in milliseconds, that a partition keeps the state of an idle producer, with which it "
            "detects duplicates. A producer with an open transaction does not expire."),
    Key("producer.id.expiration.check.interval.ms", INT, "600000", at_least(1), internal=True,
        doc="The time, in milliseconds, between two checks for expired producers."),
    Key("transactional.id.expiration.ms", INT, "604800000", at_least(1),
        doc="The time, in milliseconds, after which the coordinator expires an idle transactional id. A "
            "transactional id with an open transaction does not expire."),
    Key("transaction.max.timeout.ms", INT, "900000", at_least(1),
        doc="The maximum transaction timeout, in milliseconds, that a producer can request. A larger "
            "timeout is rejected."),
    Key("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, "10000", at_least(1),
        doc="The time, in milliseconds, between two checks for transactions that have timed out and are "
            "aborted."),
    Key("transaction.remove.expired.transaction.cleanup.interval.ms", INT, "3600000", at_least(1),
        doc="The time, in milliseconds, between two checks for expired transactional ids."),
    Key("transaction.two.phase.commit.enable", BOOLEAN, "false",
        doc="Whether producers can take part in a two-phase commit. Their transactions then stay open until "
            "they end them."),
    Key("add.partitions.to.txn.retry.backoff.max.ms", INT, "100", at_least(0),
        doc="The maximum time, in milliseconds, that a broker retries to add a partition to a transaction "
            "while the previous transaction is ending."),
    Key("add.partitions.to.txn.retry.backoff.ms", INT, "20", at_least(1),
        doc="The time, in milliseconds, between two attempts of a broker to add a partition to a "
            "transaction while the previous transaction is ending."),
)
# fmt: on

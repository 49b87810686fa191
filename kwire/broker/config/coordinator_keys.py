"""Groups, committed offsets, share groups, streams groups and transactions.

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
        doc="The kinds of group the coordinator serves: classic, consumer, streams, share. Deprecated: the "
            "cluster's feature levels say the same."),
    Key("group.coordinator.threads", INT, "4", at_least(1),
        doc="How many threads work on what groups ask of their coordinator."),
    Key("group.coordinator.background.threads", INT, "2", at_least(1),
        doc="How many threads do the coordinator's slow work, such as matching topic names against regular "
            "expressions."),
    Key("group.coordinator.append.linger.ms", INT, "-1", at_least(-1),
        doc="Milliseconds the group coordinator collects records before it appends them; 0 appends at once, "
            "-1 lets it adapt to the load."),
    Key("offsets.commit.timeout.ms", INT, "5000", at_least(1),
        doc="Milliseconds a write of the group coordinator, such as an offset commit, may wait for its "
            "replicas before it fails."),
    Key("offsets.load.buffer.size", INT, "5242880", at_least(1),
        doc="Bytes read at a time when a group coordinator loads a partition of the committed offsets. A "
            "single batch larger than this is still read."),
    Key("offsets.topic.replication.factor", SHORT, "3", at_least(1),
        doc="How many replicas the topic of committed offsets is created with. Until that many brokers are "
            "up it cannot be created."),
    Key("offsets.topic.num.partitions", INT, "50", at_least(1),
        doc="How many partitions the topic of committed offsets is created with. Changing it later moves "
            "groups to other coordinators and is not supported."),
    Key("offsets.topic.segment.bytes", INT, "104857600", at_least(1),
        doc="The segment size, in bytes, the topic of committed offsets is created with. Smaller segments "
            "compact and load faster."),
    Key("offsets.topic.compression.codec", INT, "0",
        doc="The codec of what the group coordinator writes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."),
    Key("group.coordinator.cached.buffer.max.bytes", INT, "1048588", at_least(524_288),
        update_mode=CLUSTER_WIDE,
        doc="The largest buffer, in bytes, that the group coordinator keeps for its next write instead of "
            "letting it go."),
    Key("offset.metadata.max.bytes", INT, "4096",
        doc="The longest note, in bytes, a client may attach to an offset it commits."),
    Key("offsets.retention.minutes", INT, "10080", at_least(1),
        doc="Minutes committed offsets are kept after a group lost its last member or stopped subscribing "
            "to the topic. Without group membership the time runs from the last commit."),
    Key("offsets.retention.check.interval.ms", LONG, "600000", at_least(1),
        doc="Milliseconds between the group coordinator's looks for committed offsets that are past "
            "retention."),
    Key("group.min.session.timeout.ms", INT, "6000",
        doc="The shortest session, in milliseconds, a member of a classic group may ask for."),
    Key("group.max.session.timeout.ms", INT, "1800000",
        doc="The longest session, in milliseconds, a member of a classic group may ask for."),
    Key("group.initial.rebalance.delay.ms", INT, "3000",
        doc="Milliseconds an empty classic group waits for more members to join before its first rebalance; "
            "0 means it does not wait."),
    Key("group.max.size", INT, "2147483647", at_least(1),
        doc="How many members a classic group may have."),
    Key("group.consumer.session.timeout.ms", INT, "45000", at_least(1),
        doc="The default of consumer.session.timeout.ms: milliseconds without a heartbeat after which a "
            "member of a consumer group is removed."),
    Key("group.consumer.min.session.timeout.ms", INT, "45000", at_least(1),
        doc="The least consumer.session.timeout.ms, in milliseconds, that a consumer group may set."),
    Key("group.consumer.max.session.timeout.ms", INT, "60000", at_least(1),
        doc="The greatest consumer.session.timeout.ms, in milliseconds, that a consumer group may set."),
    Key("group.consumer.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The default of consumer.heartbeat.interval.ms: milliseconds between the heartbeats of a member "
            "of a consumer group."),
    Key("group.consumer.min.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The least consumer.heartbeat.interval.ms, in milliseconds, that a consumer group may set."),
    Key("group.consumer.max.heartbeat.interval.ms", INT, "15000", at_least(1),
        doc="The greatest consumer.heartbeat.interval.ms, in milliseconds, that a consumer group may set."),
    Key("group.consumer.max.size", INT, "2147483647", at_least(1),
        doc="How many members a consumer group may have."),
    Key("group.consumer.assignors", LIST, "uniform,range",
        doc="The assignors consumer groups can choose from, by built-in name (uniform, range) or class. The "
            "first is taken when members name none."),
    Key("group.consumer.migration.policy", STRING, "bidirectional",
        one_of_any_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
        doc="Which way a group changes between the classic and the consumer protocol while it has members: "
            "upgrade, downgrade, bidirectional, or disabled for neither."),
    Key("group.consumer.assignment.interval.ms", INT, "1000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of consumer.assignment.interval.ms: milliseconds at least between two assignments "
            "of a consumer group. 0 assigns at once."),
    Key("group.consumer.min.assignment.interval.ms", INT, "0", at_least(0),
        doc="The least consumer.assignment.interval.ms, in milliseconds, that a consumer group may set."),
    Key("group.consumer.max.assignment.interval.ms", INT, "15000", at_least(0),
        doc="The greatest consumer.assignment.interval.ms, in milliseconds, that a consumer group may set."),
    Key("group.consumer.regex.refresh.interval.ms", INT, "600000", at_least(10_000), internal=True,
        doc="Milliseconds after which a subscribed regular expression is matched against the topics again."),
    Key("group.share.session.timeout.ms", INT, "45000", at_least(1),
        doc="The default of share.session.timeout.ms: milliseconds without a heartbeat after which a member "
            "of a share group is removed."),
    Key("group.share.min.session.timeout.ms", INT, "45000", at_least(1),
        doc="The least share.session.timeout.ms, in milliseconds, that a share group may set."),
    Key("group.share.max.session.timeout.ms", INT, "60000", at_least(1),
        doc="The greatest share.session.timeout.ms, in milliseconds, that a share group may set."),
    Key("group.share.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The default of share.heartbeat.interval.ms: milliseconds between the heartbeats of a member of "
            "a share group."),
    Key("group.share.min.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The least share.heartbeat.interval.ms, in milliseconds, that a share group may set."),
    Key("group.share.max.heartbeat.interval.ms", INT, "15000", at_least(1),
        doc="The greatest share.heartbeat.interval.ms, in milliseconds, that a share group may set."),
    Key("group.share.max.size", INT, "200", between(1, 1000),
        doc="How many members a share group may have."),
    Key("group.share.assignors", LIST, "simple",
        doc="The assignor of share groups, by built-in name (simple) or class."),
    Key("group.share.assignment.interval.ms", INT, "1000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of share.assignment.interval.ms: milliseconds at least between two assignments of "
            "a share group. 0 assigns at once."),
    Key("group.share.min.assignment.interval.ms", INT, "0", at_least(0),
        doc="The least share.assignment.interval.ms, in milliseconds, that a share group may set."),
    Key("group.share.max.assignment.interval.ms", INT, "15000", at_least(0),
        doc="The greatest share.assignment.interval.ms, in milliseconds, that a share group may set."),
    Key("group.share.initialize.retry.interval.ms", INT, "30000", at_least(1), internal=True,
        doc="Milliseconds after which initializing a share group's partitions is tried again if it has not "
            "finished."),
    Key("group.streams.session.timeout.ms", INT, "45000", at_least(1),
        doc="The default of streams.session.timeout.ms: milliseconds without a heartbeat after which a "
            "member of a streams group is removed."),
    Key("group.streams.min.session.timeout.ms", INT, "45000", at_least(1),
        doc="The least streams.session.timeout.ms, in milliseconds, that a streams group may set."),
    Key("group.streams.max.session.timeout.ms", INT, "60000", at_least(1),
        doc="The greatest streams.session.timeout.ms, in milliseconds, that a streams group may set."),
    Key("group.streams.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The default of streams.heartbeat.interval.ms: milliseconds between the heartbeats of a member "
            "of a streams group."),
    Key("group.streams.min.heartbeat.interval.ms", INT, "5000", at_least(1),
        doc="The least streams.heartbeat.interval.ms, in milliseconds, that a streams group may set."),
    Key("group.streams.max.heartbeat.interval.ms", INT, "15000", at_least(1),
        doc="The greatest streams.heartbeat.interval.ms, in milliseconds, that a streams group may set."),
    Key("group.streams.max.size", INT, "2147483647", at_least(1),
        doc="How many members a streams group may have."),
    Key("group.streams.num.standby.replicas", INT, "0", at_least(0),
        doc="The default of streams.num.standby.replicas: how many spare copies each stateful task of a "
            "streams group has. 0 means none."),
    Key("group.streams.max.standby.replicas", INT, "2", at_least(0),
        doc="The greatest streams.num.standby.replicas that a streams group may set."),
    Key("group.streams.initial.rebalance.delay.ms", INT, "3000", at_least(0),
        doc="The default of streams.initial.rebalance.delay.ms: milliseconds an empty streams group waits "
            "for more members. 0 means it does not wait."),
    Key("group.streams.assignment.interval.ms", INT, "1000", at_least(0), update_mode=CLUSTER_WIDE,
        doc="The default of streams.assignment.interval.ms: milliseconds at least between two assignments "
            "of a streams group. 0 assigns at once."),
    Key("group.streams.min.assignment.interval.ms", INT, "0", at_least(0),
        doc="The least streams.assignment.interval.ms, in milliseconds, that a streams group may set."),
    Key("group.streams.max.assignment.interval.ms", INT, "15000", at_least(0),
        doc="The greatest streams.assignment.interval.ms, in milliseconds, that a streams group may set."),
    Key("group.share.delivery.count.limit", INT, "5", between(2, 10),
        doc="The default of share.delivery.count.limit: how many times a record is given to members of a "
            "share group before it is given up."),
    Key("group.share.max.delivery.count.limit", INT, "10", between(5, 25),
        doc="The greatest share.delivery.count.limit that a share group may set."),
    Key("group.share.min.delivery.count.limit", INT, "2", between(2, 5),
        doc="The least share.delivery.count.limit that a share group may set."),
    Key("group.share.record.lock.duration.ms", INT, "30000", between(1000, 3_600_000),
        doc="The default of share.record.lock.duration.ms: milliseconds a record stays with the member that "
            "was given it before others may get it."),
    Key("group.share.min.record.lock.duration.ms", INT, "15000", between(1000, 30_000),
        doc="The least share.record.lock.duration.ms, in milliseconds, that a share group may set."),
    Key("group.share.max.record.lock.duration.ms", INT, "60000", between(30_000, 3_600_000),
        doc="The greatest share.record.lock.duration.ms, in milliseconds, that a share group may set."),
    Key("group.share.partition.max.record.locks", INT, "2000", between(100, 10_000),
        doc="The default of share.partition.max.record.locks: how many records of a partition may be in the "
            "hands of a share group's members at a time."),
    Key("group.share.max.partition.max.record.locks", INT, "4000", between(2000, 10_000),
        doc="The greatest share.partition.max.record.locks that a share group may set."),
    Key("group.share.min.partition.max.record.locks", INT, "100", between(100, 2000),
        doc="The least share.partition.max.record.locks that a share group may set."),
    Key("share.fetch.purgatory.purge.interval.requests", INT, "1000",
        doc="How many finished share fetches may pile up among the waiting ones before they are cleared "
            "out."),
    Key("group.share.max.share.sessions", INT, "2000", at_least(1),
        doc="How many share sessions a broker holds at a time."),
    Key("group.share.persister.class.name", STRING,
        "org.apache.kafka.server.share.persister.DefaultStatePersister", internal=True,
        doc="The class that stores how far share groups have got. Meant to be changed by tests only."),
    Key("share.coordinator.state.topic.num.partitions", INT, "50", at_least(1),
        doc="How many partitions the topic of share groups' state is created with. Changing it later is not "
            "supported."),
    Key("share.coordinator.state.topic.replication.factor", SHORT, "3", at_least(1),
        doc="How many replicas the topic of share groups' state is created with. Until that many brokers "
            "are up it cannot be created."),
    Key("share.coordinator.state.topic.min.isr", SHORT, "2", at_least(1),
        doc="How many replicas of the topic of share groups' state have to be in sync for a write to be "
            "accepted."),
    Key("share.coordinator.state.topic.segment.bytes", INT, "104857600", at_least(1),
        doc="The segment size, in bytes, the topic of share groups' state is created with."),
    Key("share.coordinator.threads", INT, "1", at_least(1),
        doc="How many threads work on what is asked of the share coordinator."),
    Key("share.coordinator.snapshot.update.records.per.snapshot", INT, "500", between(0, 500),
        doc="How many changes of a partition's share state are written between two complete copies of it. 0 "
            "means only complete copies are written."),
    Key("share.coordinator.load.buffer.size", INT, "5242880", at_least(1),
        doc="Bytes read at a time when a share coordinator loads a partition of its state. A single batch "
            "larger than this is still read."),
    Key("share.coordinator.state.topic.compression.codec", INT, "0",
        doc="The codec of what the share coordinator writes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."),
    Key("share.coordinator.append.linger.ms", INT, "-1", at_least(-1),
        doc="Milliseconds the share coordinator collects records before it appends them; 0 appends at once, "
            "-1 lets it adapt to the load."),
    Key("share.coordinator.write.timeout.ms", INT, "5000", at_least(1),
        doc="Milliseconds a write of the share coordinator may wait for its replicas before it fails."),
    Key("share.coordinator.state.topic.prune.interval.ms", INT, "300000", at_least(1), internal=True,
        doc="Milliseconds between the share coordinator's rounds of deleting state records it no longer "
            "needs."),
    Key("share.coordinator.cold.partition.snapshot.interval.ms", INT, "300000", at_least(1), internal=True,
        doc="Milliseconds between the rounds in which share state that has not changed is written out again "
            "in full, so that old records can go."),
    Key("share.coordinator.cached.buffer.max.bytes", INT, "1048588", at_least(524_288),
        update_mode=CLUSTER_WIDE,
        doc="The largest buffer, in bytes, that the share coordinator keeps for its next write instead of "
            "letting it go."),
    Key("transaction.state.log.min.isr", INT, "2", at_least(1),
        doc="How many replicas of the topic of transactions have to be in sync for a write to be accepted."),
    Key("transaction.state.log.load.buffer.size", INT, "5242880", at_least(1),
        doc="Bytes read at a time when a transaction coordinator loads a partition of its state. A single "
            "batch larger than this is still read."),
    Key("transaction.state.log.replication.factor", SHORT, "3", at_least(1),
        doc="How many replicas the topic of transactions is created with. Until that many brokers are up it "
            "cannot be created."),
    Key("transaction.state.log.num.partitions", INT, "50", at_least(1),
        doc="How many partitions the topic of transactions is created with. Changing it later moves "
            "transactional ids to other coordinators and is not supported."),
    Key("transaction.state.log.segment.bytes", INT, "104857600", at_least(1),
        doc="The segment size, in bytes, the topic of transactions is created with. Smaller segments "
            "compact and load faster."),
    Key("transaction.partition.verification.enable", BOOLEAN, "true", update_mode=CLUSTER_WIDE,
        doc="Whether a broker asks the coordinator if a partition is part of the transaction before it "
            "accepts transactional records for it."),
    Key("producer.id.expiration.ms", INT, "86400000", at_least(1), update_mode=CLUSTER_WIDE,
        doc="Milliseconds a partition remembers a producer that has stopped writing to it, to tell repeats "
            "from new batches. An open transaction is not forgotten."),
    Key("producer.id.expiration.check.interval.ms", INT, "600000", at_least(1), internal=True,
        doc="Milliseconds between a broker's looks for producers its partitions can forget."),
    Key("transactional.id.expiration.ms", INT, "604800000", at_least(1),
        doc="Milliseconds the coordinator remembers a transactional id whose state does not change. One "
            "with an open transaction is not forgotten."),
    Key("transaction.max.timeout.ms", INT, "900000", at_least(1),
        doc="The longest transaction timeout, in milliseconds, a producer may ask for; more is refused."),
    Key("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, "10000", at_least(1),
        doc="Milliseconds between the coordinator's looks for transactions that took too long and are to be "
            "aborted."),
    Key("transaction.remove.expired.transaction.cleanup.interval.ms", INT, "3600000", at_least(1),
        doc="Milliseconds between the coordinator's looks for transactional ids it can forget."),
    Key("transaction.two.phase.commit.enable", BOOLEAN, "false",
        doc="Whether a producer may take part in a two-phase commit, which leaves its transactions open "
            "until it ends them itself."),
    Key("add.partitions.to.txn.retry.backoff.max.ms", INT, "100", at_least(0),
        doc="The most milliseconds a broker goes on trying to add a partition to a transaction while the "
            "one before it is still ending."),
    Key("add.partitions.to.txn.retry.backoff.ms", INT, "20", at_least(1),
        doc="Milliseconds a broker pauses between attempts to add a partition to a transaction while the "
            "one before it is still ending."),
)
# fmt: on

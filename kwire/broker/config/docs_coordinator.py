"""What the keys of groups, committed offsets, share groups, streams groups and transactions do."""

from __future__ import annotations

from typing import Final

COORDINATOR_DOCS: Final = {
    "group.coordinator.rebalance.protocols": (
        "The kinds of group the coordinator serves: classic, consumer, streams, share. Deprecated: the "
        "cluster's feature levels say the same."
    ),
    "group.coordinator.threads": "How many threads work on what groups ask of their coordinator.",
    "group.coordinator.background.threads": (
        "How many threads do the coordinator's slow work, such as matching topic names against regular "
        "expressions."
    ),
    "group.coordinator.append.linger.ms": (
        "Milliseconds the group coordinator collects records before it appends them; 0 appends at once, -1 "
        "lets it adapt to the load."
    ),
    "offsets.commit.timeout.ms": (
        "Milliseconds a write of the group coordinator, such as an offset commit, may wait for its replicas "
        "before it fails."
    ),
    "offsets.load.buffer.size": (
        "Bytes read at a time when a group coordinator loads a partition of the committed offsets. A single "
        "batch larger than this is still read."
    ),
    "offsets.topic.replication.factor": (
        "How many replicas the topic of committed offsets is created with. Until that many brokers are up it "
        "cannot be created."
    ),
    "offsets.topic.num.partitions": (
        "How many partitions the topic of committed offsets is created with. Changing it later moves groups "
        "to other coordinators and is not supported."
    ),
    "offsets.topic.segment.bytes": (
        "The segment size, in bytes, the topic of committed offsets is created with. Smaller segments "
        "compact and load faster."
    ),
    "offsets.topic.compression.codec": (
        "The codec of what the group coordinator writes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."
    ),
    "group.coordinator.cached.buffer.max.bytes": (
        "The largest buffer, in bytes, that the group coordinator keeps for its next write instead of "
        "letting it go."
    ),
    "offset.metadata.max.bytes": "The longest note, in bytes, a client may attach to an offset it commits.",
    "offsets.retention.minutes": (
        "Minutes committed offsets are kept after a group lost its last member or stopped subscribing to the "
        "topic. Without group membership the time runs from the last commit."
    ),
    "offsets.retention.check.interval.ms": (
        "Milliseconds between the group coordinator's looks for committed offsets that are past retention."
    ),
    "group.min.session.timeout.ms": (
        "The shortest session, in milliseconds, a member of a classic group may ask for."
    ),
    "group.max.session.timeout.ms": (
        "The longest session, in milliseconds, a member of a classic group may ask for."
    ),
    "group.initial.rebalance.delay.ms": (
        "Milliseconds an empty classic group waits for more members to join before its first rebalance; 0 "
        "means it does not wait."
    ),
    "group.max.size": "How many members a classic group may have.",
    "group.consumer.session.timeout.ms": (
        "The default of consumer.session.timeout.ms: milliseconds without a heartbeat after which a member "
        "of a consumer group is removed."
    ),
    "group.consumer.min.session.timeout.ms": (
        "The least consumer.session.timeout.ms, in milliseconds, that a consumer group may set."
    ),
    "group.consumer.max.session.timeout.ms": (
        "The greatest consumer.session.timeout.ms, in milliseconds, that a consumer group may set."
    ),
    "group.consumer.heartbeat.interval.ms": (
        "The default of consumer.heartbeat.interval.ms: milliseconds between the heartbeats of a member of a "
        "consumer group."
    ),
    "group.consumer.min.heartbeat.interval.ms": (
        "The least consumer.heartbeat.interval.ms, in milliseconds, that a consumer group may set."
    ),
    "group.consumer.max.heartbeat.interval.ms": (
        "The greatest consumer.heartbeat.interval.ms, in milliseconds, that a consumer group may set."
    ),
    "group.consumer.max.size": "How many members a consumer group may have.",
    "group.consumer.assignors": (
        "The assignors consumer groups can choose from, by built-in name (uniform, range) or class. The "
        "first is taken when members name none."
    ),
    "group.consumer.migration.policy": (
        "Which way a group changes between the classic and the consumer protocol while it has members: "
        "upgrade, downgrade, bidirectional, or disabled for neither."
    ),
    "group.consumer.assignment.interval.ms": (
        "The default of consumer.assignment.interval.ms: milliseconds at least between two assignments of a "
        "consumer group. 0 assigns at once."
    ),
    "group.consumer.min.assignment.interval.ms": (
        "The least consumer.assignment.interval.ms, in milliseconds, that a consumer group may set."
    ),
    "group.consumer.max.assignment.interval.ms": (
        "The greatest consumer.assignment.interval.ms, in milliseconds, that a consumer group may set."
    ),
    "group.consumer.regex.refresh.interval.ms": (
        "Milliseconds after which a subscribed regular expression is matched against the topics again."
    ),
    "group.share.session.timeout.ms": (
        "The default of share.session.timeout.ms: milliseconds without a heartbeat after which a member of a "
        "share group is removed."
    ),
    "group.share.min.session.timeout.ms": (
        "The least share.session.timeout.ms, in milliseconds, that a share group may set."
    ),
    "group.share.max.session.timeout.ms": (
        "The greatest share.session.timeout.ms, in milliseconds, that a share group may set."
    ),
    "group.share.heartbeat.interval.ms": (
        "The default of share.heartbeat.interval.ms: milliseconds between the heartbeats of a member of a "
        "share group."
    ),
    "group.share.min.heartbeat.interval.ms": (
        "The least share.heartbeat.interval.ms, in milliseconds, that a share group may set."
    ),
    "group.share.max.heartbeat.interval.ms": (
        "The greatest share.heartbeat.interval.ms, in milliseconds, that a share group may set."
    ),
    "group.share.max.size": "How many members a share group may have.",
    "group.share.assignors": "The assignor of share groups, by built-in name (simple) or class.",
    "group.share.assignment.interval.ms": (
        "The default of share.assignment.interval.ms: milliseconds at least between two assignments of a "
        "share group. 0 assigns at once."
    ),
    "group.share.min.assignment.interval.ms": (
        "The least share.assignment.interval.ms, in milliseconds, that a share group may set."
    ),
    "group.share.max.assignment.interval.ms": (
        "The greatest share.assignment.interval.ms, in milliseconds, that a share group may set."
    ),
    "group.share.initialize.retry.interval.ms": (
        "Milliseconds after which initializing a share group's partitions is tried again if it has not "
        "finished."
    ),
    "group.streams.session.timeout.ms": (
        "The default of streams.session.timeout.ms: milliseconds without a heartbeat after which a member of "
        "a streams group is removed."
    ),
    "group.streams.min.session.timeout.ms": (
        "The least streams.session.timeout.ms, in milliseconds, that a streams group may set."
    ),
    "group.streams.max.session.timeout.ms": (
        "The greatest streams.session.timeout.ms, in milliseconds, that a streams group may set."
    ),
    "group.streams.heartbeat.interval.ms": (
        "The default of streams.heartbeat.interval.ms: milliseconds between the heartbeats of a member of a "
        "streams group."
    ),
    "group.streams.min.heartbeat.interval.ms": (
        "The least streams.heartbeat.interval.ms, in milliseconds, that a streams group may set."
    ),
    "group.streams.max.heartbeat.interval.ms": (
        "The greatest streams.heartbeat.interval.ms, in milliseconds, that a streams group may set."
    ),
    "group.streams.max.size": "How many members a streams group may have.",
    "group.streams.num.standby.replicas": (
        "The default of streams.num.standby.replicas: how many spare copies each stateful task of a streams "
        "group has. 0 means none."
    ),
    "group.streams.max.standby.replicas": (
        "The greatest streams.num.standby.replicas that a streams group may set."
    ),
    "group.streams.initial.rebalance.delay.ms": (
        "The default of streams.initial.rebalance.delay.ms: milliseconds an empty streams group waits for "
        "more members. 0 means it does not wait."
    ),
    "group.streams.assignment.interval.ms": (
        "The default of streams.assignment.interval.ms: milliseconds at least between two assignments of a "
        "streams group. 0 assigns at once."
    ),
    "group.streams.min.assignment.interval.ms": (
        "The least streams.assignment.interval.ms, in milliseconds, that a streams group may set."
    ),
    "group.streams.max.assignment.interval.ms": (
        "The greatest streams.assignment.interval.ms, in milliseconds, that a streams group may set."
    ),
    "group.share.delivery.count.limit": (
        "The default of share.delivery.count.limit: how many times a record is given to members of a share "
        "group before it is given up."
    ),
    "group.share.max.delivery.count.limit": (
        "The greatest share.delivery.count.limit that a share group may set."
    ),
    "group.share.min.delivery.count.limit": (
        "The least share.delivery.count.limit that a share group may set."
    ),
    "group.share.record.lock.duration.ms": (
        "The default of share.record.lock.duration.ms: milliseconds a record stays with the member that was "
        "given it before others may get it."
    ),
    "group.share.min.record.lock.duration.ms": (
        "The least share.record.lock.duration.ms, in milliseconds, that a share group may set."
    ),
    "group.share.max.record.lock.duration.ms": (
        "The greatest share.record.lock.duration.ms, in milliseconds, that a share group may set."
    ),
    "group.share.partition.max.record.locks": (
        "The default of share.partition.max.record.locks: how many records of a partition may be in the "
        "hands of a share group's members at a time."
    ),
    "group.share.max.partition.max.record.locks": (
        "The greatest share.partition.max.record.locks that a share group may set."
    ),
    "group.share.min.partition.max.record.locks": (
        "The least share.partition.max.record.locks that a share group may set."
    ),
    "share.fetch.purgatory.purge.interval.requests": (
        "How many finished share fetches may pile up among the waiting ones before they are cleared out."
    ),
    "group.share.max.share.sessions": "How many share sessions a broker holds at a time.",
    "group.share.persister.class.name": (
        "The class that stores how far share groups have got. Meant to be changed by tests only."
    ),
    "share.coordinator.state.topic.num.partitions": (
        "How many partitions the topic of share groups' state is created with. Changing it later is not "
        "supported."
    ),
    "share.coordinator.state.topic.replication.factor": (
        "How many replicas the topic of share groups' state is created with. Until that many brokers are up "
        "it cannot be created."
    ),
    "share.coordinator.state.topic.min.isr": (
        "How many replicas of the topic of share groups' state have to be in sync for a write to be accepted."
    ),
    "share.coordinator.state.topic.segment.bytes": (
        "The segment size, in bytes, the topic of share groups' state is created with."
    ),
    "share.coordinator.threads": "How many threads work on what is asked of the share coordinator.",
    "share.coordinator.snapshot.update.records.per.snapshot": (
        "How many changes of a partition's share state are written between two complete copies of it. 0 "
        "means only complete copies are written."
    ),
    "share.coordinator.load.buffer.size": (
        "Bytes read at a time when a share coordinator loads a partition of its state. A single batch larger "
        "than this is still read."
    ),
    "share.coordinator.state.topic.compression.codec": (
        "The codec of what the share coordinator writes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."
    ),
    "share.coordinator.append.linger.ms": (
        "Milliseconds the share coordinator collects records before it appends them; 0 appends at once, -1 "
        "lets it adapt to the load."
    ),
    "share.coordinator.write.timeout.ms": (
        "Milliseconds a write of the share coordinator may wait for its replicas before it fails."
    ),
    "share.coordinator.state.topic.prune.interval.ms": (
        "Milliseconds between the share coordinator's rounds of deleting state records it no longer needs."
    ),
    "share.coordinator.cold.partition.snapshot.interval.ms": (
        "Milliseconds between the rounds in which share state that has not changed is written out again in "
        "full, so that old records can go."
    ),
    "share.coordinator.cached.buffer.max.bytes": (
        "The largest buffer, in bytes, that the share coordinator keeps for its next write instead of "
        "letting it go."
    ),
    "transaction.state.log.min.isr": (
        "How many replicas of the topic of transactions have to be in sync for a write to be accepted."
    ),
    "transaction.state.log.load.buffer.size": (
        "Bytes read at a time when a transaction coordinator loads a partition of its state. A single batch "
        "larger than this is still read."
    ),
    "transaction.state.log.replication.factor": (
        "How many replicas the topic of transactions is created with. Until that many brokers are up it "
        "cannot be created."
    ),
    "transaction.state.log.num.partitions": (
        "How many partitions the topic of transactions is created with. Changing it later moves "
        "transactional ids to other coordinators and is not supported."
    ),
    "transaction.state.log.segment.bytes": (
        "The segment size, in bytes, the topic of transactions is created with. Smaller segments compact and "
        "load faster."
    ),
    "transaction.partition.verification.enable": (
        "Whether a broker asks the coordinator if a partition is part of the transaction before it accepts "
        "transactional records for it."
    ),
    "producer.id.expiration.ms": (
        "Milliseconds a partition remembers a producer that has stopped writing to it, to tell repeats from "
        "new batches. An open transaction is not forgotten."
    ),
    "producer.id.expiration.check.interval.ms": (
        "Milliseconds between a broker's looks for producers its partitions can forget."
    ),
    "transactional.id.expiration.ms": (
        "Milliseconds the coordinator remembers a transactional id whose state does not change. One with an "
        "open transaction is not forgotten."
    ),
    "transaction.max.timeout.ms": (
        "The longest transaction timeout, in milliseconds, a producer may ask for; more is refused."
    ),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        "Milliseconds between the coordinator's looks for transactions that took too long and are to be "
        "aborted."
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": (
        "Milliseconds between the coordinator's looks for transactional ids it can forget."
    ),
    "transaction.two.phase.commit.enable": (
        "Whether a producer may take part in a two-phase commit, which leaves its transactions open until it "
        "ends them itself."
    ),
    "add.partitions.to.txn.retry.backoff.max.ms": (
        "The most milliseconds a broker goes on trying to add a partition to a transaction while the one "
        "before it is still ending."
    ),
    "add.partitions.to.txn.retry.backoff.ms": (
        "Milliseconds a broker pauses between attempts to add a partition to a transaction while the one "
        "before it is still ending."
    ),
}

"""What the keys of a consumer, share or streams group do."""

from __future__ import annotations

from typing import Final

GROUP_DOCS: Final = {
    "consumer.assignment.interval.ms": (
        "The least time, in milliseconds, between two assignments of the consumer group; 0 assigns as soon "
        "as something changes."
    ),
    "consumer.heartbeat.interval.ms": (
        "How often, in milliseconds, members of the consumer group have to send a heartbeat."
    ),
    "consumer.session.timeout.ms": (
        "How long, in milliseconds, a member of the consumer group may go without a heartbeat before it is "
        "removed."
    ),
    "share.assignment.interval.ms": (
        "The least time, in milliseconds, between two assignments of the share group; 0 assigns as soon as "
        "something changes."
    ),
    "share.auto.offset.reset": (
        "Where the share group starts in a partition it has not read yet: earliest, latest, or by_duration: "
        "with an ISO 8601 duration, which is that long ago."
    ),
    "share.delivery.count.limit": (
        "How many times the share group's members may be given a record before it counts as undeliverable "
        "and is skipped."
    ),
    "share.heartbeat.interval.ms": (
        "How often, in milliseconds, members of the share group have to send a heartbeat."
    ),
    "share.isolation.level": (
        "Which transactional records the share group gets: read_committed only those of committed "
        "transactions, read_uncommitted all of them."
    ),
    "share.partition.max.record.locks": (
        "How many records of one partition the share group's members may hold unacknowledged at a time. At "
        "this limit no further ones are given out."
    ),
    "share.record.lock.duration.ms": (
        "How long, in milliseconds, a member of the share group has a record to itself. Without an "
        "acknowledgement the record is then given out again."
    ),
    "share.renew.acknowledge.enable": (
        "Whether a member of the share group may extend the time it has a record to itself."
    ),
    "share.session.timeout.ms": (
        "How long, in milliseconds, a member of the share group may go without a heartbeat before it is "
        "removed."
    ),
    "streams.assignment.interval.ms": (
        "The least time, in milliseconds, between two assignments of the streams group; 0 assigns as soon as "
        "something changes."
    ),
    "streams.heartbeat.interval.ms": (
        "How often, in milliseconds, members of the streams group have to send a heartbeat."
    ),
    "streams.initial.rebalance.delay.ms": (
        "How long, in milliseconds, the streams group waits after its first member joined for others to join "
        "too; 0 means it assigns at once."
    ),
    "streams.num.standby.replicas": (
        "How many members besides the active one keep a copy of each stateful task's state; 0 means no "
        "copies."
    ),
    "streams.session.timeout.ms": (
        "How long, in milliseconds, a member of the streams group may go without a heartbeat before it is "
        "removed."
    ),
}

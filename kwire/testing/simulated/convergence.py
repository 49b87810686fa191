"""Checks that a cluster converges after all faults have ended: all replicas are in sync and equal."""

from __future__ import annotations

from kwire.broker.replication.roles import Role
from kwire.broker.storage.log.log import Log
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.environment import SimulatedEnvironment
from kwire.testing.simulated.nodes import ClusterNode

READ_BYTES = 1 << 24


def why_not_converged(environment: SimulatedEnvironment) -> str | None:
    """Return why the cluster has not converged yet, or None if it has converged."""
    image = environment.invariants.image
    for broker_id in environment.spec.brokers:
        broker = environment.nodes[broker_id]
        if not broker.is_running:
            return f"{broker.name} has failed: {broker.fatal}"
        known = image.brokers.get(broker_id)
        if known is None or known.fenced:
            return f"broker {broker_id} is fenced"
        if broker.node.image.offset < image.offset:
            return (
                f"broker {broker_id} has metadata up to offset {broker.node.image.offset} of {image.offset}"
            )
    for topic_partition in environment.invariants.partitions:
        found = _why_partition_not_converged(environment, topic_partition)
        if found is not None:
            return f"{topic_partition}: {found}"
    return None


def _why_partition_not_converged(
    environment: SimulatedEnvironment, topic_partition: TopicPartition
) -> str | None:
    known = environment.invariants.partition(topic_partition)
    if known is None:
        return None
    if known.adding_replicas or known.removing_replicas:
        return f"reassignment to {list(known.replicas)} is in progress"
    for broker_id in environment.spec.brokers:
        replicas = environment.nodes[broker_id].node.replica_manager
        if broker_id not in known.replicas and replicas.get(*topic_partition) is not None:
            return f"broker {broker_id} still has a replica"
    if known.leader < 0:
        return "no leader"
    if set(known.isr) != set(known.replicas):
        return f"ISR {list(known.isr)} of replicas {list(known.replicas)}"
    end, high_watermark = -1, -1
    for broker_id in (known.leader, *known.replicas):
        partition = environment.nodes[broker_id].node.replica_manager.get(*topic_partition)
        if partition is None:
            return f"broker {broker_id} has no replica"
        expected = Role.LEADER if broker_id == known.leader else Role.FOLLOWER
        if partition.role is not expected:
            return f"broker {broker_id} is {partition.role.value}, but should be {expected.value}"
        if end < 0:
            end, high_watermark = partition.log.log_end_offset, partition.log.high_watermark
            if end != high_watermark:
                return f"high watermark {high_watermark} is below log end offset {end}"
        if partition.log.log_end_offset != end:
            return f"broker {broker_id} has log end offset {partition.log.log_end_offset} of {end}"
        if partition.log.high_watermark != high_watermark:
            return f"broker {broker_id} has high watermark {partition.log.high_watermark}"
    return None


def replica_differences(environment: SimulatedEnvironment) -> list[str]:
    """Return the differences between the replicas of each partition, as text."""
    found = []
    for topic_partition in environment.invariants.partitions:
        known = environment.invariants.partition(topic_partition)
        if known is None:
            continue
        first, *others = known.replicas
        # Log start offsets may differ: the leader may have failed before its followers knew of a deletion.
        start = max(
            _log(environment.nodes[each], topic_partition).log_start_offset for each in known.replicas
        )
        one = _content(environment.nodes[first], topic_partition, start)
        for other in others:
            theirs = _content(environment.nodes[other], topic_partition, start)
            found += [
                f"{topic_partition} on {first} and {other} differs in {what}: {one[what]} {theirs[what]}"
                for what in one
                if one[what] != theirs[what]
            ]
    return found


def _log(node: ClusterNode, topic_partition: TopicPartition) -> Log:
    partition = node.node.replica_manager.get(*topic_partition)
    assert partition is not None
    return partition.log


def _content(node: ClusterNode, topic_partition: TopicPartition, start: int) -> dict[str, object]:
    """Return the parts of a replica's state that must be equal on all replicas, from `start` on."""
    log = _log(node, topic_partition)
    with node.disk.without_faults():
        content = log.read(start, max_bytes=READ_BYTES, up_to_offset=log.log_end_offset).read()
    return {
        # Segment boundaries are excluded: a later replica has no segments below the log start offset.
        "bytes": content,
        # Empty epochs are excluded: a leader records its epoch at once, a follower with the first batch.
        "leader epochs": _epochs(log, start),
        # Earlier batches are excluded: snapshots keep only the last batch of each producer.
        "producers": {
            producer_id: (state.epoch, [batch.last_offset for batch in state.batches][-1:])
            for producer_id, state in log.producers.producers.items()
            if state.batches and state.batches[-1].last_offset >= start
        },
        "last stable offset": log.last_stable_offset,
    }


def _epochs(log: Log, start: int) -> list[tuple[int, int]]:
    """Return the leader epochs of the records from `start` on."""
    epochs = log.leader_epochs
    return [
        (epoch, max(begins, start))
        for (epoch, begins), (_, end) in zip(epochs, [*epochs[1:], (-1, log.log_end_offset)], strict=False)
        if max(begins, start) < end
    ]

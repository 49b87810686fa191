"""What a cluster must come to by itself, once nothing goes wrong any more: replicas in sync, and equal."""

from __future__ import annotations

from kwire.broker.replication.roles import Role
from kwire.broker.storage.log.log import Log
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.environment import SimulatedEnvironment
from kwire.testing.simulated.nodes import ClusterNode

READ_BYTES = 1 << 24


def why_not_converged(world: SimulatedEnvironment) -> str | None:
    """Why the cluster is not yet what it should be; None where it is."""
    image = world.invariants.image
    for broker_id in world.spec.brokers:
        broker = world.nodes[broker_id]
        if not broker.is_running:
            return f"{broker.name} has ended: {broker.fatal}"
        known = image.brokers.get(broker_id)
        if known is None or known.fenced:
            return f"broker {broker_id} is fenced"
        if broker.node.image.offset < image.offset:
            return f"broker {broker_id} has the metadata up to {broker.node.image.offset} of {image.offset}"
    for place in world.invariants.partitions:
        found = _why_partition_not_converged(world, place)
        if found is not None:
            return f"{place}: {found}"
    return None


def _why_partition_not_converged(world: SimulatedEnvironment, place: TopicPartition) -> str | None:
    known = world.invariants.partition(place)
    if known is None:
        return None
    if known.adding_replicas or known.removing_replicas:
        return f"it is on its way to {list(known.replicas)}"
    for broker_id in world.spec.brokers:
        strangers = world.nodes[broker_id].node.replica_manager
        if broker_id not in known.replicas and strangers.get(*place) is not None:
            return f"broker {broker_id} has it still"
    if known.leader < 0:
        return "nobody leads"
    if set(known.isr) != set(known.replicas):
        return f"{list(known.isr)} of {list(known.replicas)} are in sync"
    end, high_watermark = -1, -1
    for broker_id in (known.leader, *known.replicas):
        partition = world.nodes[broker_id].node.replica_manager.get(*place)
        if partition is None:
            return f"broker {broker_id} does not have it"
        expected = Role.LEADER if broker_id == known.leader else Role.FOLLOWER
        if partition.role is not expected:
            return f"broker {broker_id} is {partition.role.value}, and should be {expected.value}"
        if end < 0:
            end, high_watermark = partition.log.log_end_offset, partition.log.high_watermark
            if end != high_watermark:
                return f"its high watermark is {high_watermark}, and its end {end}"
        if partition.log.log_end_offset != end:
            return f"broker {broker_id} has it up to {partition.log.log_end_offset} of {end}"
        if partition.log.high_watermark != high_watermark:
            return f"broker {broker_id} has its high watermark at {partition.log.high_watermark}"
    return None


def replica_differences(world: SimulatedEnvironment) -> list[str]:
    """Where replicas are not the same, byte for byte."""
    found = []
    for place in world.invariants.partitions:
        known = world.invariants.partition(place)
        if known is None:
            continue
        first, *others = known.replicas
        # Who led when records were deleted, and ended before all had heard, may begin later than the others.
        start = max(_log(world.nodes[each], place).log_start_offset for each in known.replicas)
        one = _content(world.nodes[first], place, start)
        for other in others:
            theirs = _content(world.nodes[other], place, start)
            found += [
                f"{place} on {first} and {other} differs in {what}: {one[what]} {theirs[what]}"
                for what in one
                if one[what] != theirs[what]
            ]
    return found


def _log(node: ClusterNode, place: TopicPartition) -> Log:
    partition = node.node.replica_manager.get(*place)
    assert partition is not None
    return partition.log


def _content(node: ClusterNode, place: TopicPartition, start: int) -> dict[str, object]:
    """What of a replica is the same on all, from there on."""
    log = _log(node, place)
    with node.disk.without_faults():
        content = log.read(start, max_bytes=READ_BYTES, up_to_offset=log.log_end_offset).read()
    return {
        # Not by segments: a replica that came later has none from before the log's start.
        "bytes": content,
        # Not those without records: a leader notes its epoch at once, and followers when they fetch.
        "leader epochs": _epochs(log, start),
        # Snapshots have the last batch of a producer alone.
        "producers": {
            producer_id: (state.epoch, [batch.last_offset for batch in state.batches][-1:])
            for producer_id, state in log.producers.producers.items()
            if state.batches and state.batches[-1].last_offset >= start
        },
        "last stable offset": log.last_stable_offset,
    }


def _epochs(log: Log, start: int) -> list[tuple[int, int]]:
    """The leader epochs of the records from there on."""
    epochs = log.leader_epochs
    return [
        (epoch, max(begins, start))
        for (epoch, begins), (_, end) in zip(epochs, [*epochs[1:], (-1, log.log_end_offset)], strict=False)
        if max(begins, start) < end
    ]

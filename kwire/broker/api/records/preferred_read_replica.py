"""Selection of a replica in the consumer's rack from which the consumer should fetch. KIP-392."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole
    from kwire.broker.replication.remote_replicas import RemoteReplicas


def preferred_read_replica(
    node: BrokerRole, led: RemoteReplicas, fetch_offset: int, *, rack: str, listener: str
) -> int | None:
    """Return the follower from which the consumer should fetch; None means the leader.

    The follower is in the consumer's rack, is in the ISR, is not fenced and has the fetch offset. If several
    followers qualify, the follower with the highest end offset is returned. `led` has the followers' state.
    """
    if not rack:
        return None
    brokers = node.image.brokers
    racks = {
        broker_id: broker.rack
        for broker_id in {node.node_id, *led.isr}
        if (broker := brokers.get(broker_id)) is not None
        and not broker.fenced
        and listener in broker.endpoints
    }
    if racks.get(node.node_id) == rack:
        return None
    found = [
        (state.end_offset, state.caught_up_ms(), broker_id)
        for broker_id, state in led.followers.items()
        if broker_id in led.isr
        and racks.get(broker_id) == rack
        and state.log_start_offset <= fetch_offset <= state.end_offset
    ]
    return max(found)[2] if found else None

"""Requests for a leader's log start and log end offset, after the leader returned OFFSET_OUT_OF_RANGE."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kwire.broker.replication.fetcher_ports import FetcherPorts
from kwire.broker.replication.follower import Follower
from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.list_offsets import (
    EARLIEST,
    LATEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kwire.wire.schema import Message

LeaderOffsetsResult = ErrorCode | tuple[int, int]
"""The leader's log start offset and log end offset, or an error."""
OffsetsByPartition = dict[tuple[str, int], tuple[int, int]]
"""An error code and an offset, by topic and partition index."""


class LeaderOffsets:
    """ListOffsets requests to one leader."""

    def __init__(self, ports: FetcherPorts, address: Callable[[], PeerAddress | None], purpose: str) -> None:
        """`address` returns the leader's address, or None if it is unknown. `purpose`: see `Peers.send`."""
        self._ports = ports
        self._address = address
        self._purpose = purpose

    def find(
        self, followers: Sequence[Follower], on_found: Callable[[Follower, LeaderOffsetsResult], None]
    ) -> None:
        """Request the offsets for each follower; `on_found` is called later, once per follower.

        As in Kafka, the log end offset is requested first.
        """
        ends: OffsetsByPartition = {}

        def take_ends(results: OffsetsByPartition) -> None:
            ends.update(results)

        def take_starts(starts: OffsetsByPartition) -> None:
            nothing = (ErrorCode.NETWORK_EXCEPTION, -1)
            for follower in followers:
                key = (follower.partition.topic, follower.partition.index)
                (end_error, end_offset), (start_error, start_offset) = (
                    results.get(key, nothing) for results in (ends, starts)
                )
                error = end_error or start_error
                on_found(follower, ErrorCode(error) if error else (start_offset, end_offset))

        self._send(followers, LATEST, take_ends)
        self._send(followers, EARLIEST, take_starts)

    def _send(
        self, followers: Sequence[Follower], timestamp: int, then: Callable[[OffsetsByPartition], None]
    ) -> None:
        ports = self._ports
        address = self._address()
        if address is None:
            ports.host.call_soon(lambda: then({}))
            return
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for follower in followers:
            topics.setdefault(follower.partition.topic, []).append(
                ListOffsetsPartition(
                    partition_index=follower.partition.index,
                    current_leader_epoch=follower.leader_epoch,
                    timestamp=timestamp,
                )
            )

        def on_response(response: Message | PeerUnreachable) -> None:
            then(_parse(response) if isinstance(response, ListOffsetsResponse) else {})

        ports.host.peers.send(
            address,
            self._purpose,
            ListOffsetsRequest(
                replica_id=ports.config.node_id,
                topics=[
                    ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()
                ],
            ),
            deadline_ms=ports.host.internode_clock.monotonic_ms() + ports.config.replica_socket_timeout_ms,
            on_response=on_response,
            max_version=ports.list_offsets_version,
        )


def _parse(response: ListOffsetsResponse) -> OffsetsByPartition:
    return {
        (topic.name, found.partition_index): (found.error_code, found.offset)
        for topic in response.topics
        for found in topic.partitions
    }

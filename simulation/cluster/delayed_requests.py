"""Requests that are delayed until the worst moment, which random latencies miss in thousands of seeds.

KIP-903: a leader sends an AlterPartition request that adds a follower to the ISR. The request arrives after
the follower has restarted without its data, so it is delayed for longer than the follower's session timeout.

Generations: a member's offset commit arrives after other members have got its partitions and committed later
offsets, and just before a member fetches the committed offsets.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from kwire.testing.network import Connection
from kwire.testing.simulated.nodes import ClusterNode
from kwire.wire.messages.alter_partition import AlterPartitionRequest
from kwire.wire.messages.offset_commit import OffsetCommitRequest
from kwire.wire.messages.offset_fetch import OffsetFetchRequest
from simulation.cluster.environment import ClusterEnvironment
from simulation.cluster.fault_injector import ClusterFaultInjector

CHECK_INTERVAL_MS: Final = 20
PAUSE_MS: Final = 1_500
MEMBER_EXPIRED_MS: Final = 3_200
"""The delay of a commit. It exceeds the member's session timeout and the member's request timeout."""
API_KEY: Final = struct.Struct(">4xh")
"""The layout of a request frame up to the API key, which follows the size prefix."""


class DelayedAlterPartition:
    """A delay of AlterPartition requests, until the joining follower is back without its data."""

    def __init__(self, environment: ClusterEnvironment, injector: ClusterFaultInjector) -> None:
        self._environment = environment
        self._injector = injector
        self._follower: ClusterNode | None = None
        """The follower that was replaced and is not registered again yet."""
        self._delayed: list[Connection] = []
        self._paused_until_ms = 0
        environment.network.on_request = self._on_request

    def _on_request(self, connection: Connection, frame: bytes) -> None:
        if API_KEY.unpack_from(frame)[0] != AlterPartitionRequest.API_KEY:
            return
        if self._follower is not None:
            # Until the follower has registered again, the controller cannot know about the restart.
            self._delayed.append(connection)
            connection.to_server.stall()
        elif not self._injector.is_stopped and self._environment.now_ms >= self._paused_until_ms:
            self._choose_follower(connection)

    def _choose_follower(self, connection: Connection) -> None:
        nodes, injector = self._environment.nodes.values(), self._injector
        leader = next((node for node in nodes if node.host.name == connection.client), None)
        for node in nodes:
            if (
                leader is not None
                and node.is_running
                and not node.host.is_paused
                and injector.is_joining_isr(node, leader)
                and not injector.is_relied_on(node)
            ):
                self._follower = node
                self._delayed.append(connection)
                connection.to_server.stall()
                # The follower must not catch up before it is replaced.
                self._environment.network.cut(node.host.name, leader.host.name)
                injector.permanent_cuts = {
                    (node.host.name, leader.host.name),
                    (leader.host.name, node.host.name),
                }
                # Replace the follower after the current event, in which the leader is sending this request.
                self._environment.events.soon.append(partial(injector.replace, node))
                self._environment.events.timers.add(CHECK_INTERVAL_MS, self._check)
                return

    def _check(self) -> None:
        if self._follower is None or not self._is_back(self._follower):
            self._environment.events.timers.add(CHECK_INTERVAL_MS, self._check)
            return
        self._follower = None
        self._paused_until_ms = self._environment.now_ms + PAUSE_MS
        late, self._delayed = self._delayed, []
        for connection in late:
            connection.to_server.resume()
        self._injector.permanent_cuts = set()
        self._injector.heal()

    def _is_back(self, node: ClusterNode) -> bool:
        """Return whether the controller has registered the node's current process and unfenced it."""
        known = self._environment.invariants.image.brokers.get(node.node_id)
        return (
            node.is_running
            and known is not None
            and not known.fenced
            and known.broker_epoch == node.node.lifecycle.broker_epoch
        )


class DelayedCommits:
    """A delay of one offset commit at a time, until its sender has expired and a member fetches offsets."""

    def __init__(self, environment: ClusterEnvironment, injector: ClusterFaultInjector, members: str) -> None:
        """Delay offset commits of clients whose names begin with `members`."""
        self._environment = environment
        self._injector = injector
        self._members = members
        self._delayed: Connection | None = None
        self._since_ms = 0
        environment.network.on_request = self._on_request

    def _on_request(self, connection: Connection, frame: bytes) -> None:
        if not connection.client.startswith(self._members):
            return
        (api_key,) = API_KEY.unpack_from(frame)
        waited_ms = self._environment.now_ms - self._since_ms
        if self._delayed is None and api_key == OffsetCommitRequest.API_KEY and waited_ms > PAUSE_MS:
            if not self._injector.is_stopped:
                self._delayed, self._since_ms = connection, self._environment.now_ms
                connection.to_server.stall()
                self._environment.events.timers.add(CHECK_INTERVAL_MS, self._check)
        elif (
            self._delayed is not None
            and api_key == OffsetFetchRequest.API_KEY
            and waited_ms > MEMBER_EXPIRED_MS
        ):
            self._release()

    def _check(self) -> None:
        if self._delayed is not None and self._injector.is_stopped:
            self._release()
        elif self._delayed is not None:
            self._environment.events.timers.add(CHECK_INTERVAL_MS, self._check)

    def _release(self) -> None:
        late, self._delayed = self._delayed, None
        self._since_ms = self._environment.now_ms
        if late is not None:
            self._environment.note(f"the delayed OffsetCommit of {late.client} arrives")
            late.to_server.resume()

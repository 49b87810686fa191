"""Words that arrive late, made likely: chance alone comes to them in none of thousands of seeds.

What KIP-903 is about: a leader's word that a follower is in sync arrives when that one has lost everything
and lives again. One frame has to take as long as the session of the follower, in whose place the controller
takes nobody else before that is over.

What generations are for: a member's commit arrives when others have taken its partitions over, have committed
more, and are about to ask how far the group is.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from kwire.testing.network import Connection
from kwire.testing.simulated.environment import SimulatedEnvironment
from kwire.testing.simulated.fault_injector import FaultInjector
from kwire.testing.simulated.nodes import ClusterNode
from kwire.wire.messages.alter_partition import AlterPartitionRequest
from kwire.wire.messages.offset_commit import OffsetCommitRequest
from kwire.wire.messages.offset_fetch import OffsetFetchRequest

LOOKS_EVERY_MS: Final = 20
RESTS_MS: Final = 1_500
OUT_MS: Final = 3_200
"""After this a member that said nothing is out of its group, and has given up what it asked."""
API_KEY: Final = struct.Struct(">4xh")
"""In a request's frame."""


class Ambush:
    """See the module. It begins when it is made, and ends with the trouble."""

    def __init__(self, world: SimulatedEnvironment, trouble: FaultInjector) -> None:
        self._world = world
        self._trouble = trouble
        self._follower: ClusterNode | None = None
        """Who was replaced, and is not back."""
        self._late: list[Connection] = []
        self._rests_until_ms = 0
        world.network.on_request = self._asked

    def _asked(self, connection: Connection, frame: bytes) -> None:
        if API_KEY.unpack_from(frame)[0] != AlterPartitionRequest.API_KEY:
            return
        if self._follower is not None:
            # Any word that arrives before the follower is back is true, as far as anybody can know.
            self._late.append(connection)
            connection.to_server.stall()
        elif not self._trouble.is_stopped and self._world.now_ms >= self._rests_until_ms:
            self._choose(connection)

    def _choose(self, connection: Connection) -> None:
        nodes, trouble = self._world.nodes.values(), self._trouble
        leader = next((node for node in nodes if node.host.name == connection.client), None)
        for node in nodes:
            if (
                leader is not None
                and node.is_running
                and not node.host.is_paused
                and trouble.is_joining_isr(node, leader)
                and not trouble.is_relied_on(node)
            ):
                self._follower = node
                self._late.append(connection)
                connection.to_server.stall()
                # It must not have caught up by then.
                self._world.network.cut(node.host.name, leader.host.name)
                trouble.permanent_cuts = {
                    (node.host.name, leader.host.name),
                    (leader.host.name, node.host.name),
                }
                # Not now, in the middle of what the leader does.
                self._world.events.soon.append(partial(trouble.replace, node))
                self._world.events.timers.add(LOOKS_EVERY_MS, self._look)
                return

    def _look(self) -> None:
        if self._follower is None or not self._is_back(self._follower):
            self._world.events.timers.add(LOOKS_EVERY_MS, self._look)
            return
        self._follower = None
        self._rests_until_ms = self._world.now_ms + RESTS_MS
        late, self._late = self._late, []
        for connection in late:
            connection.to_server.resume()
        self._trouble.permanent_cuts = set()
        self._trouble.heal()

    def _is_back(self, node: ClusterNode) -> bool:
        """Whether the controller knows the process that runs, and has unfenced it."""
        known = self._world.invariants.image.brokers.get(node.node_id)
        return (
            node.is_running
            and known is not None
            and not known.fenced
            and known.broker_epoch == node.node.lifecycle.broker_epoch
        )


class LateCommits:
    """Holds back commits of a group's members; see the module."""

    def __init__(self, world: SimulatedEnvironment, trouble: FaultInjector, members: str) -> None:
        """`members` is what the names of the members begin with."""
        self._world = world
        self._trouble = trouble
        self._members = members
        self._late: Connection | None = None
        self._since_ms = 0
        world.network.on_request = self._asked

    def _asked(self, connection: Connection, frame: bytes) -> None:
        if not connection.client.startswith(self._members):
            return
        (api_key,) = API_KEY.unpack_from(frame)
        waited_ms = self._world.now_ms - self._since_ms
        if self._late is None and api_key == OffsetCommitRequest.API_KEY and waited_ms > RESTS_MS:
            if not self._trouble.is_stopped:
                self._late, self._since_ms = connection, self._world.now_ms
                connection.to_server.stall()
                self._world.events.timers.add(LOOKS_EVERY_MS, self._look)
        elif self._late is not None and api_key == OffsetFetchRequest.API_KEY and waited_ms > OUT_MS:
            self._let_go()

    def _look(self) -> None:
        if self._late is not None and self._trouble.is_stopped:
            self._let_go()
        elif self._late is not None:
            self._world.events.timers.add(LOOKS_EVERY_MS, self._look)

    def _let_go(self) -> None:
        late, self._late = self._late, None
        self._since_ms = self._world.now_ms
        if late is not None:
            self._world.note(f"a commit of {late.client} arrives late")
            late.to_server.resume()

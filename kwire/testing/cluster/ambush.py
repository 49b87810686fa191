"""What KIP-903 is about, made likely: a leader's word that a follower is in sync arrives late, when that one
has lost everything and lives again.

Chance alone comes to it in none of thousands of seeds: one frame has to take as long as the session of the
follower, in whose place the controller takes nobody else before that is over.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from kwire.testing.cluster.nodes import ClusterNode
from kwire.testing.cluster.trouble import Trouble
from kwire.testing.cluster.world import World
from kwire.testing.network import Connection
from kwire.wire.messages.alter_partition import AlterPartitionRequest

LOOKS_EVERY_MS: Final = 20
RESTS_MS: Final = 1_500
API_KEY: Final = struct.Struct(">4xh")
"""In a request's frame."""


class Ambush:
    """See the module. It begins when it is made, and ends with the trouble."""

    def __init__(self, world: World, trouble: Trouble) -> None:
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
            connection.out.stall()
        elif not self._trouble.is_over and self._world.now_ms >= self._rests_until_ms:
            self._choose(connection)

    def _choose(self, connection: Connection) -> None:
        nodes, trouble = self._world.nodes.values(), self._trouble
        leader = next((node for node in nodes if node.host.name == connection.client), None)
        for node in nodes:
            if (
                leader is not None
                and node.is_running
                and not node.host.is_paused
                and trouble.is_to_join(node, leader)
                and not trouble.is_relied_on(node)
            ):
                self._follower = node
                self._late.append(connection)
                connection.out.stall()
                # It must not have caught up by then.
                self._world.network.cut(node.host.name, leader.host.name)
                trouble.kept_cuts = {
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
            connection.out.go_on()
        self._trouble.kept_cuts = set()
        self._trouble.heal()

    def _is_back(self, node: ClusterNode) -> bool:
        """Whether the controller knows the process that runs, and has unfenced it."""
        known = self._world.watch.image.brokers.get(node.node_id)
        return (
            node.is_running
            and known is not None
            and not known.fenced
            and known.broker_epoch == node.node.life.broker_epoch
        )

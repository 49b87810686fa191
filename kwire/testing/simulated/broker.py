"""One broker of a simulated cluster, as a test asks it to fail: in the words of `kwire.testing.Broker`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kwire.testing.simulated.environment import SimulatedEnvironment
    from kwire.testing.simulated.nodes import ClusterNode


class SimulatedBroker:
    """See the module. As trouble may come first, nothing happens to one that is so already."""

    def __init__(self, world: SimulatedEnvironment, node_id: int) -> None:
        self.node_id = node_id
        self._environment = world

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._node.is_running

    def crash(self) -> None:
        """End it as if its process were killed. It comes back by `start`, or when trouble has it come."""
        if self.is_running:
            self._environment.note(f"--- {self._node.name} is killed by the test")
            self._node.die()

    def start(self) -> None:
        """Start it with its data, after a crash."""
        if not self.is_running:
            self._environment.note(f"--- {self._node.name} is started by the test")
            self._node.start()

    @property
    def _node(self) -> ClusterNode:
        return self._environment.nodes[self.node_id]

"""A broker of a simulated cluster, with methods as in `kwire.testing.Broker`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kwire.testing.simulated.environment import SimulatedEnvironment
    from kwire.testing.simulated.nodes import ClusterNode


class SimulatedBroker:
    """A broker that a test can kill and start.

    `crash` has no effect if a fault has killed the process already, and `start` has none if it is running.
    """

    def __init__(self, environment: SimulatedEnvironment, node_id: int) -> None:
        self.node_id = node_id
        self._environment = environment

    @property
    def is_running(self) -> bool:
        """Whether the process is alive."""
        return self._node.is_running

    def crash(self) -> None:
        """Kill the process. `start`, the end of an injected fault, or `stop_faults` starts it again."""
        if self.is_running:
            self._environment.note(f"--- {self._node.name} is killed by the test")
            self._node.die()

    def start(self) -> None:
        """Start the process again, with its data."""
        if not self.is_running:
            self._environment.note(f"--- {self._node.name} is started by the test")
            self._node.start()

    @property
    def _node(self) -> ClusterNode:
        if not self._environment.nodes:
            raise RuntimeError("the cluster is not running: call start(), or use it in a with statement")
        return self._environment.nodes[self.node_id]

"""Network cuts between the brokers of a cluster in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kwire.testing.lookup_table import describe_choice

if TYPE_CHECKING:
    from kwire.broker.net.loop import Loop
    from kwire.broker.net.peer_link import PeerTransport, TransportEvents
    from kwire.broker.net.peer_links import PeerLinks
    from kwire.broker.net.running_node import RunningNode
    from kwire.host.host import PeerAddress

REASON = "disconnected by the test"


class BrokerLinks:
    """The network links between nodes. Cuts affect both directions. Can be used from any thread."""

    def __init__(self, ports: Mapping[int, Iterable[int]]) -> None:
        """Create links without cuts. `ports` maps node ids to the ports on which the nodes listen."""
        self._node_of = {port: node_id for node_id, several in ports.items() for port in several}
        self._cut: set[frozenset[int]] = set()
        self._nodes: dict[int, _NodeLinks] = {}
        self._lock = threading.Lock()

    def attach(self, node_id: int, running: RunningNode) -> None:
        """Intercept the outgoing connections of a node that has started."""
        from kwire.broker.net.peer_links import PeerLinks

        peers = running.loop.peers
        assert isinstance(peers, PeerLinks)
        with self._lock:
            self._nodes[node_id] = node = _NodeLinks(self, node_id, running.loop, peers)
        running.loop.call_from_thread(node.intercept_dial)

    def disconnect(self, one: int, other: int) -> None:
        """Cut the network between two nodes. Requests in flight are lost.

        Raises LookupError for an unknown id.
        """
        self.check_id(one)
        self.check_id(other)
        with self._lock:
            self._cut.add(frozenset((one, other)))
            attached = [self._nodes[each] for each in (one, other) if each in self._nodes]
        for node in attached:
            node.loop.call_from_thread(node.close_cut_connections)

    def check_id(self, node_id: int) -> None:
        """Raise LookupError if there is no node with this id."""
        nodes = sorted({*self._node_of.values()})
        if node_id not in nodes:
            raise LookupError(f"there is no broker {node_id!r}: {describe_choice(nodes)}")

    def heal(self) -> None:
        """Remove all cuts."""
        with self._lock:
            self._cut.clear()

    @property
    def any_cut(self) -> bool:
        """Whether any two nodes are disconnected."""
        return bool(self._cut)

    def is_cut(self, node_id: int, to: PeerAddress) -> bool:
        """Return whether the network between a node and the node at the address `to` is cut."""
        with self._lock:
            return frozenset((node_id, self._node_of.get(to.port, node_id))) in self._cut


class _NodeLinks:
    """The outgoing connections of one node. All methods except `__init__` run in the node's loop."""

    def __init__(self, links: BrokerLinks, node_id: int, loop: Loop, peers: PeerLinks) -> None:
        self.loop = loop
        self._links = links
        self._node_id = node_id
        self._peers = peers
        self._dial = peers.dial

    def intercept_dial(self) -> None:
        """Replace the node's dial function, and close connections to nodes that are disconnected already."""
        self._peers.dial = self._dial_unless_cut
        self.close_cut_connections()

    def close_cut_connections(self) -> None:
        """Close the connections to nodes that are disconnected."""
        self._peers.disconnect(self._is_cut, REASON)

    def _is_cut(self, to: PeerAddress) -> bool:
        return self._links.is_cut(self._node_id, to)

    def _dial_unless_cut(self, to: PeerAddress, handler: TransportEvents, listener: str) -> PeerTransport:
        return (
            _RefusedConnection(self.loop, handler) if self._is_cut(to) else self._dial(to, handler, listener)
        )


class _RefusedConnection:
    """A connection attempt that fails."""

    def __init__(self, loop: Loop, handler: TransportEvents) -> None:
        self._handler: TransportEvents | None = handler
        loop.call_soon(self._refuse)

    def _refuse(self) -> None:
        if self._handler is not None:
            self._handler.closed(REASON)

    def send(self, frame: bytes) -> None:
        """Drop the frame, since the connection was never open."""

    def close(self) -> None:
        self._handler = None

"""Which nodes of a cluster in one process do not reach each other: what stands before their sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kwire.broker.net.loop import Loop
    from kwire.broker.net.peer_link import PeerTransport, TransportEvents
    from kwire.broker.net.peer_links import PeerLinks
    from kwire.broker.net.running_node import RunningNode
    from kwire.host.host import PeerAddress

REASON = "cut off by the test"


class BrokerLinks:
    """BrokerLinks between pairs of nodes, in both directions. Called from any thread."""

    def __init__(self, ports: Mapping[int, Iterable[int]]) -> None:
        """`ports` are those on which each node listens."""
        self._node_of = {port: node_id for node_id, several in ports.items() for port in several}
        self._cut: set[frozenset[int]] = set()
        self._nodes: dict[int, _NodeLinks] = {}
        self._lock = threading.Lock()

    def attach(self, node_id: int, running: RunningNode) -> None:
        """A node has started: from now on what it sends to others goes past here."""
        from kwire.broker.net.peer_links import PeerLinks

        peers = running.loop.peers
        assert isinstance(peers, PeerLinks)
        with self._lock:
            self._nodes[node_id] = gate = _NodeLinks(self, node_id, running.loop, peers)
        running.loop.call_from_thread(gate.intercept_dial)

    def disconnect(self, one: int, other: int) -> None:
        """Neither reaches the other, and what they were saying to each other is lost. KeyError: no such."""
        nodes = sorted({*self._node_of.values()})
        for each in (one, other):
            if each not in nodes:
                raise KeyError(f"there is no broker {each}: name one of {', '.join(map(str, nodes))}")
        with self._lock:
            self._cut.add(frozenset((one, other)))
            gates = [self._nodes[each] for each in (one, other) if each in self._nodes]
        for gate in gates:
            gate.loop.call_from_thread(gate.close_cut_connections)

    def heal(self) -> None:
        """All reach each other."""
        with self._lock:
            self._cut.clear()

    @property
    def any_cut(self) -> bool:
        """Whether somebody does not reach another."""
        return bool(self._cut)

    def is_cut(self, node_id: int, to: PeerAddress) -> bool:
        """Whether a node does not reach an address."""
        with self._lock:
            return frozenset((node_id, self._node_of.get(to.port, node_id))) in self._cut


class _NodeLinks:
    """Between one node and all others; but for the construction in the thread of the node's loop."""

    def __init__(self, cuts: BrokerLinks, node_id: int, loop: Loop, peers: PeerLinks) -> None:
        self.loop = loop
        self._links = cuts
        self._node_id = node_id
        self._peers = peers
        self._dial = peers.dial

    def intercept_dial(self) -> None:
        """Be asked for each connection from now on; those that there are may have to end."""
        self._peers.dial = self._dial_unless_cut
        self.close_cut_connections()

    def close_cut_connections(self) -> None:
        """End the connections that are cut."""
        self._peers.disconnect(self._is_cut, REASON)

    def _is_cut(self, to: PeerAddress) -> bool:
        return self._links.is_cut(self._node_id, to)

    def _dial_unless_cut(self, to: PeerAddress, hears: TransportEvents) -> PeerTransport:
        return _RefusedConnection(self.loop, hears) if self._is_cut(to) else self._dial(to, hears)


class _RefusedConnection:
    """A connection that cannot be made."""

    def __init__(self, loop: Loop, hears: TransportEvents) -> None:
        self._hears: TransportEvents | None = hears
        loop.call_soon(self._refuse)

    def _refuse(self) -> None:
        if self._hears is not None:
            self._hears.closed(REASON)

    def send(self, frame: bytes) -> None:
        """Nothing is sent: it was never open."""

    def close(self) -> None:
        self._hears = None

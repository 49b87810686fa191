"""Listeners, connections and the turn: everything between the loop and a node.

`SocketServer` is synchronous and runs inside a `Loop`. `serve` runs both under trio with a real node,
for the command line and for tests that run under trio.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Iterator
from functools import partial
from select import EPOLLIN
from time import perf_counter
from typing import TYPE_CHECKING

from kwire.broker.api.request.request_metrics import RequestMetrics
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.net.connection import Connection
from kwire.broker.net.connection_quotas import ConnectionQuotas
from kwire.broker.net.listeners import BindError, Listener, bind
from kwire.broker.net.loop import Loop
from kwire.broker.net.loop_events import LoopEvent, Wait
from kwire.broker.net.receiver import SCRATCH_BYTES, ServedNode
from kwire.broker.net.socket_settings import SYSTEM_DEFAULT, SocketSettings

if TYPE_CHECKING:
    from kwire.broker.config.listeners import ListenerEndpoint

ACCEPTS_PER_TURN = 64
ACCEPT_RETRY_MS = 1_000
LOCAL_SEND_BUFFER_BYTES = 200 << 10
"""Of a connection within this machine, unless one is given.

There is no way to fill, so that a buffer which grows by itself, to megabytes, only has data wait in it.
"""
DRAIN_MS = 5_000
"""How long a stopping broker waits for its clients to take their last replies."""


def new_connection_quotas(settings: SocketSettings) -> ConnectionQuotas:
    """Counts of nobody yet."""
    return ConnectionQuotas(
        max_connections=settings.max_connections,
        max_connections_per_ip=settings.max_connections_per_ip,
        max_connections_per_ip_overrides=settings.max_connections_per_ip_overrides,
        max_connections_by_listener=settings.max_connections_by_listener,
        inter_broker_listener=settings.inter_broker_listener,
    )


class SocketServer:
    """The connections of one node."""

    def __init__(self, loop: Loop, node: ServedNode, settings: SocketSettings) -> None:
        self.loop = loop
        self.node = node
        self.settings = settings
        self.logger = loop.logger("kwire.net")
        self.requests_logger = loop.logger("kwire.dispatch")
        self.request_metrics = RequestMetrics(perf_counter)
        """What this node has answered: by the clock of the loop's turns."""
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        """Where every connection receives; copied from before the next one does."""
        self.draining = False
        self.quotas = {role: new_connection_quotas(settings) for role in ListenerRole}
        """Broker and controller each count their own connections: neither can keep the other's away."""
        self.listeners: list[Listener] = []
        self._requested_listeners: dict[str, object] = {}
        """What was asked for under each name, last: it may not have come to that."""
        self._orphaned: list[Connection] = []
        """Connections of listeners that are gone, to be closed when this turn has sent its replies."""
        self.connections: dict[int, Connection] = {}
        self._next_channel_id = 0
        self._dirty: list[Connection] = []
        self._again: list[Connection] = []
        self._closed_in_turn = False
        self._drained = LoopEvent()
        loop.end_turn = self._end_turn

    @property
    def frame_handler(self) -> ServedNode:
        return self.node

    def update_quotas(self, settings: SocketSettings) -> None:
        """Go by other connection limits from now on (KIP-402). Who is connected stays."""
        for quotas in self.quotas.values():
            quotas.max_connections = settings.max_connections
            quotas.max_connections_per_ip = settings.max_connections_per_ip
            quotas.max_connections_per_ip_overrides = dict(settings.max_connections_per_ip_overrides)
            quotas.max_connections_by_listener = dict(settings.max_connections_by_listener)
        for listener in self.listeners:
            self._start_accepting(listener)

    # --- listening

    def listen(self, listener: Listener) -> None:
        """Accept connections from now on. BindError when somebody else was faster."""
        try:
            listener.sock.listen(self.settings.listen_backlog)
        except OSError as error:
            raise BindError(f"cannot listen on {listener.address}: {error.strerror}") from error
        if listener.role is ListenerRole.BROKER:
            self._requested_listeners.setdefault(listener.name, listener)
        self.listeners.append(listener)
        self._count_listeners()
        self._start_accepting(listener)

    def change_listeners(self, endpoints: Iterable[ListenerEndpoint]) -> None:
        """Take up those whose names are new, and give up those that are not among these. KIP-226.

        Those of the controller stay as they were at the start.
        As Kafka: one that is there stays where it is, and one that cannot have its address is told in the
        log, and not tried again before it was given up. What it takes to look hosts up is done beside.
        """
        wanted = {endpoint.name: endpoint for endpoint in endpoints}
        for name in [name for name in self._requested_listeners if name not in wanted]:
            self._remove_listener(name)
        for name, endpoint in wanted.items():
            if name not in self._requested_listeners and not self.draining:
                self._requested_listeners[name] = endpoint
                self._add_listener(endpoint)

    def _add_listener(self, endpoint: ListenerEndpoint) -> None:
        name = endpoint.name

        def bound(outcome: Listener | BaseException) -> None:
            if isinstance(outcome, BaseException):
                self.logger.error("%s is not served: %s", name, outcome)
                return
            if self.draining or self._requested_listeners.get(name) is not endpoint:
                outcome.sock.close()
                return
            try:
                self.listen(outcome)
            except BindError as error:
                outcome.sock.close()
                self.logger.error("%s is not served: %s", name, error)
                return
            self.logger.info("%s is served at %s", name, outcome.address)

        work = partial(bind, name, endpoint.host, endpoint.port, self.settings)
        self.loop.run_in_worker(work, bound)

    def _remove_listener(self, name: str) -> None:
        del self._requested_listeners[name]
        for listener in [listener for listener in self.listeners if listener.name == name]:
            self._stop_accepting(listener)
            self.listeners.remove(listener)
            listener.sock.close()
            self.logger.info("%s is no longer served at %s", name, listener.address)
        self._count_listeners()
        orphaned = [connection for connection in self.connections.values() if connection.listener == name]
        self._orphaned += orphaned
        if orphaned and not self.loop.in_turn:
            self.loop.wake()

    def _count_listeners(self) -> None:
        for role, quotas in self.quotas.items():
            quotas.listeners = sum(listener.role is role for listener in self.listeners)

    def _start_accepting(self, listener: Listener) -> None:
        if listener not in self.listeners or self.draining:
            return
        if not listener.accepting and self.quotas[listener.role].has_capacity(listener.name):
            listener.accepting = True
            self.loop.watch(listener.fd, EPOLLIN, lambda mask: self._accept(listener))

    def _stop_accepting(self, listener: Listener) -> None:
        if listener.accepting:
            listener.accepting = False
            self.loop.unwatch(listener.fd)

    def _accept(self, listener: Listener) -> None:
        quotas = self.quotas[listener.role]
        for _ in range(ACCEPTS_PER_TURN):
            if not quotas.has_capacity(listener.name):
                self.logger.info(
                    "%s has as many connections as it may: accepting no more for now", listener.name
                )
                self._stop_accepting(listener)
                return
            try:
                sock, address = listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # The connection stays in the backlog: asking again at once would only burn time.
                    self.logger.error("cannot accept connections for a second: %s", error.strerror)
                    self._stop_accepting(listener)
                    self.loop.schedule(ACCEPT_RETRY_MS, lambda: self._start_accepting(listener))
                    return
                continue  # the peer gave up before it was accepted
            ip = address[0].removeprefix("::ffff:") if "." in address[0] else address[0]
            if not quotas.admit(listener.name, ip):
                self.logger.info("%s is refused: it has %d connections already", ip, quotas.ip_limit(ip))
                sock.close()
                continue
            try:
                self._connect(listener, sock, (ip, address[1]))
            except OSError as error:
                quotas.release(listener.name, ip)
                self.logger.info("%s went away while connecting: %s", ip, error.strerror)
                sock.close()

    def _connect(self, listener: Listener, sock: socket.socket, peer: tuple[str, int]) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        send_buffer_bytes = self.settings.send_buffer_bytes
        if send_buffer_bytes == SYSTEM_DEFAULT and sock.getsockname()[0] == sock.getpeername()[0]:
            send_buffer_bytes = LOCAL_SEND_BUFFER_BYTES
        if send_buffer_bytes != SYSTEM_DEFAULT:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        self._next_channel_id += 1
        connection = Connection(self, sock, self._next_channel_id, listener, peer)
        self.connections[connection.channel.id] = connection
        self._watch_idle(connection, self.settings.max_idle_ms)
        self.logger.debug("%r connected", connection)
        if self.quotas[listener.role].is_exceeded():
            self._close_least_recently_used(listener.role)

    def _watch_idle(self, connection: Connection, delay_ms: int) -> None:
        """One timer a connection, looked at once in its idle time: activity costs nothing but a note."""

        def look() -> None:
            if connection.closed:
                return
            idle_ms = self.loop.internode_clock.monotonic_ms() - connection.last_active_ms
            if idle_ms >= self.settings.max_idle_ms:
                self.close(connection, f"idle for {idle_ms} ms (connections.max.idle.ms)")
            else:
                self._watch_idle(connection, self.settings.max_idle_ms - idle_ms)

        if self.settings.max_idle_ms >= 0:
            connection.idle_timer = self.loop.internode_clock.schedule(delay_ms, look)

    def _close_least_recently_used(self, role: ListenerRole) -> None:
        """A protected listener went beyond `max.connections`: somebody else's connection makes room."""
        quotas = self.quotas[role]
        others = [
            connection
            for connection in self.connections.values()
            if connection.channel.role is role and not quotas.is_protected(connection.listener)
        ]
        if others:
            oldest = min(others, key=lambda connection: connection.last_active_ms)
            self.close(oldest, "it was the least recently used, and max.connections is exceeded")

    # --- the turn

    def mark_dirty(self, connection: Connection) -> None:
        """See to this connection when the turn ends."""
        if not connection.dirty and not connection.closed:
            connection.dirty = True
            self._dirty.append(connection)
            if not self.loop.in_turn:
                self.loop.wake()

    def _end_turn(self) -> bool:
        again = self._again
        if again:
            self._again = []
            for connection in again:
                connection.resume()
        self.node.end_turn(self._send)
        self._closed_in_turn = False
        self._send()
        if self._orphaned:
            orphaned, self._orphaned = self._orphaned, []
            for connection in orphaned:
                self.close(connection, "its listener is gone")
        if self.draining:
            self._close_drained()
        return bool(self._again or self._dirty or self._closed_in_turn)

    def _send(self) -> None:
        """Send what is ready, on the connections that somebody has looked at."""
        dirty = self._dirty
        if dirty:
            self._dirty = []
            for connection in dirty:
                connection.dirty = False
                if not connection.closed and connection.finish_turn():
                    self._again.append(connection)

    # --- closing

    def refuse(self, connection: Connection, reason: str) -> None:
        """Close the connection of a peer who broke the protocol."""
        self.logger.warning("%r is closed: %s", connection, reason)
        self._close(connection)

    def close(self, connection: Connection, reason: str) -> None:
        """Close a connection for a reason that is nobody's fault."""
        if not connection.closed:
            self.logger.debug("%r is closed: %s", connection, reason)
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.closed:
            return
        connection.release()
        self._closed_in_turn = True
        del self.connections[connection.channel.id]
        self.quotas[connection.channel.role].release(connection.listener, connection.peer[0])
        try:
            self.node.channel_closed(connection.channel)
        except Exception:
            self.logger.exception("%r: forgetting the connection failed", connection)
        for listener in self.listeners:
            self._start_accepting(listener)

    def kill(self) -> None:
        """Close everything now: nobody is answered, and what was staged is not written."""
        self.loop.end_turn = lambda: False
        self._stop_listening()
        for connection in list(self.connections.values()):
            self.close(connection, "the broker is killed")

    def _stop_listening(self) -> None:
        self.draining = True
        for listener in self.listeners:
            self._stop_accepting(listener)
            listener.sock.close()
        self.listeners.clear()

    def drain(self, timeout_ms: int = DRAIN_MS) -> Iterator[Wait]:
        """Stop accepting and receiving, answer what was received, and close every connection.

        Replies that wait for something are completed by the node with what they have. Peers that do not take
        their replies within `timeout_ms` (real time) are closed without them.
        """
        self._stop_listening()
        for connection in list(self.connections.values()):
            connection.drain()
        self.node.begin_shutdown()
        self.loop.wake()
        yield Wait((self._drained,), timeout_ms / 1000)
        for connection in list(self.connections.values()):
            self.close(connection, "it did not take its replies before the broker stopped")

    def _close_drained(self) -> None:
        for connection in [c for c in self.connections.values() if c.is_drained]:
            self.close(connection, "the broker stops")
        if not self.connections:
            self._drained.set()

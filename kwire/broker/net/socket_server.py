"""The socket server, which connects a node to its clients: listeners, connections and the end of each turn.

`SocketServer` is synchronous and runs inside a `Loop`.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from kwire.broker.api.request.request_metrics import RequestMetrics
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.net.connection import Connection
from kwire.broker.net.connection_quotas import ConnectionQuotas
from kwire.broker.net.connection_rates import ConnectionRates
from kwire.broker.net.handshake_error import HandshakeError
from kwire.broker.net.lingering_sockets import LingeringSockets
from kwire.broker.net.listeners import BindError, Listener, bind, bind_error
from kwire.broker.net.loop import Loop
from kwire.broker.net.loop_events import LoopEvent, Wait
from kwire.broker.net.receiver import SCRATCH_BYTES, ServedNode
from kwire.broker.net.socket_settings import SYSTEM_DEFAULT, SocketSettings, configure
from kwire.broker.net.unexpected_protocols import UnexpectedProtocol
from kwire.host.peer_log_limit import PeerLogLimit
from kwire.host.platform.events import READABLE
from kwire.host.system_socket import Socket, accept
from kwire.host.system_time import perf_counter
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from kwire.broker.config.listeners import ListenerEndpoint
    from kwire.broker.metadata.image import MetadataImage

ACCEPTS_PER_TURN = 64
ACCEPT_RETRY_MS = 1_000
LOCAL_SEND_BUFFER_BYTES = 200 << 10
"""The send buffer of connections within this machine, unless the configuration sets one.

The kernel would let the buffer grow to megabytes. Without network latency that has no benefit: data only
waits longer in the buffer.
"""
MAX_REFUSED = 1_000
"""The number of connections beyond the quotas of their IP addresses that stay open for the throttle time."""
MAX_HANDSHAKE_MS = 10_000
"""The time after which a connection is closed whose handshake is not complete."""
DRAIN_MS = 5_000
"""The longest wait for clients to read their last responses during shutdown."""


def new_connection_quotas(settings: SocketSettings) -> ConnectionQuotas:
    """Return quotas with the limits of `settings` and no connections."""
    return ConnectionQuotas(
        max_connections=settings.max_connections,
        max_connections_per_ip=settings.max_connections_per_ip,
        max_connections_per_ip_overrides=settings.max_connections_per_ip_overrides,
        max_connections_by_listener=settings.max_connections_by_listener,
        inter_broker_listener=settings.inter_broker_listener,
    )


class SocketServer:
    """The listeners and connections of one node."""

    def __init__(self, loop: Loop, node: ServedNode, settings: SocketSettings) -> None:
        self.loop = loop
        self.node = node
        self.settings = settings
        self.logger = loop.logger("kwire.net")
        self.requests_logger = loop.logger("kwire.dispatch")
        self.request_metrics = RequestMetrics(perf_counter)
        """Metrics of handled requests, timed with `perf_counter` like the turns of the loop."""
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        """The receive buffer that all connections share. Each connection copies its data out at once."""
        self.draining = False
        self.quotas = {role: new_connection_quotas(settings) for role in ListenerRole}
        """Broker and controller listeners have separate quotas, so that neither can exhaust the other's."""
        self.rates = {role: ConnectionRates(settings.rate_limits) for role in ListenerRole}
        self._known_quotas: object = None
        self._refused = 0
        """The number of open connections that exceed the quota of their IP address."""
        self.listeners: list[Listener] = []
        self._requested_listeners: dict[str, object] = {}
        """The last requested endpoint of each listener name, even if binding it has failed."""
        self._orphaned: list[Connection] = []
        """Connections of removed listeners, to be closed after this turn has sent its responses."""
        self.connections: dict[int, Connection] = {}
        self.accepted: Counter[str] = Counter()
        """Accepted connections since the start, by listener."""
        self.closed: Counter[str] = Counter()
        """Closed connections since the start, by listener."""
        self._next_channel_id = 0
        self._lingering = LingeringSockets(loop, self.scratch)
        self._log_limit = PeerLogLimit()
        self._dirty: list[Connection] = []
        self._again: list[Connection] = []
        self._closed_in_turn = False
        self._drained = LoopEvent()
        loop.end_turn = self._end_turn

    @property
    def frame_handler(self) -> ServedNode:
        return self.node

    def update_quotas(self, settings: SocketSettings) -> None:
        """Apply new connection limits (KIP-402). Existing connections stay open."""
        for quotas in self.quotas.values():
            quotas.max_connections = settings.max_connections
            quotas.max_connections_per_ip = settings.max_connections_per_ip
            quotas.max_connections_per_ip_overrides = dict(settings.max_connections_per_ip_overrides)
            quotas.max_connections_by_listener = dict(settings.max_connections_by_listener)
        for rates in self.rates.values():
            rates.limits = settings.rate_limits
        for listener in self.listeners:
            self._start_accepting(listener)

    def update_ip_quotas(self, image: MetadataImage, _delta: object) -> None:
        """Apply the quotas of IP addresses in new metadata."""
        if image.quotas is not self._known_quotas:
            self._known_quotas = image.quotas
            for rates in self.rates.values():
                rates.set_quotas(image.quotas)

    # --- listeners

    def listen(self, listener: Listener) -> None:
        """Start accepting connections. Raises BindError if, for example, another process uses the address."""
        try:
            listener.sock.listen(self.settings.listen_backlog)
        except OSError as error:
            raise bind_error(listener.name, listener.address, error) from error
        if listener.role is ListenerRole.BROKER:
            self._requested_listeners.setdefault(listener.name, listener)
        self.listeners.append(listener)
        self._count_listeners()
        self._start_accepting(listener)

    def change_listeners(self, endpoints: Iterable[ListenerEndpoint]) -> None:
        """Open new broker listeners, and close broker listeners whose names are not in `endpoints`. KIP-226.

        Controller listeners do not change. As in Kafka, an open listener keeps its address. A failure to bind
        is logged. To try again, remove the listener from the configuration and add it again. A worker thread
        looks up the host names and binds.
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
                self.logger.error("Cannot open listener %s: %s", name, outcome)
                return
            if self.draining or self._requested_listeners.get(name) is not endpoint:
                outcome.sock.close()
                return
            try:
                self.listen(outcome)
            except BindError as error:
                outcome.sock.close()
                self.logger.error("Cannot open listener %s: %s", name, error)
                return
            self.logger.info("Opened listener %s at %s", name, outcome.address)

        work = partial(bind, name, endpoint.host, endpoint.port, self.settings)
        self.loop.run_in_worker(work, bound)

    def _remove_listener(self, name: str) -> None:
        del self._requested_listeners[name]
        for listener in [listener for listener in self.listeners if listener.name == name]:
            self._stop_accepting(listener)
            self.listeners.remove(listener)
            listener.sock.close()
            self.logger.info("Closed listener %s at %s", name, listener.address)
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
            self.loop.watch(listener.fd, READABLE, lambda mask: self._accept(listener))

    def _stop_accepting(self, listener: Listener) -> None:
        if listener.accepting:
            listener.accepting = False
            self.loop.unwatch(listener.fd)

    def _accept(self, listener: Listener) -> None:
        quotas = self.quotas[listener.role]
        for _ in range(ACCEPTS_PER_TURN):
            if not quotas.has_capacity(listener.name):
                self.logger.info(
                    "Listener %s accepts no connections until others close: max.connections is reached",
                    listener.name,
                )
                self._stop_accepting(listener)
                return
            try:
                sock, address = accept(listener.sock)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    if self.loop.give_back_descriptors():
                        continue
                    # The connection stays in the backlog. An immediate retry would waste CPU.
                    self.logger.error(
                        "Cannot accept connections on listener %s, retrying in 1 s: %s. If too many files "
                        "are open, raise the limit (ulimit -n)",
                        listener.name,
                        error.strerror,
                    )
                    self._stop_accepting(listener)
                    self.loop.schedule(ACCEPT_RETRY_MS, lambda: self._start_accepting(listener))
                    return
                continue  # the peer has closed the connection before it was accepted
            ip = address[0].removeprefix("::ffff:") if "." in address[0] else address[0]
            peer = ip, address[1]
            throttle_ms = self._throttle_ms(listener)
            if not throttle_ms:
                self._admit(listener, sock, peer)
                continue
            self._stop_accepting(listener)
            self.loop.schedule(throttle_ms, partial(self._admit_late, listener, sock, peer))
            return

    def _throttle_ms(self, listener: Listener) -> int:
        """Record a connection. Return for how long the listener must accept no others, in ms."""
        rates = self.rates[listener.role]
        if not rates.is_limited:
            return 0
        is_protected = self.quotas[listener.role].is_protected(listener.name)
        return rates.listener_throttle_ms(listener.name, self.loop.monotonic_ms(), is_protected=is_protected)

    def _admit_late(self, listener: Listener, sock: Socket, peer: tuple[str, int]) -> None:
        """Serve a connection after the throttle time of its listener, and accept others again."""
        if listener in self.listeners and not self.draining:
            self._admit(listener, sock, peer)
        else:
            sock.close()
        self._start_accepting(listener)

    def _admit(self, listener: Listener, sock: Socket, peer: tuple[str, int]) -> None:
        """Serve a new connection, unless its IP address has too many, or opens them too fast."""
        quotas, rates, ip = self.quotas[listener.role], self.rates[listener.role], peer[0]
        if rates.is_limited:
            is_protected = quotas.is_protected(listener.name)
            now_ms = self.loop.monotonic_ms()
            throttle_ms = rates.ip_throttle_ms(listener.name, ip, now_ms, is_protected=is_protected)
            if throttle_ms:
                self._close_late(sock, throttle_ms)
                return
        if not quotas.admit(listener.name, ip):
            self.logger.info(
                "Rejected connection from %s: it already has %s (max.connections.per.ip)",
                ip, plural(quotas.ip_limit(ip), "connection"),
            )  # fmt: skip
            sock.close()
            return
        try:
            self._connect(listener, sock, peer)
        except OSError as error:
            quotas.release(listener.name, ip)
            self.logger.info("Connection from %s was lost while accepting it: %s", ip, error.strerror)
            sock.close()

    def _close_late(self, sock: Socket, delay_ms: int) -> None:
        """Close a connection later, so that its client does not reconnect at once."""

        def close() -> None:
            self._refused -= 1
            sock.close()

        if self._refused >= MAX_REFUSED:
            sock.close()
            return
        self._refused += 1
        self.loop.schedule(delay_ms, close)

    def _connect(self, listener: Listener, sock: Socket, peer: tuple[str, int]) -> None:
        send_buffer_bytes = self.settings.send_buffer_bytes
        if send_buffer_bytes == SYSTEM_DEFAULT and sock.getsockname()[0] == sock.getpeername()[0]:
            send_buffer_bytes = LOCAL_SEND_BUFFER_BYTES
        configure(sock, send_buffer_bytes)
        self._next_channel_id += 1
        connection = Connection(self, sock, self._next_channel_id, listener, peer)
        self.connections[connection.channel.id] = connection
        self.accepted[listener.name] += 1
        self._watch_idle(connection)
        self.logger.debug("Accepted connection %s", connection)
        if self.quotas[listener.role].is_exceeded():
            self._close_least_recently_used(listener.role)

    def _watch_idle(self, connection: Connection, idle_ms: int = 0) -> None:
        """Close the connection once it has been idle for `max_idle_ms`, or if its handshake takes too long.

        `idle_ms` is the time for which it has already been idle.
        """

        def check() -> None:
            if connection.closed:
                return
            idle_ms = self.loop.internode_clock.monotonic_ms() - connection.last_active_ms
            if not connection.is_established:
                self._log_failed_handshake(connection, f"it takes longer than {MAX_HANDSHAKE_MS // 1000} s")
                self.close(connection, "its handshake takes too long")
            elif idle_ms >= max_idle_ms >= 0:
                self.close(connection, f"idle for {idle_ms} ms (connections.max.idle.ms)")
            else:
                self._watch_idle(connection, idle_ms)

        max_idle_ms = self.settings.max_idle_ms
        if not connection.is_established:
            delay_ms = MAX_HANDSHAKE_MS
        elif max_idle_ms >= 0:
            delay_ms = max_idle_ms - idle_ms
        else:
            return
        connection.idle_timer = self.loop.internode_clock.schedule(delay_ms, check)

    def _close_least_recently_used(self, role: ListenerRole) -> None:
        """Close the least recently used connection of the listeners that `max.connections` limits."""
        quotas = self.quotas[role]
        others = [
            connection
            for connection in self.connections.values()
            if connection.channel.role is role and not quotas.is_protected(connection.listener)
        ]
        if others:
            oldest = min(others, key=lambda connection: connection.last_active_ms)
            self.close(oldest, "least recently used connection while max.connections is exceeded")

    # --- end of the turn

    def mark_dirty(self, connection: Connection) -> None:
        """Process this connection when the turn ends."""
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
                try:
                    connection.resume()
                except Exception as error:
                    connection.fail(error)
        self.node.end_turn(self._send)
        self._closed_in_turn = False
        self._send()
        if self._orphaned:
            orphaned, self._orphaned = self._orphaned, []
            for connection in orphaned:
                self.close(connection, "its listener was removed")
        if self.draining:
            self._close_drained()
        return bool(self._again or self._dirty or self._closed_in_turn)

    def _send(self) -> None:
        """Send the responses that are ready on dirty connections.

        An exception closes its connection. The others still send: no event would come for them.
        """
        dirty = self._dirty
        if dirty:
            self._dirty = []
            for connection in dirty:
                connection.dirty = False
                try:
                    if not connection.closed and connection.finish_turn():
                        self._again.append(connection)
                except Exception as error:
                    connection.fail(error)

    # --- closing

    def refuse(self, connection: Connection, reason: str) -> None:
        """Close a connection whose peer violated the protocol."""
        self.logger.warning("Closing connection %s: %s", connection, reason)
        self._close(connection)

    def log_unexpected_protocol(self, connection: Connection, protocol: UnexpectedProtocol) -> None:
        """Log a connection whose peer uses another protocol than the listener, at most once per minute."""
        if not self._should_log(connection, protocol):
            return
        sasl = "" if connection.channel.authentication is None else "SASL_"
        if protocol is UnexpectedProtocol.TLS:
            self.logger.warning(
                "Closing connection %s: the peer sent a TLS handshake, but the listener has no TLS. Set "
                "security.protocol=%sPLAINTEXT in the client. Further such connections of this peer are not "
                "logged for a minute",
                *(connection, sasl),
            )
        elif protocol is UnexpectedProtocol.KAFKA:
            self.logger.warning(
                "Closing connection %s: the peer sent a Kafka request without TLS, but the listener has TLS. "
                "Set security.protocol=%sSSL in the client. Further such connections of this peer are not "
                "logged for a minute",
                *(connection, sasl),
            )
        else:
            self.logger.warning(
                "Closing connection %s: the peer sent an HTTP request, but the listener serves Kafka's "
                "protocol. Health checks, metrics and the console have their own port: kwire serve --http. "
                "Further such connections of this peer are not logged for a minute",
                connection,
            )

    def handshake_failed(self, connection: Connection, error: OSError) -> None:
        """Close a connection whose handshake failed, in such a way that the peer receives the alert."""
        reason = error.strerror
        if not isinstance(error, HandshakeError):
            self.close(connection, f"the handshake failed: {reason}")
            return
        if error.protocol is not None:
            self.log_unexpected_protocol(connection, error.protocol)
        else:
            self._log_failed_handshake(connection, str(reason))
        self.logger.debug("Closing connection %s: the handshake failed: %s", connection, reason)
        self._close(connection, lingers=True)

    def _log_failed_handshake(self, connection: Connection, reason: str) -> None:
        if self._should_log(connection, "handshake"):
            self.logger.warning(
                "Closing connection %s: the TLS handshake failed: %s. Further failed handshakes of this peer "
                "are not logged for a minute",
                *(connection, reason),
            )

    def _should_log(self, connection: Connection, kind: Hashable) -> bool:
        return self._log_limit.should_log(
            connection.peer[0], connection.listener, kind, self.loop.monotonic_ms()
        )

    def close(self, connection: Connection, reason: str) -> None:
        """Close a connection for a reason other than a protocol violation."""
        if not connection.closed:
            self.logger.debug("Closing connection %s: %s", connection, reason)
            self._close(connection)

    def _close(self, connection: Connection, *, lingers: bool = False) -> None:
        if connection.closed:
            return
        if lingers and not self.draining:
            self._lingering.add(connection.release_socket())
        else:
            connection.release()
        self._closed_in_turn = True
        del self.connections[connection.channel.id]
        self.closed[connection.listener] += 1
        self.quotas[connection.channel.role].release(connection.listener, connection.peer[0])
        try:
            self.node.channel_closed(connection.channel)
        except Exception:
            self.logger.exception("Cleanup of closed connection %s failed", connection)
        for listener in self.listeners:
            self._start_accepting(listener)

    def kill(self) -> None:
        """Close everything at once, without sending responses or writing staged appends."""
        self.loop.end_turn = lambda: False
        self._stop_listening()
        for connection in list(self.connections.values()):
            self.close(connection, "the broker was killed")

    def _stop_listening(self) -> None:
        self.draining = True
        for listener in self.listeners:
            self._stop_accepting(listener)
            listener.sock.close()
        self.listeners.clear()
        self._lingering.close_all()

    def drain(self, timeout_ms: int = DRAIN_MS) -> Iterator[Wait]:
        """Stop accepting and receiving, respond to received requests, and close every connection.

        The node completes delayed requests with the data that is available. After `timeout_ms` (real time),
        connections are closed even if they have unsent responses.
        """
        self._stop_listening()
        for connection in list(self.connections.values()):
            connection.drain()
        self.node.begin_shutdown()
        self.loop.wake()
        yield Wait((self._drained,), timeout_ms / 1000)
        for connection in list(self.connections.values()):
            self.close(connection, "it did not read its responses before the broker stopped")

    def _close_drained(self) -> None:
        for connection in [c for c in self.connections.values() if c.is_drained]:
            self.close(connection, "the broker is stopping")
        if not self.connections:
            self._drained.set()

"""The settings of sockets and connections."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kwire.broker.net.connection_quotas import UNLIMITED
from kwire.broker.net.connection_rates import RateLimits
from kwire.broker.net.transport_layer import NewTransportLayer, PlaintextTransportLayer, transport_layers
from kwire.host.system_socket import Socket
from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig
    from kwire.broker.security.node_tls import NodeTls

SYSTEM_DEFAULT = -1


class SocketSettings(NamedTuple):
    """The settings of sockets and connections, with Kafka's defaults except for the buffer sizes."""

    request_max_bytes: int = 104_857_600
    max_idle_ms: int = 600_000
    connection_setup_timeout_ms: int = 10_000
    connection_setup_timeout_max_ms: int = 30_000
    listen_backlog: int = 50
    send_buffer_bytes: int = SYSTEM_DEFAULT
    receive_buffer_bytes: int = SYSTEM_DEFAULT
    max_connections: int = UNLIMITED
    max_connections_per_ip: int = UNLIMITED
    max_connections_per_ip_overrides: Mapping[str, int] = {}
    max_connections_by_listener: Mapping[str, int] = {}
    inter_broker_listener: str | None = None
    rate_limits: RateLimits = RateLimits()
    new_transport_layer: NewTransportLayer = PlaintextTransportLayer


def read_socket_settings(config: BrokerConfig, tls: NodeTls | None = None) -> SocketSettings:
    """Return the socket settings of a broker's configuration.

    `tls` has the certificates of the listeners that use TLS.
    """
    return SocketSettings(
        request_max_bytes=config.socket_request_max_bytes,
        max_idle_ms=config.connections_max_idle_ms,
        connection_setup_timeout_ms=config.socket_connection_setup_timeout_ms,
        connection_setup_timeout_max_ms=config.socket_connection_setup_timeout_max_ms,
        listen_backlog=config.socket_listen_backlog_size,
        max_connections=config.max_connections,
        max_connections_per_ip=config.max_connections_per_ip,
        max_connections_per_ip_overrides=config.connection_limits_per_host(),
        max_connections_by_listener=config.connection_limits_per_listener(),
        # Kafka's default of 100 KiB is too small for high latencies, so the default is the system's size.
        send_buffer_bytes=config.socket_send_buffer_bytes
        if "socket.send.buffer.bytes" in config.static_settings
        else SYSTEM_DEFAULT,
        receive_buffer_bytes=config.socket_receive_buffer_bytes
        if "socket.receive.buffer.bytes" in config.static_settings
        else SYSTEM_DEFAULT,
        inter_broker_listener=config.inter_broker_listener_name,
        new_transport_layer=transport_layers(config, tls),
        rate_limits=RateLimits(
            of_broker=config.max_connection_creation_rate,
            by_listener=config.connection_rates_per_listener(),
            windows=config.quota_window_num,
            window_ms=config.quota_window_size_seconds * 1000,
        ),
    )


def configure(sock: Socket, send_buffer_bytes: int) -> None:
    """Set the options of the socket of a connection."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if send_buffer_bytes != SYSTEM_DEFAULT:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)

"""TLS in a simulated cluster: on all listeners, with certificates that this process makes once."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl

    from kwire.host.host import PeerAddress
    from kwire.host.system_socket import Socket
    from kwire.testing.tls_end import NewTlsLayer

HOST_NAMES: Final = [f"n{node_id}" for node_id in range(1, 10)]


@cache
def certificate_settings() -> dict[str, str]:
    """Return the configs of all nodes: the certificate of a node, and the authority that nodes trust."""
    from kwire.certificates.authority import Authority, common_name
    from kwire.host.system_time import libc_time_ns

    now_ms = libc_time_ns() // 1_000_000  # OpenSSL has no simulated clock
    authority = Authority.create("simulated CA", now_ms)
    issued = authority.issue(common_name("node"), HOST_NAMES, now_ms=now_ms)
    return {**issued.inline_settings(), **authority.inline_settings()}


def with_tls(settings: dict[str, str]) -> dict[str, str]:
    """Return a node's configs with TLS on each listener. The names of the listeners do not change."""
    protocols = settings["listener.security.protocol.map"]
    protocols = protocols.replace(":SASL_PLAINTEXT", ":SASL_SSL").replace(":PLAINTEXT", ":SSL")
    return {**settings, **certificate_settings(), "listener.security.protocol.map": protocols}


@cache
def _client_context() -> ssl.SSLContext:
    import ssl

    return ssl.create_default_context(cadata=certificate_settings()["ssl.truststore.certificates"])


def new_client_layer() -> NewTlsLayer:
    """Return what creates the transport layers of clients, which trust the authority of the nodes."""
    from kwire.broker.net.tls_transport_layer import WINDOW_BYTES, TlsTransportLayer

    context, scratch = _client_context(), memoryview(bytearray(WINDOW_BYTES))

    def new_layer(to: PeerAddress | None, sock: Socket) -> TlsTransportLayer:
        assert to is not None, "a client knows its broker"
        return TlsTransportLayer(sock, context, scratch, server_hostname=to.host, is_server=False)

    return new_layer

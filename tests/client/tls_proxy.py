"""A TLS proxy in front of a plaintext broker."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

CERTIFICATES = Path(__file__).parent / "certificates"
"""The certificate authority of the test certificates."""
AUTHORITY, BROKER = CERTIFICATES / "authority.pem", CERTIFICATES / "broker.pem"


class TlsProxy:
    """A TLS proxy with two threads per connection."""

    def __init__(self, own: Path = BROKER, *, wants_certificate: bool = False) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(own)
        if wants_certificate:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(AUTHORITY)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.upstream = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._server.accept()[0],), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError), sock:
            secured = self._context.wrap_socket(sock, server_side=True)
            with secured, socket.create_connection(("127.0.0.1", self.upstream)) as upstream:
                threading.Thread(target=_pass_on, args=(upstream, secured), daemon=True).start()
                _pass_on(secured, upstream)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)

"""A broker whose responses a test chooses, for responses that kwire's broker does not send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kwire.testing.proxy.api_versions import unsupported_version
from kwire.wire.api_keys import ApiKey
from kwire.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from kwire.wire.messages.metadata import MetadataResponse, MetadataResponseBroker
from kwire.wire.registry import API_VERSIONS, RequestHeader, decode_request_header, encode_response
from kwire.wire.schema import Message

FUTURE = 99
"""A version that kwire does not know."""

Respond = Callable[[RequestHeader, memoryview], Message | bytes | None]
"""Return the response to a request; as bytes, the response without size prefix and correlation id."""


class ScriptedBroker:
    """A broker on loopback. A response of None closes the connection."""

    def __init__(self, respond: Respond | None = None) -> None:
        self.respond: Respond = respond or (lambda header, body: None)
        self.requests: list[RequestHeader] = []
        self.bodies: list[bytes] = []
        self.correlation_offset = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self.connections: list[socket.socket] = []
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ScriptedBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # `accept` returns
        self._listener.close()
        self.disconnect()

    def disconnect(self) -> None:
        """Close all connections."""
        for connection in [*self.connections]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                if self._is_closed:
                    connection.close()
                    return
                self.connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as received:
            while size := received.read(4):
                frame = memoryview(received.read(int.from_bytes(size, "big")))
                header, position = decode_request_header(frame)
                self.requests.append(header)
                self.bodies.append(bytes(frame[position:]))
                response = self._response(header, frame[position:])
                if response is None:
                    return
                correlation_id = header.correlation_id + self.correlation_offset
                if isinstance(response, bytes):
                    response = correlation_id.to_bytes(4, "big", signed=True) + response
                    connection.sendall(len(response).to_bytes(4, "big") + response)
                else:
                    pieces: list[Any] = encode_response(
                        header.api_key, header.api_version, correlation_id, response
                    )
                    connection.sendall(b"".join(pieces))

    def _response(self, header: RequestHeader, body: memoryview) -> Message | bytes | None:
        if header.api_key != ApiKey.API_VERSIONS:
            return self.respond(header, body)
        if header.api_version > API_VERSIONS[ApiKey.API_VERSIONS].max_version:
            return unsupported_version()
        # Declared APIs with later versions, an API without addresses, and one with addresses.
        known = [
            ApiVersion(api_key=key, min_version=0, max_version=FUTURE) for key in (*API_VERSIONS, 76, 78, 79)
        ]
        return ApiVersionsResponse(api_keys=known)


def metadata_of(*ports: int, host: str = "127.0.0.1") -> MetadataResponse:
    """Return a response with brokers 1, 2 and so on at these ports."""
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=number, host=host, port=port)
            for number, port in enumerate(ports, 1)
        ]
    )

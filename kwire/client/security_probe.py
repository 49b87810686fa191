"""Diagnosis of listeners that close a connection: probes with other security settings."""

from __future__ import annotations

import socket
from typing import Final, TypeVar

from kwire.client.errors import SecurityMismatch
from kwire.client.security import Security
from kwire.wire.errors import ErrorCode, WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kwire.wire.registry import decode_response, encode_request
from kwire.wire.schema import Message

PROBE_SECONDS: Final = 1.0
MAX_RESPONSE_BYTES: Final = 1024 * 1024
COMMAND_CONFIG: Final = "in a client's properties file"

A = TypeVar("A", bound=Message)


def find_mismatch(host: str, port: int, security: Security, seconds: float) -> SecurityMismatch | None:
    """Return the settings that the listener expects, as an error, or None if the probes do not find them."""
    probe = _Probe(host, port, security, min(seconds, PROBE_SECONDS))
    where = f"{host}:{port}"
    sasl = "" if security.credentials is None else "SASL_"
    if security.tls is None and probe.accepts_tls():
        return SecurityMismatch(f"{where} requires TLS: set security.protocol={sasl}SSL {COMMAND_CONFIG}")
    if security.tls is not None and probe.accepts_plaintext():
        return SecurityMismatch(f"{where} does not use TLS: set security.protocol={sasl}PLAINTEXT")
    if security.tls is not None and (tls_alert := probe.tls_alert()):
        return tls_alert
    if security.credentials is None and (mechanisms := probe.mechanisms()):
        protocol = "SASL_PLAINTEXT" if security.tls is None else "SASL_SSL"
        return SecurityMismatch(
            f"{where} requires authentication with {' or '.join(mechanisms)}: set "
            f"security.protocol={protocol}, sasl.mechanism and sasl.jaas.config {COMMAND_CONFIG}"
        )
    return None


class _Probe:
    def __init__(self, host: str, port: int, security: Security, seconds: float) -> None:
        self._address = (host, port)
        self._security = security
        self._seconds = seconds

    def accepts_tls(self) -> bool:
        """Return whether a TLS handshake succeeds, or fails with an alert."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            with self._connect() as sock, context.wrap_socket(sock):
                return True
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")
        except OSError:
            return False

    def accepts_plaintext(self) -> bool:
        """Return whether the listener responds to ApiVersions without TLS."""
        try:
            with self._connect() as sock:
                return bool(_request(sock, ApiVersionsRequest(), ApiVersionsResponse, 0).api_keys)
        except (OSError, WireError):
            return False

    def tls_alert(self) -> SecurityMismatch | None:
        """Return an error for the TLS alert that the listener sends after a handshake; None without one."""
        from kwire.client.tls import explain_handshake_error

        tls = self._security.tls
        assert tls is not None
        try:
            with (
                self._connect() as sock,
                tls.wrap_socket(sock, server_hostname=self._address[0]) as secured,
            ):
                secured.recv(1)
        except OSError as error:
            return explain_handshake_error(error, "{}:{}".format(*self._address))
        return None

    def mechanisms(self) -> list[str]:
        """Return the SASL mechanisms of the listener; empty if it does not use SASL or the probe fails."""
        tls = self._security.tls
        request = SaslHandshakeRequest(mechanism="")
        try:
            with self._connect() as sock:
                secured = sock if tls is None else tls.wrap_socket(sock, server_hostname=self._address[0])
                with secured:
                    response = _request(secured, request, SaslHandshakeResponse, 1)
        except (OSError, WireError):
            return []
        return response.mechanisms if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM else []

    def _connect(self) -> socket.socket:
        return socket.create_connection(self._address, self._seconds)


def _request(sock: socket.socket, request: Message, response_type: type[A], version: int) -> A:
    """Send the first request of a connection and return the response. Raises OSError, WireError."""
    sock.sendall(encode_request(request, version, 1, "kwire"))
    with sock.makefile("rb") as stream:
        size = int.from_bytes(stream.read(4), "big")
        if not 4 <= size <= MAX_RESPONSE_BYTES:
            raise WireError("not a Kafka response")
        return decode_response(response_type, version, stream.read(size))[1]

"""The transport layer of SSL and SASL_SSL: TLS between the event loop and the nonblocking socket.

OpenSSL works on memory (`ssl.MemoryBIO`), and this layer moves the encrypted bytes between the memory and the
socket. `ssl.SSLSocket` is not used: if the socket is full, its `send` has encrypted bytes without reporting
so, and a later `send` with other bytes continues in their place. One receive takes up to 128 KiB off the
socket, where an SSLSocket would need two system calls for each record.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Iterable
from typing import Final

from kwire.broker.net.handshake_error import HandshakeError
from kwire.broker.net.unexpected_protocols import UnexpectedProtocol, protocol_without_tls
from kwire.broker.security.presented_certificates import end_handshake, presented_subject
from kwire.broker.security.principal import ANONYMOUS, Principal
from kwire.host.platform.events import READABLE, WRITABLE
from kwire.host.platform.sockets import MSG_MORE
from kwire.host.system_os import os
from kwire.host.system_socket import Socket
from kwire.wire.primitives import Buffer

WINDOW_BYTES: Final = 128 << 10
"""The most bytes that are encrypted, or taken off the socket, at a time. It is the fastest size."""
STEP_BYTES: Final = 32 << 10
"""The most bytes that OpenSSL gets at a time. Its buffers never shrink."""
MAX_BYTES_WITHOUT_DATA: Final = 64 << 10
"""The limit for messages of TLS without data, such as KeyUpdate. Each costs as much as a small request."""
MAX_UNSENT_BYTES: Final = 3 * WINDOW_BYTES
"""The limit for encrypted bytes that the socket has not taken: a window, held bytes, and answers of TLS."""
NOTHING: Final = memoryview(b"")

RECORD_TYPES: Final = (b"\x15", b"\x16")
"""The first byte of a record: an alert or a message of the handshake."""
START_BYTES: Final = 4
"""The number of the first bytes by which other protocols are recognized."""
CLOSED: Final = "the peer closed the connection during the handshake"

REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer did not send a certificate (ssl.client.auth=required)",
    "NO_SHARED_CIPHER": "the peer supports none of the cipher suites of this node",
    "UNSUPPORTED_PROTOCOL": "the peer supports none of the TLS versions of this node (ssl.enabled.protocols)",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a certificate (alert certificate_required)",
    **{
        alert: "the peer does not accept the certificate of this node (alert "
        f"{alert.partition('_ALERT_')[2].lower()})"
        for alert in (
            "SSLV3_ALERT_BAD_CERTIFICATE",
            "SSLV3_ALERT_CERTIFICATE_EXPIRED",
            "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
            "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
            "TLSV1_ALERT_UNKNOWN_CA",
        )
    },
}
"""OpenSSL's reasons in plain words."""
OTHER_PROTOCOLS: Final = {
    UnexpectedProtocol.HTTP: "the peer sent an HTTP request without TLS",
    UnexpectedProtocol.KAFKA: "the peer sent a Kafka request without TLS",
}


class TlsTransportLayer:
    """TLS on one connection.

    Encrypted bytes that the socket does not take wait in `_unsent`. The plain bytes of which they consist
    are counted as sent when the socket has taken all of them.
    """

    __slots__ = (
        "_bytes_without_data",
        "_has_begun",
        "_held",
        "_incoming",
        "_is_ended",
        "_is_server",
        "_outgoing",
        "_rest",
        "_scratch",
        "_sock",
        "_start",
        "_tls",
        "_uncounted_bytes",
        "_unsent",
        "has_more",
    )

    def __init__(
        self,
        sock: Socket,
        context: ssl.SSLContext,
        scratch: memoryview,
        *,
        server_hostname: str | None = None,
        is_server: bool,
    ) -> None:
        """`scratch` has WINDOW_BYTES, which all connections of a thread can share.

        `server_hostname` is the name that a client expects in the server's certificate.
        """
        self._sock = sock
        self._scratch = scratch
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._tls = context.wrap_bio(
                self._incoming, self._outgoing, server_side=is_server, server_hostname=server_hostname
            )
        except (ValueError, TypeError) as error:
            raise OSError(errno.EINVAL, f"{server_hostname} cannot be the name in a certificate") from error
        except MemoryError as error:
            raise _failure(error) from error
        self._is_server = is_server
        self._has_begun = False
        self._start = b""
        """The first bytes that the peer has sent."""
        self._rest = b""
        """Encrypted bytes that the socket has delivered and OpenSSL has not received."""
        self._bytes_without_data = 0
        """The encrypted bytes since the last decrypted one."""
        self._unsent = NOTHING
        self._uncounted_bytes = 0
        self._held = b""
        """Bytes that are counted as sent, and that share a record with the next ones (MSG_MORE)."""
        self._is_ended = False
        self.has_more = False

    def peer_certificate(self) -> bytes | None:
        """Return the verified certificate of the other side in DER; None if it has sent none."""
        return self._tls.getpeercert(binary_form=True)

    def peer_principal(self) -> Principal:
        return ANONYMOUS

    # --- handshake

    def handshake(self) -> int:
        """Continue the handshake. Return the events of the socket to wait for, or 0 once it is complete.

        Raises HandshakeError if the handshake fails. An alert is sent then, as far as possible.
        """
        if not self._has_begun:
            self._has_begun = True
            if self._is_server:
                return READABLE  # the loop limits the steps in a turn, but not the first one
        try:
            encrypted = self._take(self._scratch[:STEP_BYTES])
            if encrypted:
                self._start += encrypted[: START_BYTES - len(self._start)]
                self._incoming.write(encrypted)
        except BlockingIOError:
            pass  # the first step of a client has nothing to receive
        except OSError as error:
            raise HandshakeError(str(error.strerror)) if self._start else error from None
        except MemoryError as error:
            raise _failure(error) from error
        try:
            self._tls.do_handshake()
            end_handshake(self._tls)
            is_complete = True
        except ssl.SSLWantReadError:
            is_complete = False
        except ssl.SSLError as error:
            raise self._handshake_failed(error) from error
        except (MemoryError, ValueError) as error:
            raise _failure(error) from error
        try:
            self._flush()
        except BlockingIOError:
            return WRITABLE if is_complete else READABLE | WRITABLE
        except OSError as error:
            raise HandshakeError(str(error.strerror)) if self._start else error from None
        self.has_more = is_complete and bool(self._incoming.pending)
        return 0 if is_complete else READABLE

    def _handshake_failed(self, error: ssl.SSLError) -> OSError:
        """Send the alert as far as possible. Return the error with the reason in plain words.

        A peer that uses another protocol gets no alert. A Kafka client would take it for a response.
        """
        if not self._start:
            return OSError(errno.ECONNRESET, _reason(error))
        protocol = protocol_without_tls(self._start) if self._is_server else None
        if protocol is not None:
            return HandshakeError(OTHER_PROTOCOLS[protocol], protocol)
        self._send_alert()
        if isinstance(error, ssl.SSLCertVerificationError):
            subject = presented_subject(self._tls)
            return HandshakeError(
                f"the certificate of the peer{subject and f' ({subject})'} is not accepted: "
                f"{error.verify_message}"
            )
        if not self._start.startswith(RECORD_TYPES):
            return HandshakeError("the peer did not send TLS")
        return HandshakeError(_reason(error))

    def _send_alert(self) -> None:
        try:
            self._flush()
        except OSError:
            pass  # the reason of the failure is more important

    # --- receiving

    def receive_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive decrypted bytes until the buffer is full or the socket's bytes are used up.

        One call takes bytes off the socket once, so that a peer cannot occupy the event loop.
        """
        try:
            return self._receive_into(memoryview(buffer))
        except (MemoryError, ValueError) as error:
            raise _failure(error) from error

    def _receive_into(self, target: memoryview) -> int:
        received = 0
        self.has_more = False  # also if the socket has nothing
        encrypted, self._rest = memoryview(self._rest), b""
        has_taken = False
        while received < len(target) and not self._is_ended:
            try:
                count = self._decrypt(target[received:])
            except ssl.SSLWantReadError:
                if encrypted:
                    self._pass_on(encrypted[:STEP_BYTES])
                    encrypted = encrypted[STEP_BYTES:]
                elif received or has_taken:
                    break
                else:
                    encrypted = self._take(self._scratch)
                    has_taken = True
                continue
            self._is_ended = not count
            self._bytes_without_data = 0
            received += count
        self._rest = bytes(encrypted)
        self.has_more = received > 0 and (received == len(target) or self._is_ended)
        if self._outgoing.pending:
            self._answer()
        if not received and not self._is_ended:
            raise BlockingIOError
        return received

    def _take(self, scratch: memoryview) -> memoryview:
        """Return encrypted bytes from the socket. Tell OpenSSL about the end of the stream."""
        count = self._sock.recv_into(scratch)
        if not count:
            self._incoming.write_eof()
        return scratch[:count]

    def _pass_on(self, encrypted: memoryview) -> None:
        """Pass encrypted bytes to OpenSSL. Raises OSError if the peer sends nothing but messages of TLS."""
        self._bytes_without_data += len(encrypted)
        if self._bytes_without_data > MAX_BYTES_WITHOUT_DATA:
            raise OSError(errno.EPROTO, "the peer sends messages of TLS without data")
        self._incoming.write(encrypted)

    def _answer(self) -> None:
        """Send the answers that TLS requires, for example to a KeyUpdate, as far as possible.

        Raises OSError if the peer requests a renegotiation, which Kafka refuses by closing the connection.
        """
        is_refusal = self._tls.version() == "TLSv1.2"  # the only answer in this version
        try:
            self._flush()
        except BlockingIOError:
            if len(self._unsent) + self._outgoing.pending > MAX_UNSENT_BYTES:
                raise OSError(errno.EPROTO, "the peer does not receive the answers of TLS") from None
        except OSError:
            pass  # the next call that sends reports it; what was received comes first
        if is_refusal:
            raise OSError(errno.EPROTO, "the peer requests a renegotiation of TLS")

    def _decrypt(self, target: memoryview) -> int:
        """Decrypt the bytes of one record, and return their number, 0 at the end of the stream."""
        try:
            # With a buffer, `read` returns the number of bytes.
            return int(self._tls.read(len(target), target))
        except ssl.SSLWantReadError:
            raise
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return 0  # many clients close the socket without ending TLS
        except ssl.SSLError as error:
            self._send_alert()
            raise OSError(errno.EPROTO, _reason(error)) from error

    # --- sending

    def send(self, data: Buffer, /) -> int:
        if not self._uncounted_bytes:
            self._encrypt(memoryview(data)[:WINDOW_BYTES])
        return self._count_sent()

    def sendmsg(self, buffers: Iterable[Buffer], ancillary: tuple[()], flags: int, /) -> int:
        if not self._uncounted_bytes:
            window: list[Buffer] = []
            left = WINDOW_BYTES
            for buffer in buffers:
                window.append(memoryview(buffer)[:left])
                left -= len(buffer)
                if left < 0:
                    break
            joined = b"".join(window)
            if flags & MSG_MORE and left > len(self._held):
                self._held += joined
                return len(joined)
            self._encrypt(memoryview(joined))
        return self._count_sent()

    def send_region(self, fd: int, position: int, count: int, /) -> int:
        if not self._uncounted_bytes:
            data = os.pread(fd, min(count, WINDOW_BYTES - len(self._held)), position)
            if not data:
                return 0
            self._encrypt(memoryview(data))
        return self._count_sent()

    def _encrypt(self, data: memoryview) -> None:
        self._uncounted_bytes = len(data)
        if self._held:
            data, self._held = memoryview(self._held + data), b""
        try:
            encrypted = [bytes(self._unsent)]
            while data:
                data = data[self._tls.write(data[:STEP_BYTES]) :]
                encrypted.append(self._outgoing.read())
            self._unsent = memoryview(b"".join(encrypted))
        except (MemoryError, ValueError) as error:
            raise _failure(error) from error

    def _count_sent(self) -> int:
        self._flush()
        sent, self._uncounted_bytes = self._uncounted_bytes, 0
        return sent

    def _flush(self) -> None:
        """Send all encrypted bytes. Raises BlockingIOError if the socket does not take all of them."""
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                try:
                    self._unsent = memoryview(self._outgoing.read())
                except MemoryError as error:
                    raise _failure(error) from error
            # An empty slice would keep the sent bytes in memory.
            self._unsent = self._unsent[self._sock.send(self._unsent) :] or NOTHING

    def close(self) -> None:
        """Send the end of the stream, as far as possible, and close the socket."""
        try:
            self._tls.unwrap()
        except (OSError, ValueError, MemoryError):
            pass  # the end of the other side has not arrived, or the handshake is not complete
        try:
            self._flush()
        except (OSError, MemoryError):
            pass
        self._sock.close()


def _reason(error: ssl.SSLError) -> str:
    """Return the reason of a failure in plain words."""
    if isinstance(error, ssl.SSLEOFError):
        return CLOSED
    return REASONS.get(error.reason or "", (error.reason or str(error)).lower().replace("_", " "))


def _failure(error: Exception) -> OSError:
    """Return the error of a connection whose TLS cannot continue after an exception of another kind."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else errno.EPROTO
    return OSError(number, f"TLS failed: {error!r}")

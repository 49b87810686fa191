"""The failure of a handshake, as a transport layer reports it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kwire.broker.net.unexpected_protocols import UnexpectedProtocol


class HandshakeError(OSError):
    """A handshake that failed after the peer had sent something. `strerror` is the reason.

    A connection that is lost before that is a plain OSError. Port scanners and the health checks of load
    balancers cause many of them.
    """

    def __init__(self, reason: str, protocol: UnexpectedProtocol | None = None) -> None:
        super().__init__(errno.EPROTO, reason)
        self.protocol = protocol
        """The protocol that the peer uses in place of the one of the transport layer, if it is known."""

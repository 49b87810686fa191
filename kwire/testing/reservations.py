"""The data directory and the ports of a broker or cluster, which it keeps while it is down."""

from __future__ import annotations

from socket import SO_REUSEADDR, SOL_SOCKET
from typing import TYPE_CHECKING

from kwire.host.system_socket import Socket

if TYPE_CHECKING:
    from kwire.testing.temporary_directory import TemporaryDirectory


class Reservations:
    """A data directory and ports. `release` removes a temporary directory, and frees the ports."""

    def __init__(self, log_dir: str | None) -> None:
        """Set up without reserving anything. Without `log_dir`, the data is in a temporary directory."""
        self._log_dir = log_dir
        self._temporary: TemporaryDirectory | None = None
        self._sockets: list[Socket] = []
        """Bound sockets, which keep the ports from other processes while a broker is down."""

    @property
    def is_temporary(self) -> bool:
        """Whether the directory is removed by `release`."""
        return self._log_dir is None

    @property
    def directory(self) -> str | None:
        """The data directory. None before `create_directory` if the directory is temporary."""
        if self._log_dir is not None:
            return self._log_dir
        return None if self._temporary is None else self._temporary.name

    def create_directory(self) -> str:
        """Create the temporary directory unless it exists, and return the data directory."""
        if self._log_dir is not None:
            return self._log_dir
        if self._temporary is None:
            from kwire.testing.temporary_directory import TemporaryDirectory

            self._temporary = TemporaryDirectory()
        return self._temporary.name

    def reserve_port(self) -> int:
        """Reserve and return a free port. A broker of this process can still listen on it."""
        reserved = Socket()
        self._sockets.append(reserved)
        reserved.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        return port

    def release(self) -> None:
        """Free the ports and remove the temporary directory."""
        while self._sockets:
            self._sockets.pop().close()
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            temporary.remove()

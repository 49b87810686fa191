"""A Kafka that a test runs in this process, from `start` to `stop`: where its data is, and its ports."""

from __future__ import annotations

import socket
from abc import abstractmethod
from typing import TYPE_CHECKING

from kwire.testing.kafka import Kafka

if TYPE_CHECKING:
    import os
    from types import TracebackType
    from typing import Self

    from kwire.testing.directory import Directory


class Running(Kafka):
    """See the module."""

    def __init__(self, log_dir: str | os.PathLike[str] | None, timeout_s: float) -> None:
        """Without `log_dir`, data is in a directory that goes with the end."""
        super().__init__("", timeout_s=timeout_s)
        self._given_log_dir = None if log_dir is None else str(log_dir)
        self._temporary: Directory | None = None
        self._reserved: list[socket.socket] = []
        """Bound to ports, so that nobody else gets them while who listens there is away."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Return once it serves."""

    @abstractmethod
    def stop(self) -> None:
        """End it, if it runs."""

    @property
    def log_dir(self) -> str:
        """Where its data is, while it runs: of several brokers, each has a directory there."""
        directory = self._given_log_dir or (self._temporary and self._temporary.name)
        if not directory:
            raise RuntimeError(f"the {type(self).__name__.lower()} does not run")
        return directory

    def _take_directory(self) -> None:
        if self._given_log_dir is None and self._temporary is None:
            from kwire.testing.directory import Directory

            self._temporary = Directory()

    def _reserve_port(self) -> int:
        """A free port, which a broker may listen on, and others may not."""
        reserved = socket.socket()
        self._reserved.append(reserved)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        return port

    def _leave(self) -> None:
        """Give ports and directory up."""
        while self._reserved:
            self._reserved.pop().close()
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            temporary.remove()

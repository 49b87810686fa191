"""A Kafka that a test runs in this process, from `start` to `stop`: where its data is, and its ports."""

from __future__ import annotations

import socket
from abc import abstractmethod
from typing import TYPE_CHECKING

from kwire.testing.kafka import Kafka
from kwire.testing.users import ClientConfig
from kwire.wire.mechanisms import MECHANISMS, PLAIN, SCRAM

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from kwire.testing.results import Token
    from kwire.testing.temporary_directory import TemporaryDirectory


class EmbeddedKafka(Kafka):
    """See the module."""

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None,
        timeout_s: float,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """Without `log_dir`, data is in a directory that goes with the end."""
        super().__init__("", timeout_s=timeout_s)
        self._users = dict(users or {})
        self._users_created = False
        self._configured_log_dir = None if log_dir is None else str(log_dir)
        self._temporary: TemporaryDirectory | None = None
        self._reserved_sockets: list[socket.socket] = []
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

    # --- who comes

    def client_config(self, user: str | None = None, mechanism: str = PLAIN) -> ClientConfig:
        """How clients say that they are one of the users, the first one where none is named. LookupError."""
        if not self._users:
            raise LookupError("everybody may come: make it with users={'alice': 'alice-secret'}")
        name = next(iter(self._users)) if user is None else user
        if name not in self._users:
            raise LookupError(f"there is no user {name!r}, but {', '.join(self._users)}")
        if mechanism not in MECHANISMS:
            raise LookupError(f"there is no mechanism {mechanism!r}, but {', '.join(MECHANISMS)}")
        return ClientConfig(self.bootstrap_servers, name, self._users[name], mechanism)

    def create_token(
        self,
        owner: str | None = None,
        *,
        renewers: Sequence[str] = (),
        max_lifetime_ms: int | None = None,
        mechanism: str = SCRAM[0],
    ) -> ClientConfig:
        """How a client shows a delegation token that a user, the first one, has made for himself.

        Brokers know it by then, but for those that do not answer. As Kafka makes them: it lives until
        `max_lifetime_ms` from now are over, and a day where nobody renews it
        (`delegation.token.max.lifetime.ms`, `delegation.token.expiry.time.ms`).
        """
        properties = self.client_config(owner).java
        with self._new_kafka(properties) as asking:
            made = asking._call(lambda client: client.create_token(renewers, max_lifetime_ms))
        return ClientConfig(self.bootstrap_servers, made.id, made.password, mechanism, is_token=True)

    def tokens(self) -> list[Token]:
        """The delegation tokens that there are, the oldest first."""
        return self._call(lambda client: client.tokens())

    def _new_kafka(self, properties: Mapping[str, str]) -> Kafka:
        return Kafka(self.bootstrap_servers, timeout_s=self._timeout_s, properties=properties)

    def _client_properties(self) -> Mapping[str, str]:
        return self.client_config().java if self._users else {}

    def _set_passwords(self) -> None:
        """Have users known for SCRAM, too, where they are not yet."""
        if self._users and not self._users_created:
            self._call(lambda client: client.set_passwords(self._users, SCRAM))
            self._users_created = True

    # --- where it is

    @property
    def log_dir(self) -> str:
        """Where its data is, while it runs: of several brokers, each has a directory there."""
        directory = self._configured_log_dir or (self._temporary and self._temporary.name)
        if not directory:
            raise RuntimeError(f"the {type(self).__name__.lower()} does not run")
        return directory

    def _create_directory(self) -> None:
        if self._configured_log_dir is None and self._temporary is None:
            from kwire.testing.temporary_directory import TemporaryDirectory

            self._temporary = TemporaryDirectory()

    def _reserve_port(self) -> int:
        """A free port, which a broker may listen on, and others may not."""
        reserved = socket.socket()
        self._reserved_sockets.append(reserved)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        return port

    def _release(self) -> None:
        """Give ports and directory up."""
        self._users_created = False
        while self._reserved_sockets:
            self._reserved_sockets.pop().close()
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            temporary.remove()

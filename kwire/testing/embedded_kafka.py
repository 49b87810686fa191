"""The base class of `Broker` and `Cluster`, which a test starts and stops."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from kwire.testing.arguments import check_names, check_number
from kwire.testing.kafka import Kafka
from kwire.testing.lookup_table import describe_choice
from kwire.testing.users import ClientConfig
from kwire.wire.mechanisms import MECHANISMS, PLAIN, SCRAM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from kwire.testing.blocking_client import BlockingClient
    from kwire.testing.results import Token

T = TypeVar("T")


class EmbeddedKafka(Kafka):
    """A broker or cluster with a start, a stop, users and a data directory."""

    def __init__(self, timeout_s: float, users: Mapping[str, str] | None = None) -> None:
        """Set up without starting."""
        super().__init__("", timeout_s=timeout_s)
        self._users = dict(users or {})
        self._users_created = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start, and return when all brokers serve requests."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all brokers. Does nothing if none is running."""

    # --- authentication

    def client_config(self, user: str | None = None, mechanism: str = PLAIN) -> ClientConfig:
        """Return the settings of a client that authenticates as a user, by default the first user.

        Raises LookupError if there is no such user or mechanism.
        """
        if not self._users:
            raise LookupError("there are no users: pass users={'alice': 'alice-secret'}")
        name = next(iter(self._users)) if user is None else user
        if name not in self._users:
            raise LookupError(f"there is no user {name!r}: use one of {', '.join(self._users)}")
        if mechanism not in MECHANISMS:
            raise LookupError(f"there is no mechanism {mechanism!r}: use one of {', '.join(MECHANISMS)}")
        return ClientConfig(self.bootstrap_servers, name, self._users[name], mechanism)

    def create_token(
        self,
        owner: str | None = None,
        *,
        renewers: Sequence[str] = (),
        max_lifetime_ms: int | None = None,
        mechanism: str = SCRAM[0],
    ) -> ClientConfig:
        """Create a delegation token and return the settings of a client that authenticates with it.

        The owner is a user, by default the first user. All brokers that respond know the token. The token
        expires after a day unless it is renewed, and after `max_lifetime_ms` at the latest
        (`delegation.token.expiry.time.ms`, `delegation.token.max.lifetime.ms`).
        """
        check_names("renewers", renewers)
        check_number("max_lifetime_ms", 0 if max_lifetime_ms is None else max_lifetime_ms)
        if mechanism not in SCRAM:
            raise LookupError(f"tokens have no mechanism {mechanism!r}: {describe_choice(list(SCRAM))}")
        properties = self.client_config(owner).java
        made = self._call_as(properties, lambda client: client.create_token(renewers, max_lifetime_ms))
        return ClientConfig(self.bootstrap_servers, made.id, made.password, mechanism, is_token=True)

    def tokens(self) -> list[Token]:
        """Return all delegation tokens, oldest first."""
        return self._call(lambda client: client.tokens())

    def _call_as(self, properties: Mapping[str, str], operation: Callable[[BlockingClient], T]) -> T:
        """Call `operation` with a client that has these security settings."""
        with Kafka(self.bootstrap_servers, timeout_s=self._timeout_s, properties=properties) as kafka:
            return kafka._call(operation)

    def _client_properties(self) -> Mapping[str, str]:
        return self.client_config().java if self._users else {}

    def _set_passwords(self) -> None:
        """Create the SCRAM credentials of the users, unless this object has already created them."""
        if self._users and not self._users_created:
            self._call(lambda client: client.set_passwords(self._users, SCRAM))
            self._users_created = True

    # --- data directory

    @property
    def log_dir(self) -> str:
        """The data directory. In a cluster, each broker has a directory below this directory.

        Raises RuntimeError if the directory is temporary, and the broker or cluster is not running.
        """
        directory = self._directory()
        if not directory:
            raise RuntimeError(f"the {type(self).__name__.lower()} is not running")
        return directory

    @abstractmethod
    def _directory(self) -> str | None:
        """Return the data directory, or None if it is temporary and does not exist."""

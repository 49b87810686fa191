"""The base class of `Broker` and `Cluster`, which a test starts and stops."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from kwire.testing.acl import Acl, check_acls
from kwire.testing.arguments import check_names, check_number
from kwire.testing.awaitable import awaitable, call_in_thread
from kwire.testing.event_loop import blocking, check_with_statement
from kwire.testing.kafka import AioKafka, Kafka
from kwire.testing.lookup_table import describe_choice
from kwire.testing.started_brokers import STARTED_BROKERS
from kwire.testing.tls import Certificates, Defect, Tls, check_defect
from kwire.testing.unexpected_errors import failure_of
from kwire.testing.users import (
    EVERYONE,
    SUPER_USER,
    ClientConfig,
    check_acl_clients,
    check_acl_users,
    client_protocol,
    user_of,
    with_authorizer,
)
from kwire.wire.mechanisms import MECHANISMS, PLAIN, SCRAM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from kwire.testing.blocking_client import BlockingClient
    from kwire.testing.history import History
    from kwire.testing.recorder import Recorder
    from kwire.testing.results import Token

T = TypeVar("T")
V = TypeVar("V")

NO_USERS: Final = "there are no users: pass users={'alice': 'alice-secret'}"


class EmbeddedKafka(Kafka):
    """A broker or cluster with a start, a stop, users and a data directory."""

    def __init__(
        self,
        timeout_s: float,
        users: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        acls: Sequence[Acl] | None = None,
    ) -> None:
        """Set up without starting. With `tls`, create the certificates."""
        super().__init__("", timeout_s=timeout_s)
        self._users = dict(users or {})
        self._acls = None
        """The ACLs at the start; None without an authorizer."""
        if acls is not None:
            self._acls = check_acls(acls)
            check_acl_clients(users, tls)
            if users:
                check_acl_users(self._acls, self._users)
                from secrets import token_hex

                self._users.setdefault(SUPER_USER, token_hex(16))
        self._certificates = None if tls is None else Certificates(tls)
        self._users_created = False

    def __enter__(self) -> Self:
        __tracebackhide__ = True
        name = self._variable
        check_with_statement(f"{name.capitalize()}(...) as {name}")
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            STARTED_BROKERS.keep_state(self)
        errors = self._take_errors() if error is None else []
        self.stop()
        if errors:
            raise failure_of(errors)

    async def __aenter__(self) -> Self:
        await self.aio.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):  # not after a cancellation
            await call_in_thread(self._threads, partial(STARTED_BROKERS.keep_state, self))
        errors = self._take_errors() if error is None else []
        await self.aio.stop()
        if errors:
            raise failure_of(errors)

    @property
    def aio(self) -> AioEmbeddedKafka:
        """The methods of this object, to be awaited in asyncio or trio."""
        return AioEmbeddedKafka(self)

    @abstractmethod
    def start(self) -> None:
        """Start, and return when all brokers serve requests."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all brokers. Does nothing if none is running."""

    @abstractmethod
    def _take_errors(self) -> list[str]:
        """Remove and return the unexpected exceptions inside the brokers, as text."""

    # --- authentication

    def client_config(
        self,
        user: str | None = None,
        mechanism: str = PLAIN,
        *,
        certificate: str | None = None,
        defect: Defect | None = None,
    ) -> ClientConfig:
        """Return the settings of a client that authenticates as a user, by default the first user.

        With TLS, the client trusts the broker's authority. `certificate` is the common name of the client's
        own certificate, by default none; its principal is `User:CN=` and this name. `defect` makes this
        certificate "expired", "foreign" (from another authority) or "wrong-host".

        Raises LookupError if there is no such user or mechanism, or no TLS, and ValueError for a defect
        without a certificate.
        """
        if defect is not None and certificate is None:
            raise ValueError(f"defect={defect!r} is that of a certificate: pass a certificate, too")
        check_defect(defect)
        if self._certificates is None and certificate is not None:
            raise LookupError("there is no TLS: pass tls=True to the broker or cluster")
        tls = None if self._certificates is None else self._certificates.client(certificate, defect)
        if not self._users:
            if user is not None:
                raise LookupError(NO_USERS)
            if tls is None:
                raise LookupError(f"{NO_USERS} or tls=True")
            return ClientConfig(self.bootstrap_servers, tls=tls)
        name = next(iter(self._users)) if user is None else user
        if name not in self._users:
            raise LookupError(f"there is no user {name!r}: use one of {', '.join(self._users)}")
        if mechanism not in MECHANISMS:
            raise LookupError(f"there is no mechanism {mechanism!r}: use one of {', '.join(MECHANISMS)}")
        return ClientConfig(self.bootstrap_servers, name, self._users[name], mechanism, tls=tls)

    @blocking
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
        if not self._users:
            raise LookupError(NO_USERS)
        login = self.client_config(owner, certificate=self._own_certificate())
        made = self._call_as(login.java, lambda client: client.create_token(renewers, max_lifetime_ms))
        return login._replace(username=made.id, password=made.password, mechanism=mechanism, is_token=True)

    @blocking
    def tokens(self) -> list[Token]:
        """Return all delegation tokens, oldest first."""
        return self._call(lambda client: client.tokens())

    # --- authorization

    @blocking
    def set_acls(self, acls: Sequence[Acl]) -> None:
        """Replace all ACLs, and return when all brokers that respond apply them.

        The methods of this object are those of a super user, as which a client can connect, too:
        `client_config(SUPER_USER)`, or `client_config(certificate=SUPER_USER)` without users. Raises
        LookupError without an authorizer, and ValueError for an ACL of a user that does not exist.
        """
        found = check_acls(acls)
        if self._acls is None:
            raise LookupError("there is no authorizer: pass acls=[] to the broker or cluster")
        if self._users and any(user_of(acl) not in {*self._users, EVERYONE} for acl in found):
            created = self._call(lambda client: client.user_names())  # by clients of the test
            check_acl_users(found, {**self._users, **dict.fromkeys(created)})
        self._call(lambda client: client.set_acls(found))

    def _call_as(self, properties: Mapping[str, str], operation: Callable[[BlockingClient], T]) -> T:
        """Call `operation` with a client that has these security settings."""
        with Kafka(self.bootstrap_servers, timeout_s=self._timeout_s, properties=properties) as kafka:
            return kafka._call(operation)

    def _client_properties(self) -> Mapping[str, str]:
        return self._own_config().java if self._has_client_listener and not self._has_defect else {}

    def _own_config(self) -> ClientConfig:
        """Return the settings with which the methods of this object connect."""
        user = SUPER_USER if self._users and self._acls is not None else None
        return self.client_config(user, certificate=self._own_certificate())

    def _own_certificate(self) -> str | None:
        return None if self._certificates is None else self._certificates.own_client_name()

    def _with_authorizer(self, overrides: Mapping[str, V]) -> Mapping[str, V | str]:
        """Return the broker configs, with those of an authorizer if there are ACLs."""
        return {**overrides} if self._acls is None else with_authorizer(overrides)

    @property
    def _client_protocol(self) -> str:
        """The security protocol of clients, which is also the name of their listener."""
        return client_protocol(has_users=bool(self._users), has_tls=self._certificates is not None)

    @property
    def _has_client_listener(self) -> bool:
        """Whether clients have a listener of their own, with authentication or TLS."""
        return bool(self._users) or self._certificates is not None

    @property
    def _has_defect(self) -> bool:
        """Whether the broker's certificate has a defect.

        The methods of this object then connect to the listener between nodes, which has no TLS.
        """
        return self._certificates is not None and self._certificates.tls.defect is not None

    def _tls_settings(self) -> dict[str, str]:
        """Return the TLS settings of the listener for clients; empty without TLS."""
        if self._certificates is None:
            return {}
        return self._certificates.listener_settings(self._client_protocol)

    def _create_users(self) -> None:
        """Create the SCRAM credentials of the users, and the ACLs, unless this object has created them."""
        if self._users_created:
            return
        if self._users:
            self._call(lambda client: client.set_passwords(self._users, SCRAM))
        if self._acls is not None:
            self.set_acls(self._acls)
        self._users_created = True

    # --- requests

    @blocking
    def history(self) -> History:
        """Return the history that the recorded requests show, with the final records of their topics.

        Call `check` of the result. See `History.of`.
        """
        from kwire.testing.history import History

        return History.of(*self._recorders(), kafka=self)

    @abstractmethod
    def _recorders(self) -> list[Recorder]:
        """Return the recorders of all brokers."""

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


class AioEmbeddedKafka(AioKafka):
    """The methods of `EmbeddedKafka`, for `await`."""

    start = awaitable(EmbeddedKafka.start, completes=True, undo="stop")
    stop = awaitable(EmbeddedKafka.stop, completes=True)
    client_config = awaitable(EmbeddedKafka.client_config)
    create_token = awaitable(EmbeddedKafka.create_token)
    tokens = awaitable(EmbeddedKafka.tokens)
    history = awaitable(EmbeddedKafka.history)
    set_acls = awaitable(EmbeddedKafka.set_acls)

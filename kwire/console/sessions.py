"""The users of the console, each with connections to the cluster as this user.

With an authorizer, the broker decides about each request of a page, as it does for any client of the user. So
the console never shares a connection between users, and never uses one for a request with another password.
A user's connections and password are dropped after a minute without a page of this user.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from kwire.broker.security.authorizer import Operation
from kwire.broker.security.settings import Credentials
from kwire.cli.shared.client_settings import ClientSettings, servers_of
from kwire.client.security import Security
from kwire.console.client_pool import MAX_AGE_SECONDS, ClientPool
from kwire.console.console_client import ConsoleClient
from kwire.console.page import ConsoleSettings, ListenerAddress
from kwire.http.basic_auth import BasicCredentials
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

TIMEOUT_SECONDS: Final = 10.0
"""Timeout of each request to a broker."""
MAX_IDLE: Final = 8
"""The number of idle clients without an authorizer, and of anonymous ones."""
MAX_IDLE_OF_USER: Final = 2
MAX_SESSIONS: Final = 16
"""The number of users with idle clients. A further one replaces the user who has waited longest."""
MAX_LOGINS: Final = 4
"""The number of logins at the same time. The other threads still render pages of known users."""
MAX_LOGINS_PER_ADDRESS: Final = 2
"""The number of logins at the same time from one address, so that one client does not exclude others."""
ANONYMOUS: Final = "User:ANONYMOUS"
NO_LISTENER: Final = (
    "the broker has an authorizer, and no listener on which the console can log in: add a listener with "
    "SCRAM or PLAIN (a listener on loopback counts only if the HTTP port is on loopback, too)"
)
LOG_IN: Final = "log in with a user name and a password of this cluster"
WRONG_PASSWORD: Final = "wrong user name or password"


class LoginNeeded(Exception):
    """A request without credentials, or with wrong ones. The message is a sentence for the user."""


class NoListener(Exception):
    """A request for which the broker has no listener. The message is a sentence for the user."""


class TooManyLogins(Exception):
    """A login while too many others are under way. The message is a sentence for the user."""


class UserSession:
    """Connections of one user."""

    def __init__(
        self,
        settings: ClientSettings,
        max_idle: int,
        now: Callable[[], float],
        *,
        principal: str = "",
        has_login: bool = False,
        token: str = "",
    ) -> None:
        """`principal` is empty without an authorizer. Forms of this user must contain `token`."""
        self.clients = ClientPool(settings, max_idle, now)
        self.principal = principal
        self.has_login = has_login
        """Whether the user has logged in."""
        self.token = token
        self.used_at = now()
        self._now = now
        self._describes_cluster = False
        self._checked_at = -MAX_AGE_SECONDS

    def may_describe_cluster(self, cluster: ConsoleClient) -> bool:
        """Return whether the user has DESCRIBE on the cluster. The result may be a minute old.

        DescribeCluster returns the client's rights. The audit log has a line if the user lacks this right.
        """
        if not self.principal:
            return True
        if self._now() - self._checked_at >= MAX_AGE_SECONDS:
            request = DescribeClusterRequest(include_cluster_authorized_operations=True)
            rights = cluster.send(request, DescribeClusterResponse).cluster_authorized_operations
            self._describes_cluster = rights >= 0 and bool(rights >> Operation.DESCRIBE & 1)
            self._checked_at = self._now()
        return self._describes_cluster


class Sessions:
    """The sessions of a console. The class is thread-safe, and its methods block."""

    def __init__(
        self, settings: ConsoleSettings, secret: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`secret` is a random text of this process; `now` returns the time in seconds."""
        self._client_id = settings.client_id
        self._access = settings.access
        self._secret = secret
        self._token_key, self._session_key = (
            hmac.digest(secret.encode(), purpose, "sha256") for purpose in (b"tokens", b"sessions")
        )
        self._now = now
        self._changing = threading.Lock()
        self._logins: Counter[str] = Counter()
        """The number of logins under way by the address of the client."""
        self._users: dict[bytes, UserSession] = {}
        """The sessions by a keyed hash of user and password, the most recently used last."""
        self._shared: UserSession | None = None
        """The session for requests without credentials; None if there is none."""
        if self._access is None:
            own = self._client_settings(ListenerAddress(settings.bootstrap_servers), settings.security)
            self._shared = UserSession(own, MAX_IDLE, now, token=secret)
        elif self._access.anonymous is not None:
            listener = self._access.anonymous
            self._shared = UserSession(
                self._client_settings(listener, Security(listener.tls)),
                MAX_IDLE,
                now,
                principal=ANONYMOUS,
                token=self.token(None),
            )

    def token(self, given: BasicCredentials | None) -> str:
        """Return the secret that the forms of this user must contain.

        Each user has another one, so that a user cannot make the browser of another user send a form.
        """
        if self._access is None:
            return self._secret
        name = ANONYMOUS if given is None else f"login:{given.username}"
        return hmac.digest(self._token_key, name.encode(), "sha256").hex()

    def of(self, given: BasicCredentials | None, ip: str = "") -> UserSession:
        """Return the session of a user, after a login if it is new.

        `ip` is the address of the client; empty if it is not known. Raises LoginNeeded, NoListener,
        TooManyLogins, or an error of the client.
        """
        self.expire()
        if self._access is None or given is None:
            if self._shared is not None:
                return self._shared
            raise self.login_needed(LOG_IN)
        key = given.digest(self._session_key)
        with self._changing:
            if (session := self._users.pop(key, None)) is not None:
                session.used_at = self._now()
                self._users[key] = session
        if session is not None:
            return session
        self._begin_login(ip)
        try:
            return self._log_in(given)
        finally:
            with self._changing:
                self._logins[ip] -= 1
                self._logins += Counter()  # removes addresses without logins

    def _begin_login(self, ip: str) -> None:
        """Count a login. Raises TooManyLogins."""
        with self._changing:
            if self._logins.total() >= MAX_LOGINS or (ip and self._logins[ip] >= MAX_LOGINS_PER_ADDRESS):
                raise TooManyLogins("too many logins: try again in a moment")
            self._logins[ip] += 1

    def login_needed(self, reason: str) -> Exception:
        """Return the error for a request that needs other credentials."""
        assert self._access is not None
        return LoginNeeded(reason) if self._access.logins else NoListener(NO_LISTENER)

    def drop(self, given: BasicCredentials) -> None:
        """Close the connections of a user whom a broker no longer accepts."""
        with self._changing:
            session = self._users.pop(given.digest(self._session_key), None)
        _close([] if session is None else [session])

    def expire(self) -> None:
        """Drop the connections and passwords of users who have viewed no page for a minute."""
        with self._changing:
            until = self._now() - MAX_AGE_SECONDS
            old = [key for key, session in self._users.items() if session.used_at < until]
            expired = [self._users.pop(key) for key in old]
        _close(expired)

    def close(self) -> None:
        """Close all idle connections."""
        with self._changing:
            sessions = [*self._users.values(), *filter(None, [self._shared])]
            self._users.clear()
        _close(sessions)

    def _log_in(self, given: BasicCredentials) -> UserSession:
        assert self._access is not None
        for mechanism, listener in self._access.logins:
            credentials = Credentials(mechanism, given.username, given.password)
            session = UserSession(
                self._client_settings(listener, Security(listener.tls, credentials)),
                MAX_IDLE_OF_USER,
                self._now,
                principal=f"User:{given.username}",
                has_login=True,
                token=self.token(given),
            )
            try:
                session.clients.run(lambda cluster: cluster.brokers())
            except ApiError as error:
                if not is_wrong_password(error):
                    raise
                continue
            return self._add(given, session)
        raise self.login_needed(WRONG_PASSWORD)

    def _add(self, given: BasicCredentials, session: UserSession) -> UserSession:
        key = given.digest(self._session_key)
        surplus: list[UserSession] = []
        with self._changing:
            if (other := self._users.get(key)) is not None:  # a login at the same time
                surplus.append(session)
                session = other
            else:
                self._users[key] = session
                while len(self._users) > MAX_SESSIONS:
                    surplus.append(self._users.pop(next(iter(self._users))))
        _close(surplus)
        return session

    def _client_settings(self, listener: ListenerAddress, security: Security) -> ClientSettings:
        return ClientSettings(
            servers_of(listener.servers), self._client_id, timeout_seconds=TIMEOUT_SECONDS, security=security
        )


def is_wrong_password(error: Exception) -> bool:
    """Return whether a broker has rejected user name or password."""
    return isinstance(error, ApiError) and error.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def _close(sessions: list[UserSession]) -> None:
    for session in sessions:
        session.clients.retire()

"""Access to pages of the HTTP port on a node with an authorizer: HTTP Basic, and an ACL.

The users and passwords are those of the node's SASL listeners, and the authorizer decides about the user, as
it does for a Kafka client. A request without credentials has the principal User:ANONYMOUS.

A SCRAM password is checked in a worker thread, because this takes milliseconds. Programs such as Prometheus
send the same password with each request, so the last verified logins are cached under a keyed hash. The cache
is used only while the user's credential is the same. Passwords of PLAIN are in memory anyway.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from enum import Enum
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from kwire.broker.net.peer_log_limit import PeerLogLimit
from kwire.broker.observe.ports import RunningNode
from kwire.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from kwire.broker.security.password_check import ScramPasswordCheck
from kwire.broker.security.plain import PlainServer
from kwire.broker.security.principal import ANONYMOUS, USER, Principal
from kwire.broker.security.sasl import AuthenticationFailed
from kwire.broker.security.scram_credentials import SCRAM_MECHANISMS
from kwire.broker.security.settings import password_listeners
from kwire.broker.security.users import ScramCredential
from kwire.http.basic_auth import (
    CHALLENGE,
    UNAUTHORIZED,
    BasicCredentials,
    MalformedAuthorization,
    basic_credentials,
)
from kwire.wire.mechanisms import PLAIN

FORBIDDEN: Final = 403
SERVICE_UNAVAILABLE: Final = 503
MAX_CHECKS: Final = 16
"""The number of logins that may be checked, or delayed after a failure, at the same time."""
MAX_WORKERS: Final = 2
"""The number of worker threads that may derive salted passwords."""
MAX_VERIFIED: Final = 64
"""The number of cached logins."""


class Verdict(Enum):
    """The result of a login."""

    CORRECT = "correct"
    WRONG = "wrong"
    BUSY = "busy"
    """Too many logins are being checked."""


class HttpLogin:
    """Checks of user names and passwords at the HTTP port of a node."""

    def __init__(self, running: RunningNode, key: bytes) -> None:
        """`key` is a random key of this process."""
        self._running = running
        self._key = key
        self._rng = running.node.host.random("http-login")
        self._checks = 0
        self._workers = trio.Semaphore(MAX_WORKERS)
        self._verified: dict[bytes, tuple[str, ScramCredential]] = {}
        """The mechanism and the credential of verified logins, the most recently used last."""
        self._log_limit = PeerLogLimit()

    def has_users(self) -> bool:
        """Return whether any listener has users with passwords."""
        return bool(password_listeners(self._running.node.config))

    async def verify(self, given: BasicCredentials, ip: str) -> Verdict:
        """Check a login. A failed one takes at least connection.failed.authentication.delay.ms."""
        if self._has_plain_password(given) or self._is_cached(given):
            return Verdict.CORRECT
        if self._checks >= MAX_CHECKS:
            return Verdict.BUSY
        self._checks += 1
        try:
            began = trio.current_time()
            if await self._has_scram_password(given):
                return Verdict.CORRECT
            delay_ms = self._running.node.config.connection_failed_authentication_delay_ms
            await trio.sleep_until(began + delay_ms / 1000)
        finally:
            self._checks -= 1
        if self._log_limit.should_log(ip, "--http", "login", int(1000 * trio.current_time())):
            self._running.loop.logger("kwire.http").info(
                "Failed login from %s at the HTTP port: wrong user name or password. Further failed logins "
                "from there are not logged for a minute",
                ip,
            )
        return Verdict.WRONG

    def _has_plain_password(self, given: BasicCredentials) -> bool:
        message = f"\0{given.username}\0{given.password}".encode()
        for _, sasl in password_listeners(self._running.node.config):
            if PLAIN in sasl.mechanisms:
                server = PlainServer(sasl.plain_users)
                try:
                    server.evaluate(message)
                except AuthenticationFailed:
                    continue
                return server.outcome is not None
        return False

    async def _has_scram_password(self, given: BasicCredentials) -> bool:
        """Check the password with each SCRAM mechanism, also after one for which the user is unknown."""
        node = self._running.node
        for name in self._mechanisms():
            check = ScramPasswordCheck(
                SCRAM_MECHANISMS[name],
                node.users,
                given.username,
                given.password,
                rng=self._rng,
                decoy_key=self._key,
            )
            credential = node.users.scram_credential(name, given.username)
            await self._run_in_worker(check.derive)
            if check.is_correct() and credential is not None:
                while len(self._verified) >= MAX_VERIFIED:
                    del self._verified[next(iter(self._verified))]
                self._verified[self._digest(given)] = name, credential
                return True
        return False

    def _is_cached(self, given: BasicCredentials) -> bool:
        digest = self._digest(given)
        verified = self._verified.pop(digest, None)
        if verified is None:
            return False
        mechanism, credential = verified
        known = self._running.node.users.scram_credential(mechanism, given.username)
        if mechanism not in self._mechanisms() or known != credential:
            return False
        self._verified[digest] = verified
        return True

    def _mechanisms(self) -> list[str]:
        listeners = password_listeners(self._running.node.config)
        enabled = {name for _, sasl in listeners for name in sasl.mechanisms}
        return [name for name in SCRAM_MECHANISMS if name in enabled]

    def _digest(self, given: BasicCredentials) -> bytes:
        # A user name has no colon (RFC 7617), so the text is unambiguous.
        return hmac.digest(self._key, f"{given.username}:{given.password}".encode(), "sha256")

    async def _run_in_worker(self, work: Callable[[], None]) -> None:
        done = trio.Event()
        results: list[BaseException | None] = []

        def finished(result: BaseException | None) -> None:
            # Also after a canceled wait, so that lost connections do not raise the number of threads.
            self._workers.release()
            results.append(result)
            done.set()

        await self._workers.acquire()
        self._running.node.host.run_in_worker(work, finished)
        await done.wait()
        if isinstance(results[0], BaseException):
            raise results[0]


class PageAccess:
    """Decides about requests for pages that need DESCRIBE on the cluster. Without an authorizer, all may."""

    def __init__(self, running: RunningNode, login: HttpLogin) -> None:
        self._running = running
        self._login = login

    async def refusal(self, request: Request) -> Response | None:
        """Return the response for a client that may not read the page; None if the client may."""
        if self._running.node.gate.authorizer is None:
            return None
        ip = "" if request.client is None else request.client.host
        try:
            given = basic_credentials(request.headers.raw)
        except MalformedAuthorization as error:
            return _unauthorized(str(error))
        principal = ANONYMOUS
        if given is not None:
            verdict = await self._login.verify(given, ip)
            if verdict is Verdict.BUSY:
                return PlainTextResponse("too many logins: try again later\n", SERVICE_UNAVAILABLE)
            if verdict is Verdict.WRONG:
                return _unauthorized("wrong user name or password")
            principal = Principal(USER, given.username)
        is_login_possible = given is None and self._login.has_users()
        if self._allows(principal, ip, request.url.path, is_asked=not is_login_possible):
            return None
        sentence = f"{principal} needs DESCRIBE on the cluster"
        if is_login_possible:
            return _unauthorized(f"{sentence}: log in, or add the ACL")
        advice = "add the ACL" if given is not None else "add the ACL, or enable PLAIN or SCRAM on a listener"
        return PlainTextResponse(f"{sentence}: {advice}\n", FORBIDDEN)

    def _allows(self, principal: Principal, ip: str, path: str, *, is_asked: bool) -> bool:
        """Return whether the client may read the page.

        `is_asked` is False before a login. It is not logged, since clients may try without credentials first.
        """
        gate = self._running.node.gate
        authorizer = gate.authorizer
        assert authorizer is not None
        is_allowed = authorizer.allows(principal, ip, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        if gate.audit_log is not None and (is_allowed or is_asked):
            gate.audit_log.record_page(authorizer, principal, ip, path, is_allowed=is_allowed)
        return is_allowed


def _unauthorized(reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", UNAUTHORIZED, headers=dict(CHALLENGE))

"""Access to pages of the HTTP port on a node with an authorizer: HTTP Basic, and an ACL.

The users and passwords are those of the node's SASL listeners, and the authorizer decides about the user, as
it does for a Kafka client. A request without credentials has the principal User:ANONYMOUS.

A SCRAM password is checked in a worker thread, because this takes milliseconds. Programs such as Prometheus
send the same password with each request, so the last verified logins are cached under a keyed hash. The cache
is used only while the user's credential is the same. Passwords of PLAIN are in memory anyway.

No password is compared before the login has a slot (`login_slots`), which a wrong one keeps for
connection.failed.authentication.delay.ms. So clients cannot guess passwords faster than at a listener.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from kwire.broker.observe.login_listeners import login_listeners
from kwire.broker.observe.login_slots import LoginSlots
from kwire.broker.observe.ports import RunningNode
from kwire.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from kwire.broker.security.password_check import ScramPasswordCheck
from kwire.broker.security.plain import PlainServer
from kwire.broker.security.principal import ANONYMOUS, USER, Principal
from kwire.broker.security.sasl import AuthenticationFailed
from kwire.broker.security.scram_credentials import SCRAM_MECHANISMS
from kwire.broker.security.users import ScramCredential
from kwire.host.peer_log_limit import PeerLogLimit
from kwire.http.basic_auth import (
    CHALLENGE,
    UNAUTHORIZED,
    BasicCredentials,
    MalformedAuthorization,
    basic_credentials,
)
from kwire.http.status import FORBIDDEN, SERVICE_UNAVAILABLE
from kwire.wire.errors import ApiError
from kwire.wire.mechanisms import PLAIN

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

    def __init__(self, running: RunningNode, key: bytes, *, only_local: bool) -> None:
        """`key` is a random key of this process.

        With `only_local`, only programs on this machine reach the HTTP port.
        """
        self._running = running
        self.only_local = only_local
        self._key = key
        self._rng = running.node.host.random("http-login")
        self._slots = LoginSlots()
        self._workers = trio.Semaphore(MAX_WORKERS)
        self._verified: dict[bytes, tuple[str, ScramCredential]] = {}
        """The mechanism and the credential of verified logins, the most recently used last."""
        self._log_limit = PeerLogLimit()

    def has_users(self) -> bool:
        """Return whether any listener has users with passwords who can log in at the HTTP port."""
        return bool(login_listeners(self._running, only_local=self.only_local, counts_names=True))

    async def verify(self, given: BasicCredentials, ip: str) -> Verdict:
        """Check a login. A failed one takes at least connection.failed.authentication.delay.ms."""
        began_s = trio.current_time()
        slot = self._slots.take(ip, began_s)
        if slot is None:
            self._log_rejection(ip, Verdict.BUSY, "too many logins from there, or from all addresses")
            return Verdict.BUSY
        is_correct = False
        until_s = began_s + self._running.node.config.connection_failed_authentication_delay_ms / 1000
        try:
            is_correct = (
                self._has_plain_password(given)
                or self._is_cached(given)
                or await self._has_scram_password(given)
            )
        finally:  # also after a canceled login
            if is_correct:
                self._slots.succeed(slot)
            else:
                self._slots.fail(slot, until_s)
        if is_correct:
            return Verdict.CORRECT
        # Before the delay, in which the client may close the connection.
        self._log_rejection(ip, Verdict.WRONG, "wrong user name or password")
        await trio.sleep_until(until_s)
        return Verdict.WRONG

    def _log_rejection(self, ip: str, kind: Verdict, reason: str) -> None:
        if self._log_limit.should_log(ip, "--http", kind, int(1000 * trio.current_time())):
            self._running.loop.logger("kwire.http").info(
                "Failed login from %s at the HTTP port: %s. Further such logins from there are not logged "
                "for a minute",
                *(ip, reason),
            )

    def _has_plain_password(self, given: BasicCredentials) -> bool:
        message = f"\0{given.username}\0{given.password}".encode()
        for _, sasl in login_listeners(self._running, only_local=self.only_local):
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
                self._verified[given.digest(self._key)] = name, credential
                return True
        return False

    def _is_cached(self, given: BasicCredentials) -> bool:
        digest = given.digest(self._key)
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
        listeners = login_listeners(self._running, only_local=self.only_local)
        enabled = {name for _, sasl in listeners for name in sasl.mechanisms}
        return [name for name in SCRAM_MECHANISMS if name in enabled]

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
        try:
            if self._allows(principal, ip, request, is_asked=not is_login_possible):
                return None
        except ApiError:
            return PlainTextResponse(
                "the node has not loaded the ACLs yet: try again later\n", SERVICE_UNAVAILABLE
            )
        sentence = f"{principal} needs DESCRIBE on the cluster"
        if is_login_possible:
            return _unauthorized(f"{sentence}: log in, or add the ACL")
        advice = "add the ACL" if given is not None else "add the ACL, or enable PLAIN or SCRAM on a listener"
        if given is None and not self._login.only_local:
            advice += " that is not bound to loopback"
        return PlainTextResponse(f"{sentence}: {advice}\n", FORBIDDEN)

    def _allows(self, principal: Principal, ip: str, request: Request, *, is_asked: bool) -> bool:
        """Return whether the client may read the page. Raises ApiError if the ACLs are not loaded.

        `is_asked` is False before a login. It is not logged, since clients may try without credentials first.
        """
        gate = self._running.node.gate
        authorizer = gate.authorizer
        assert authorizer is not None
        is_allowed = authorizer.allows(principal, ip, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        if gate.audit_log is not None and (is_allowed or is_asked):
            gate.audit_log.record_page(
                authorizer, principal, ip, request.method, request.url.path, is_allowed=is_allowed
            )
        return is_allowed


def _unauthorized(reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", UNAUTHORIZED, headers=dict(CHALLENGE))

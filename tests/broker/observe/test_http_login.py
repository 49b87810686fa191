"""Logins for /metrics on a node with an authorizer: passwords, the ACL, delays, limits and the cache."""

from __future__ import annotations

import logging
import random
import time
from base64 import b64encode
from collections.abc import Iterable
from typing import Final

import httpx
import pytest
import trio
import trio.testing

from kwire.broker.config import load
from kwire.broker.config.jaas import PLAIN_MODULE
from kwire.broker.net.serve import serve
from kwire.broker.net.socket_settings import read_socket_settings
from kwire.broker.node.format import format_directories
from kwire.broker.observe import http_login
from kwire.broker.observe.http import HttpPort
from kwire.broker.observe.http_login import HttpLogin, Verdict
from kwire.broker.observe.login_slots import MAX_LOGINS, MAX_LOGINS_PER_ADDRESS
from kwire.broker.security.acl import Acl
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.security.password_check import ScramPasswordCheck
from kwire.broker.security.scram_credentials import SCRAM_MECHANISMS
from kwire.client.acls import create_acls, delete_acls
from kwire.client.users import delete_credential, set_password
from kwire.host.loggers import AUDIT_LOGGER
from kwire.http.basic_auth import BasicCredentials
from kwire.testing.disk import MemoryDisk
from kwire.wire.mechanisms import PLAIN, SCRAM_SHA_256
from tests.broker.observe.authorized import (
    ADMIN,
    DELAY_MS,
    READER,
    SASL_ONLY,
    STRANGER,
    WITH_PLAINTEXT,
    WRITER,
    allow,
    as_admin,
    authorized_settings,
    serve_authorized,
)
from tests.broker.observe.conftest import SETTINGS, ObservedNode, serve_observed

METRIC = "kafka_server_brokertopicmetrics"
CHALLENGE = 'Basic realm="kwire", charset="UTF-8"'


def describe_cluster(user: str) -> Acl:
    return allow(user, Operation.DESCRIBE, ResourceType.CLUSTER)


async def scrape(node: ObservedNode, login: tuple[str, str] | None = None) -> httpx.Response:
    """Request /metrics; a user name and a password are encoded as UTF-8."""
    headers = {}
    if login is not None:
        headers["Authorization"] = f"Basic {b64encode(':'.join(login).encode()).decode()}"
    return await node.http.get("/metrics", headers=headers)


async def test_the_authorizer_decides_who_reads_metrics() -> None:
    acls = [describe_cluster(READER[0]), describe_cluster(WRITER[0])]
    async with serve_authorized(SASL_ONLY, acls) as node:
        for path in ("/healthz", "/readyz", "/"):
            assert await node.text(path)
        for login in (ADMIN, READER, WRITER):
            response = await scrape(node, login)
            assert response.status_code == 200, (login, response.text)
            assert METRIC in response.text
        response = await scrape(node, STRANGER)
        assert response.status_code == 403
        assert response.text == "User:stranger needs DESCRIBE on the cluster: add the ACL\n"
        assert "www-authenticate" not in response.headers
        for wrong in (None, ("unknown", "x"), (READER[0], "wrong"), (ADMIN[0], "wrong"), (READER[0], "")):
            response = await scrape(node, wrong)
            assert response.status_code == 401, (wrong, response.text)
            assert response.headers["www-authenticate"] == CHALLENGE
            assert METRIC not in response.text


async def test_anonymous_needs_the_right_too() -> None:
    async with serve_authorized(SASL_ONLY, [describe_cluster("ANONYMOUS")]) as node:
        assert (await scrape(node)).status_code == 200
        assert (await scrape(node, STRANGER)).status_code == 403
        assert (await scrape(node, (READER[0], "wrong"))).status_code == 401
        await as_admin(node, lambda cluster: delete_acls(cluster, [describe_cluster("ANONYMOUS")]))
        assert (await scrape(node)).status_code == 401


async def test_an_acl_for_a_host_sees_the_address_of_the_client() -> None:
    elsewhere = describe_cluster(READER[0])._replace(host="10.0.0.1")
    async with serve_authorized(SASL_ONLY, [elsewhere]) as node:
        assert (await scrape(node, READER)).status_code == 403
        here = elsewhere._replace(host="127.0.0.1")
        await as_admin(node, lambda cluster: create_acls(cluster, [here]))
        assert (await scrape(node, READER)).status_code == 200


async def test_a_changed_or_deleted_user_cannot_log_in_with_the_old_password() -> None:
    async with serve_authorized(SASL_ONLY, [describe_cluster(READER[0])]) as node:
        for _ in range(2):
            assert (await scrape(node, READER)).status_code == 200
        changed = READER[0], "changed"
        await as_admin(node, lambda cluster: set_password(cluster, *changed, SCRAM_SHA_256))
        assert (await scrape(node, READER)).status_code == 401
        assert (await scrape(node, changed)).status_code == 200
        await as_admin(node, lambda cluster: delete_credential(cluster, changed[0], SCRAM_SHA_256))
        assert (await scrape(node, changed)).status_code == 401


async def test_without_an_authorizer_credentials_are_ignored() -> None:
    async with serve_observed() as node:
        assert METRIC in (await scrape(node, ("unknown", "x"))).text
        assert METRIC in await node.text("/metrics")


async def test_without_users_the_response_says_what_is_missing() -> None:
    authorizer = {key: SASL_ONLY[key] for key in ("authorizer.class.name", "super.users")}
    async with serve_observed({**SETTINGS, **authorizer}) as node:
        response = await scrape(node)
    assert response.status_code == 403
    assert "enable PLAIN or SCRAM on a listener" in response.text


async def test_a_controller_accepts_the_users_of_its_own_listener() -> None:
    jaas = f'{PLAIN_MODULE} required username="node" password="secret" user_node="secret" user_other="x";'
    settings = {
        "process.roles": "controller",
        "node.id": "1",
        "listeners": "CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "sasl.enabled.mechanisms": PLAIN,
        "sasl.mechanism.controller.protocol": PLAIN,
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "authorizer.class.name": SASL_ONLY["authorizer.class.name"],
        "super.users": "User:node",
        "connection.failed.authentication.delay.ms": "0",
        "log.dirs": "/data",
    }
    config, disk = load(None, {}, settings), MemoryDisk()
    list(format_directories(config, disk, random.Random(1), 0, ignore_formatted=True))
    port = HttpPort("0", read_socket_settings(config))
    async with (
        httpx.AsyncClient(base_url=port.url, trust_env=False, timeout=20) as client,
        serve(config, disk=disk, background=[port.serve]) as running,
    ):
        node = ObservedNode(running, client)
        for login, status in ((("node", "secret"), 200), (("other", "x"), 403), (("node", "x"), 401)):
            assert (await scrape(node, login)).status_code == status
        assert (await scrape(node)).status_code == 401


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer token",
        b"Basic",
        b"Basic !!!",
        b"Basic " + b64encode(b"no-colon"),
        b"Basic " + b64encode(b":no-user"),
        b"Basic " + b64encode(b"reader:\xff"),
        b"Basic " + b64encode(b"reader:a\0b"),
        b"Basic " + b64encode(b"reader:" + 4096 * b"x"),
    ],
)
async def test_a_malformed_header_gets_401(header: bytes) -> None:
    async with serve_observed(SASL_ONLY) as node:
        response = await node.http.get("/metrics", headers={b"Authorization": header})
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == CHALLENGE
        both = [("Authorization", "Basic YTpi"), ("Authorization", "Basic YTpi")]
        assert (await node.http.get("/metrics", headers=both)).status_code == 401


async def test_a_failed_login_is_delayed_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve_authorized(SASL_ONLY) as node:
        for login in (("unknown", "guess"), (READER[0], "guess"), (READER[0], "guess")):
            began = time.monotonic()
            assert (await scrape(node, login)).status_code == 401
            assert time.monotonic() - began >= DELAY_MS / 1000
    lines = [one for one in caplog.messages if "Failed login" in one]
    assert len(lines) == 1
    assert "127.0.0.1" in lines[0]
    assert "guess" not in caplog.text


SLOW: Final = {**SASL_ONLY, "connection.failed.authentication.delay.ms": "400"}
"""A delay that is longer than a few requests, also on a busy machine."""


async def fill(login: HttpLogin, ips: Iterable[str], nursery: trio.Nursery) -> None:
    """Start a failing login in each slot of these addresses."""
    for ip in ips:
        for number in range(MAX_LOGINS_PER_ADDRESS):
            nursery.start_soon(login.verify, BasicCredentials(f"user-{number}", "x"), ip)
    await trio.testing.wait_all_tasks_blocked()


ATTACKERS: Final = [f"10.0.0.{number}" for number in range(MAX_LOGINS // MAX_LOGINS_PER_ADDRESS)]


@pytest.mark.parametrize("ip", [ATTACKERS[0], "10.0.1.1"])
async def test_right_and_wrong_passwords_are_refused_alike_while_the_slots_are_taken(
    ip: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serve_authorized(SLOW) as node:
        login = HttpLogin(node.running, b"key", only_local=True)
        admin, reader = BasicCredentials(*ADMIN), BasicCredentials(*READER)
        assert await login.verify(reader, "10.0.2.1") is Verdict.CORRECT, "this login is cached"
        async with trio.open_nursery() as nursery:
            await fill(login, ATTACKERS, nursery)
            for given in (admin, BasicCredentials(ADMIN[0], "wrong"), reader, BasicCredentials("x", "y")):
                assert await login.verify(given, ip) is Verdict.BUSY
        for given in (admin, reader):
            assert await login.verify(given, ip) is Verdict.CORRECT, "the slots are free after the delay"
    assert (
        len([one for one in caplog.messages if f"Failed login from {ip} at" in one and "too many" in one])
        == 1
    )


async def test_other_addresses_do_not_exclude_one_that_has_logged_in() -> None:
    async with serve_authorized(SLOW) as node:
        login = HttpLogin(node.running, b"key", only_local=True)
        for given in (BasicCredentials(*ADMIN), BasicCredentials(*READER)):
            ip = f"10.0.3.{len(given.username)}"
            assert await login.verify(given, ip) is Verdict.CORRECT
        async with trio.open_nursery() as nursery:
            await fill(login, ATTACKERS, nursery)
            for ip in ("10.0.3.5", "10.0.3.6"):
                for known in (ADMIN, READER, WRITER):
                    assert await login.verify(BasicCredentials(*known), ip) is Verdict.CORRECT
            await fill(login, ["10.0.3.5"], nursery)
            assert await login.verify(BasicCredentials(*ADMIN), "10.0.3.5") is Verdict.BUSY


async def test_a_canceled_login_keeps_its_slot_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve_authorized(SLOW) as node:
        login = HttpLogin(node.running, b"key", only_local=True)
        async with trio.open_nursery() as nursery:
            await fill(login, ["10.0.0.1"], nursery)
            await trio.sleep(0.2)  # until the passwords are checked
            nursery.cancel_scope.cancel()
        assert await login.verify(BasicCredentials(*ADMIN), "10.0.0.1") is Verdict.BUSY
    assert "Failed login from 10.0.0.1 at the HTTP port: wrong user name or password" in caplog.text


async def test_too_many_logins_get_503() -> None:
    async with serve_authorized({**SASL_ONLY, "connection.failed.authentication.delay.ms": "3000"}) as node:
        assert (await scrape(node, ADMIN)).status_code == 200
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_LOGINS_PER_ADDRESS):
                nursery.start_soon(scrape, node, ("unknown", "x"))
            await trio.sleep(1)
            for given in (ADMIN, (ADMIN[0], "wrong")):
                response = await scrape(node, given)
                assert (response.status_code, response.text) == (503, "too many logins: try again later\n")
            nursery.cancel_scope.cancel()


async def test_before_the_acls_are_loaded_only_super_users_read_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve_authorized(SASL_ONLY) as node:
        authorizer = node.running.node.gate.authorizer
        assert authorizer is not None
        node.running.node.gate.authorizer = authorizer.changed(is_loaded=False)
        caplog.clear()
        for login in (None, READER):
            response = await scrape(node, login)
            assert response.status_code == 503, response.text
            assert "has not loaded the ACLs yet" in response.text
        assert (await scrape(node, (READER[0], "wrong"))).status_code == 401
        assert (await scrape(node, ADMIN)).status_code == 200
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


EVERYWHERE: Final = authorized_settings(
    "USERS://0.0.0.0:0,NODES://127.0.0.1:0", "USERS:SASL_PLAINTEXT,NODES:SASL_PLAINTEXT"
) | {
    "advertised.listeners": "USERS://127.0.0.1:0,NODES://127.0.0.1:0",
    "listener.name.nodes.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_root="root-secret";',
    "super.users": "User:admin;User:node;User:root",
}


@pytest.mark.parametrize(("address", "status"), [("127.0.0.1:0", 200), ("0.0.0.0:0", 401)])
async def test_users_of_a_loopback_listener_cannot_log_in_from_other_machines(
    address: str, status: int
) -> None:
    async with serve_observed(EVERYWHERE, address) as node:
        assert (await scrape(node, ("root", "root-secret"))).status_code == status
        assert (await scrape(node, ADMIN)).status_code == 200


async def test_without_a_reachable_listener_the_response_names_loopback() -> None:
    async with serve_observed(SASL_ONLY, "0.0.0.0:0") as node:
        response = await scrape(node)
        assert response.status_code == 403
        assert "enable PLAIN or SCRAM on a listener that is not bound to loopback" in response.text
        assert (await scrape(node, ADMIN)).status_code == 401


async def test_the_audit_log_has_the_method_of_the_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    async with serve_authorized(SASL_ONLY) as node:
        caplog.clear()
        headers = {"Authorization": f"Basic {b64encode(':'.join(STRANGER).encode()).decode()}"}
        assert (await node.http.head("/metrics", headers=headers)).status_code == 403
        (line,) = audit_lines(caplog)
    assert "for request = HEAD /metrics" in line


async def test_a_cached_login_needs_no_derivation(monkeypatch: pytest.MonkeyPatch) -> None:
    derived = []
    derive = ScramPasswordCheck.derive

    def counted(check: ScramPasswordCheck) -> None:
        derived.append(check)
        derive(check)

    monkeypatch.setattr(ScramPasswordCheck, "derive", counted)
    monkeypatch.setattr(http_login, "MAX_VERIFIED", 1)
    async with serve_authorized(SASL_ONLY) as node:
        login = HttpLogin(node.running, b"key", only_local=True)

        async def derivations(name: str, password: str, expected: Verdict) -> int:
            before = len(derived)
            assert await login.verify(BasicCredentials(name, password), "10.0.0.1") is expected
            return len(derived) - before

        assert await derivations(*READER, Verdict.CORRECT) == 1
        assert await derivations(*READER, Verdict.CORRECT) == 0
        assert await derivations(READER[0], "wrong", Verdict.WRONG) == 2
        assert await derivations(*READER, Verdict.CORRECT) == 0
        assert await derivations(*STRANGER, Verdict.CORRECT) == 1
        assert await derivations(*READER, Verdict.CORRECT) == 1, "the cache is bounded"
        assert await derivations(*ADMIN, Verdict.CORRECT) == 0, "PLAIN needs no derivation"
        assert await derivations("unknown", "x", Verdict.WRONG) == 2, "as many as for a known user"


async def test_canceled_logins_do_not_raise_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[int] = [0, 0]

    def slow(check: ScramPasswordCheck) -> None:
        running[0] += 1
        running[1] = max(running)
        time.sleep(0.05)
        running[0] -= 1

    monkeypatch.setattr(ScramPasswordCheck, "derive", slow)
    async with serve_authorized(SASL_ONLY) as node:
        login = HttpLogin(node.running, b"key", only_local=True)
        for number in range(8):
            with trio.move_on_after(0.01):
                await login.verify(BasicCredentials(f"user-{number}", "x"), f"10.0.0.{2 + number}")
        assert await login.verify(BasicCredentials("user", "x"), "10.0.0.1") is Verdict.WRONG
    assert running == [0, http_login.MAX_WORKERS]


async def test_denials_of_users_are_in_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    async with serve_authorized(WITH_PLAINTEXT) as node:
        caplog.clear()
        assert (await scrape(node)).status_code == 401
        assert not audit_lines(caplog)
        assert (await scrape(node, STRANGER)).status_code == 403
        (line,) = audit_lines(caplog)
    assert line.removeprefix("[node 1] ").startswith(
        "Principal = User:stranger is Denied operation = DESCRIBE from host = 127.0.0.1 on resource = "
        "Cluster:LITERAL:kafka-cluster for request = GET /metrics"
    )


def audit_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name.startswith(AUDIT_LOGGER)]


@pytest.mark.parametrize(("address", "settings", "times"), [
    ("0.0.0.0:0", EVERYWHERE, 1), ("0.0.0.0:0", SASL_ONLY, 0), ("127.0.0.1:0", EVERYWHERE, 0),
    ("0.0.0.0:0", SETTINGS, 0),
])  # fmt: skip
async def test_passwords_without_tls_cause_a_warning(
    address: str, settings: dict[str, str], times: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_observed(settings, address, console=True) as node:
        await node.text("/healthz")
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert sum("passwords pass unencrypted" in one for one in warnings) == times
    assert sum("ACLs see the address of this broker" in one for one in warnings) == times
    assert not any("Everyone can open" in one for one in warnings)


class NoUsers:
    """A cluster without users."""

    def scram_credential(self, mechanism: str, name: str) -> None:
        return None

    def token(self, mechanism: str, token_id: str) -> None:
        return None


def test_an_unknown_user_has_the_same_decoy_salt_each_time() -> None:
    def salt_of(name: str, key: bytes) -> bytes:
        check = ScramPasswordCheck(
            SCRAM_MECHANISMS[SCRAM_SHA_256], NoUsers(), name, "x", rng=random.Random(1), decoy_key=key
        )
        check.derive()
        assert not check.is_correct()
        return check._challenge.partition(b",s=")[2]

    assert salt_of("a", b"key") == salt_of("a", b"key")
    assert len({salt_of("a", b"key"), salt_of("b", b"key"), salt_of("a", b"other")}) == 3

"""Logins at the console of a broker with an authorizer, through the console's process."""

from __future__ import annotations

import logging
import re
from base64 import b64encode
from pathlib import Path

import httpx
import pytest

from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.cli.shared.command_client import CommandClient
from kwire.client.producer import TopicProducer
from kwire.client.tls import create_context
from kwire.client.users import set_password
from kwire.host.loggers import AUDIT_LOGGER
from kwire.testing.tls import Certificates, Tls
from kwire.wire.mechanisms import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.broker.observe.authorized import (
    ADMIN,
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
from tests.broker.observe.conftest import ObservedNode, serve_observed
from tests.broker.observe.test_console import console_pids
from tests.console.conftest import text_of

TOPICS = ("orders", "payments", "full")
READ_ORDERS = allow(READER[0], Operation.READ, ResourceType.TOPIC, "orders")
WRITE_ORDERS = allow(WRITER[0], Operation.WRITE, ResourceType.TOPIC, "orders")


def basic(login: tuple[str, str]) -> str:
    return f"Basic {b64encode(':'.join(login).encode()).decode()}"


async def get(node: ObservedNode, path: str, login: tuple[str, str] | None = None) -> httpx.Response:
    headers = {} if login is None else {"Authorization": basic(login)}
    return await node.http.get(f"/console{path}", headers=headers)


async def page(node: ObservedNode, path: str, login: tuple[str, str] | None, status: int = 200) -> str:
    """Return the text of a page."""
    response = await get(node, path, login)
    assert response.status_code == status, text_of(response.text)
    return text_of(response.text)


def create_topics(cluster: CommandClient) -> None:
    names = (*TOPICS, "empty")
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    response = cluster.send(CreateTopicsRequest(topics=topics, timeout_ms=10_000), CreateTopicsResponse)
    assert not any(one.error_code for one in response.topics)
    for name in TOPICS:
        TopicProducer(cluster, name).send({0: [(0, None, f"a record of {name}".encode(), [])]})


async def test_each_user_sees_what_acls_allow() -> None:
    async with serve_authorized(SASL_ONLY, [READ_ORDERS, WRITE_ORDERS], console=True) as node:
        await as_admin(node, create_topics)
        everything = await page(node, "/", ADMIN)
        assert "orders" in everything
        assert "payments" in everything
        assert "Logged in as admin" in everything
        for login in (READER, WRITER):
            own = await page(node, "/", login)
            assert "orders" in own
            assert "payments" not in own
            assert f"User:{login[0]} needs DESCRIBE on the cluster to show sizes" in own
        assert "There are no topics" in await page(node, "/", STRANGER)
        assert "a record of orders" in await page(node, "/topics/orders/0", READER)
        assert "writer needs READ on topic orders" in await page(node, "/topics/orders/0", WRITER, 403)
        assert "reader needs DESCRIBE on topic payments" in await page(
            node, "/topics/payments/0", READER, 403
        )


async def test_requests_without_the_right_password_get_401() -> None:
    async with serve_authorized(SASL_ONLY, [READ_ORDERS], console=True) as node:
        assert (await get(node, "/static/console.css")).status_code == 200
        for path in ("/", "/topics/orders", "/login", "/topics/orders/live/events"):
            for login in (None, ("unknown", "x"), (READER[0], "wrong"), (ADMIN[0], "wrong")):
                response = await get(node, path, login)
                assert response.status_code == 401, (path, login)
                assert response.headers["www-authenticate"] == 'Basic realm="kwire", charset="UTF-8"'
                assert "orders" not in text_of(response.text)
            await page(node, "/", READER)  # its connection must not serve the next wrong password
        response = await get(node, "/login", READER)
        assert response.status_code == 303
        assert response.headers["location"] == "/console/"
        for header in (b"Bearer x", b"Basic !", b"Basic OnB3"):
            response = await node.http.get("/console/", headers={b"Authorization": header})
            assert response.status_code == 401
        changed = READER[0], "changed"
        await as_admin(node, lambda cluster: set_password(cluster, *changed, SCRAM_SHA_256))
        await page(node, "/", changed)


async def test_pages_without_a_login_are_those_of_the_anonymous_user() -> None:
    acl = allow("ANONYMOUS", Operation.READ, ResourceType.TOPIC, "orders")
    async with serve_authorized(WITH_PLAINTEXT, [acl], console=True) as node:
        await as_admin(node, create_topics)
        start = await page(node, "/", None)
        assert "Log in" in start
        assert "orders" in start
        assert "payments" not in start
        assert "ANONYMOUS needs DESCRIBE on topic payments" in await page(node, "/topics/payments", None, 403)
        assert "payments" in await page(node, "/", ADMIN)
        assert (await get(node, "/login")).status_code == 401
        assert (await get(node, "/", (READER[0], "wrong"))).status_code == 401
        assert "a record of orders" in await page(node, "/topics/orders/0", None)


async def test_a_loopback_listener_serves_no_anonymous_pages_to_other_machines() -> None:
    acl = allow("ANONYMOUS", Operation.READ, ResourceType.TOPIC, "orders")
    async with serve_authorized(WITH_PLAINTEXT, [acl], console=True, address="0.0.0.0:0") as node:
        for login in (None, READER, ADMIN):
            found = await page(node, "/", login, 403)
            assert "a listener on loopback counts only if the HTTP port is on loopback" in found
    settings = authorized_settings(
        "USERS://0.0.0.0:0,OPEN://127.0.0.1:0", "USERS:SASL_PLAINTEXT,OPEN:PLAINTEXT"
    )
    settings["advertised.listeners"] = "USERS://127.0.0.1:0,OPEN://127.0.0.1:0"
    async with serve_authorized(settings, [acl], console=True, address="0.0.0.0:0") as node:
        await page(node, "/", None, 401)
        await page(node, "/", READER)


async def test_without_a_usable_listener_the_page_says_what_is_missing() -> None:
    certificates = Certificates(Tls("required"))
    settings = {
        "listeners": "USERS://127.0.0.1:0",
        "listener.security.protocol.map": "USERS:SSL",
        "inter.broker.listener.name": "USERS",
        **{key: SASL_ONLY[key] for key in ("authorizer.class.name", "super.users")},
        **certificates.listener_settings("users"),
    }
    async with serve_observed(settings, console=True) as node:
        for path in ("/", "/login"):
            for login in (None, ADMIN):
                assert "add a listener with SCRAM or PLAIN" in await page(node, path, login, 403)


@pytest.mark.parametrize("mechanisms", [(PLAIN,), (PLAIN, SCRAM_SHA_512)])
@pytest.mark.parametrize("auth", ["none", "required"])
@pytest.mark.proc
async def test_users_log_in_over_tls(mechanisms: tuple[str, ...], auth: str) -> None:
    certificates = Certificates(Tls(auth))  # type: ignore[arg-type]
    settings = authorized_settings("USERS://127.0.0.1:0", "USERS:SASL_SSL", mechanisms)
    settings |= certificates.listener_settings("users")
    trusted = {
        key.removeprefix("listener.name.users."): value
        for key, value in settings.items()
        if key.startswith("listener.name.users.ssl.")
    }
    context = create_context(trusted)
    metrics_from_here = allow(WRITER[0], Operation.DESCRIBE, ResourceType.CLUSTER)._replace(host="127.0.0.1")
    async with serve_authorized(
        settings, [WRITE_ORDERS, metrics_from_here], console=True, tls=context, tls_listener="USERS"
    ) as node:
        await as_admin(node, create_topics, context)
        assert "payments" in await page(node, "/", ADMIN)
        expected = 200 if SCRAM_SHA_512 in mechanisms else 401
        assert "Logged in as writer" in (found := await page(node, "/", WRITER, expected)) or expected == 401
        assert "payments" not in found
        await page(node, "/", (ADMIN[0], "wrong"), 401)
        response = await node.http.get("/metrics", headers={"Authorization": basic(ADMIN)})
        assert response.status_code == 200
        response = await node.http.get("/metrics", headers={"Authorization": basic(WRITER)})
        assert response.status_code == expected, "an ACL sees the address of the client behind TLS"
        (pid,) = console_pids()
        for name in ("cmdline", "environ"):
            found_bytes = Path(f"/proc/{pid}/{name}").read_bytes()
            assert not any(
                secret in found_bytes for secret in (b"PRIVATE KEY", b"node-secret", b"admin-secret")
            )


async def submit(
    node: ObservedNode, login: tuple[str, str] | None, token: str, **headers: str
) -> httpx.Response:
    """Submit the form that produces a message."""
    if login is not None:
        headers["Authorization"] = basic(login)
    fields = {"token": token, "value": "a new record", "partition": "0"}
    return await node.http.post("/console/topics/orders/messages", data=fields, headers=headers)


async def test_acls_decide_about_forms_and_each_user_has_another_token() -> None:
    visible = allow("ANONYMOUS", Operation.DESCRIBE, ResourceType.TOPIC, "orders")
    async with serve_authorized(WITH_PLAINTEXT, [READ_ORDERS, WRITE_ORDERS, visible], console=True) as node:
        await as_admin(node, create_topics)
        tokens = {}
        for login in (READER, WRITER, None):
            source = (await get(node, "/topics/orders", login)).text
            assert "read-only" not in source
            found = re.search(r'name="token" value="(\w+)"', source)
            assert found is not None
            tokens[login] = found[1]
        assert len(set(tokens.values())) == 3
        for login, right in ((READER, "reader"), (None, "ANONYMOUS")):
            response = await submit(node, login, tokens[login])
            assert response.status_code == 403
            assert f"User:{right} needs WRITE on topic orders" in text_of(response.text)
        for other in (tokens[READER], tokens[None], ""):
            response = await submit(node, WRITER, other)
            assert response.status_code == 403
            assert "Nothing was changed" in text_of(response.text)
        cross_site = {"origin": "http://evil.example"}
        assert (await submit(node, WRITER, tokens[WRITER], **cross_site)).status_code == 403
        cross_site = {"sec-fetch-site": "cross-site"}
        assert (await submit(node, WRITER, tokens[WRITER], **cross_site)).status_code == 403
        assert (await submit(node, (WRITER[0], "wrong"), tokens[WRITER])).status_code == 401
        assert "a new record" not in await page(node, "/topics/orders/0", ADMIN)
        response = await submit(node, WRITER, tokens[WRITER])
        assert response.status_code == 303
        assert "a new record" in await page(node, "/topics/orders/0", ADMIN)


async def test_pages_without_denied_items_leave_one_denial_in_the_audit_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    async with serve_authorized(SASL_ONLY, [READ_ORDERS], console=True) as node:
        await as_admin(node, create_topics)
        caplog.clear()
        paths = ["/", "/topics/orders", "/topics/orders/0", "/topics/orders/0/0", "/topics/orders/0/log"]
        paths += ("/topics/orders/key?key=x", "/groups", "/transactions", "/configs", "/cluster")
        for path in paths:
            await page(node, path, READER)
        assert "hidden" in await page(node, "/cluster", READER)
        [denied] = [one for one in caplog.messages if "is Denied" in one]
        assert "for request = DescribeCluster" in denied, "one request of the session reads the user's rights"
        await page(node, "/topics/payments/key?key=x", READER, 403)
        assert len([one for one in caplog.messages if "is Denied" in one]) == 2


DENIED_PAGES = {
    "/topics/payments/key?key=x": "DESCRIBE on topic payments",
    "/topics/payments/live": "DESCRIBE on topic payments",
    "/topics/payments/live/events": "DESCRIBE on topic payments",
    "/topics/payments/0/log": "DESCRIBE on topic payments",
    "/topics/payments/0/0": "DESCRIBE on topic payments",
    "/topics/unknown": "DESCRIBE on topic unknown",
    "/topics/empty/0/log": "READ on topic empty",
    "/topics/full/key?key=x": "READ on topic full",
    "/topics/full/0/log": "READ on topic full",
    "/topics/full/live": "READ on topic full",
    "/topics/full/live/events": "READ on topic full",
    "/group?id=billing": "DESCRIBE on group billing",
    "/transaction?id=billing-1": "DESCRIBE on transactional id billing-1",
    "/configs?kind=topic&name=full": "DESCRIBE_CONFIGS on topic full",
    "/configs?kind=broker&name=1": "DESCRIBE_CONFIGS on the cluster",
    "/configs?kind=group&name=billing": "DESCRIBE_CONFIGS on group billing",
}


async def test_a_denied_page_names_the_missing_right() -> None:
    acls = [allow(READER[0], Operation.DESCRIBE, ResourceType.TOPIC, name) for name in ("full", "empty")]
    async with serve_authorized(SASL_ONLY, acls, console=True) as node:
        await as_admin(node, create_topics)
        for path, needed in DENIED_PAGES.items():
            assert f"User:reader needs {needed}" in await page(node, path, READER, 403), path

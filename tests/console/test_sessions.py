"""Connections of the console's users: one user's connection never serves another user or password."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from threading import Thread

import pytest
import trio
import trio.testing

from kwire.broker.security.settings import Credentials
from kwire.cli.shared.client_settings import ClientSettings, servers_of
from kwire.cli.shared.command_client import CommandClient
from kwire.client.security import PLAINTEXT, Security
from kwire.client.users import delete_credential, set_password
from kwire.console import sessions as sessions_module
from kwire.console.app import Console
from kwire.console.client_pool import MAX_AGE_SECONDS
from kwire.console.live import Tail
from kwire.console.page import Access, ConsoleSettings, ListenerAddress, Login
from kwire.console.sessions import (
    LoginNeeded,
    NoListener,
    Sessions,
    TooManyLogins,
    UserSession,
    is_wrong_password,
)
from kwire.http.basic_auth import BasicCredentials
from kwire.testing import Acl, Broker
from kwire.wire.errors import ApiError
from kwire.wire.mechanisms import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from tests.console.conftest import run_console

ALICE, BOB = BasicCredentials("alice", "alice-secret"), BasicCredentials("bob", "bob-secret")
ROOT, CAROL = BasicCredentials("root", "root-secret"), BasicCredentials("carol", "carol-secret")
MECHANISMS = (SCRAM_SHA_512, SCRAM_SHA_256, PLAIN)


@pytest.fixture
def broker() -> Iterator[Broker]:
    users = dict([ALICE, BOB, ROOT])
    with Broker(
        {"super.users": "User:root"}, users=users, acls=[Acl.allow("alice", "READ", topic="orders")]
    ) as running:
        running.create_topic("orders")
        yield running


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


def sessions_of(broker: Broker, clock: list[float], mechanisms: tuple[str, ...] = MECHANISMS) -> Sessions:
    address = ListenerAddress(broker.bootstrap_servers)
    access = Access(tuple(Login(mechanism, address) for mechanism in mechanisms))
    return Sessions(ConsoleSettings("", 1, (), may_write=True, access=access), "secret", lambda: clock[0])


def logins(broker: Broker) -> int:
    """Return the number of connections of the console: each begins with ApiVersions."""
    return len(broker.requests.find("ApiVersions", client_id="kwire-console"))


def view(session: UserSession) -> list[str]:
    """View a page and return the names of the topics on it."""
    return session.clients.run(lambda cluster: [one.name or "" for one in cluster.metadata(None).topics])


def change_password(broker: Broker, name: str, password: str | None, mechanism: str) -> None:
    """Change the SCRAM password of a user; None deletes the user."""
    security = Security(None, Credentials(PLAIN, *ROOT))
    with CommandClient(ClientSettings(servers_of(broker.bootstrap_servers), security=security)) as cluster:
        if password is None:
            delete_credential(cluster, name, mechanism)
        else:
            set_password(cluster, name, password, mechanism)


def test_users_have_connections_of_their_own(broker: Broker, clock: list[float]) -> None:
    users = sessions_of(broker, clock)
    assert view(users.of(ALICE)) == ["orders"]
    assert view(users.of(BOB)) == []
    assert logins(broker) == 2
    for _ in range(3):
        assert view(users.of(ALICE)) == ["orders"]
        assert view(users.of(BOB)) == []
    assert logins(broker) == 2
    assert users.of(ALICE).principal == "User:alice"
    users.close()


def test_a_wrong_password_does_not_get_the_connection_of_the_right_one(
    broker: Broker, clock: list[float]
) -> None:
    users = sessions_of(broker, clock)
    users.of(ALICE)
    for wrong in (
        BasicCredentials("alice", "bob-secret"),
        BasicCredentials("alice", "alice-secret "),
        BasicCredentials("unknown", "alice-secret"),
    ):
        with pytest.raises(LoginNeeded, match="wrong user name or password"):
            users.of(wrong)
    with pytest.raises(LoginNeeded, match="log in"):
        users.of(None)
    users.close()


def test_mechanisms_are_tried_in_turn_and_remembered(broker: Broker, clock: list[float]) -> None:
    change_password(broker, *CAROL, SCRAM_SHA_256)
    users = sessions_of(broker, clock)
    users.of(CAROL)
    assert logins(broker) == 2
    view(users.of(CAROL))
    clock[0] += MAX_AGE_SECONDS - 1
    users.of(CAROL)
    clock[0] += 2
    view(users.of(CAROL))
    assert logins(broker) == 3, "only the mechanism of the user is used again"
    users.close()


@pytest.mark.parametrize("password", [None, "changed"])
def test_a_changed_user_is_noticed_within_the_age_of_a_connection(
    broker: Broker, clock: list[float], password: str | None
) -> None:
    change_password(broker, *CAROL, SCRAM_SHA_256)
    users = sessions_of(broker, clock)
    session = users.of(CAROL)
    change_password(broker, "carol", password, SCRAM_SHA_256)
    clock[0] += MAX_AGE_SECONDS
    with pytest.raises(ApiError) as failed:
        view(session)
    assert is_wrong_password(failed.value)
    users.drop(CAROL)
    with pytest.raises(LoginNeeded):
        users.of(CAROL)
    users.close()


def test_sessions_are_bounded_and_expire(
    broker: Broker, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "MAX_SESSIONS", 1)
    users = sessions_of(broker, clock)
    first = users.of(ALICE)
    users.of(BOB)
    assert users.of(ALICE) is not first
    second = users.of(ALICE)
    clock[0] += MAX_AGE_SECONDS + 1
    assert users.of(ALICE) is not second
    users.close()


def test_a_client_of_an_evicted_session_is_closed_after_its_page(broker: Broker, clock: list[float]) -> None:
    users = sessions_of(broker, clock)
    session = users.of(ALICE)

    def page(cluster: CommandClient) -> None:
        users.drop(ALICE)
        cluster.brokers()

    session.clients.run(page)
    before = logins(broker)
    session.clients.run(lambda cluster: cluster.brokers())
    assert logins(broker) == before + 1
    users.close()


def test_logins_of_one_user_at_the_same_time_share_a_session(broker: Broker, clock: list[float]) -> None:
    users = sessions_of(broker, clock, (PLAIN,))
    found: list[UserSession] = []
    threads = [Thread(target=lambda: found.append(users.of(ALICE))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in found}) == 1
    users.close()


@pytest.fixture
def slow_broker() -> Iterator[Broker]:
    """Run a broker that returns the error of a failed login after two seconds."""
    settings = {"super.users": "User:root", "connection.failed.authentication.delay.ms": 2000}
    acls = [Acl.allow("alice", "READ", topic="orders")]
    with Broker(settings, users=dict([ALICE, BOB, ROOT]), acls=acls) as running:
        running.create_topic("orders")
        yield running


def begin_failing(users: Sessions, *ips: str) -> list[Thread]:
    """Start logins with a wrong password from these addresses."""

    def fail(ip: str) -> None:
        with pytest.raises(LoginNeeded):
            users.of(BasicCredentials("alice", "wrong"), ip)

    threads = [Thread(target=fail, args=[ip]) for ip in ips]
    before = users._logins.total()
    for thread in threads:
        thread.start()
    until = time.monotonic() + 10
    while users._logins.total() < before + len(ips):
        assert time.monotonic() < until
        time.sleep(0.001)
    return threads


def test_too_many_logins_at_the_same_time_are_refused(slow_broker: Broker, clock: list[float]) -> None:
    users = sessions_of(slow_broker, clock, (PLAIN,))
    users.of(ALICE, "10.0.0.9")
    threads = begin_failing(users, "10.0.0.1", "10.0.0.1")
    with pytest.raises(TooManyLogins):
        users.of(BOB, "10.0.0.1")
    users.of(BOB, "10.0.0.2")
    threads += begin_failing(users, "10.0.0.2", "10.0.0.2")
    for given in (ROOT, BasicCredentials("root", "wrong")):
        with pytest.raises(TooManyLogins):
            users.of(given, "10.0.0.3")
    assert users.of(ALICE, "10.0.0.1"), "users who have logged in still get pages"
    for thread in threads:
        thread.join()
    assert not users._logins
    users.of(ROOT, "10.0.0.1")
    users.close()


def test_clients_with_unknown_addresses_share_no_limit_of_one_address(
    slow_broker: Broker, clock: list[float]
) -> None:
    users = sessions_of(slow_broker, clock, (PLAIN,))
    threads = begin_failing(users, "", "", "")
    users.of(BOB)
    for thread in threads:
        thread.join()
    users.close()


def settings_of(broker: Broker, *mechanisms: str) -> ConsoleSettings:
    address = ListenerAddress(broker.bootstrap_servers)
    access = Access(tuple(Login(mechanism, address) for mechanism in mechanisms))
    return ConsoleSettings("", 1, (), may_write=True, access=access)


async def test_a_login_under_way_takes_no_live_tail(
    slow_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.console.app.MAX_TAILS", 1)
    path = "/console/topics/unknown/live/events"
    async with run_console(settings_of(slow_broker, PLAIN)) as console, trio.open_nursery() as nursery:
        nursery.start_soon(partial(console.http.get, path, auth=("alice", "wrong")))
        await trio.testing.wait_all_tasks_blocked()
        response = await console.http.get(path, auth=(ALICE.username, ALICE.password))
        assert response.status_code == 403, "no live tail was open, so the topic is checked"


async def test_failed_logins_are_logged_once_with_the_address_of_the_browser(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_console(settings_of(broker, PLAIN)) as console:
        await console.page("/", 401)
        assert "Failed login" not in caplog.text
        console.http.auth = "alice", "a-guess"
        for path in ("/", "/topics/orders/live/events"):
            await console.page(path, 401)
    [line] = [one for one in caplog.messages if "at the web console" in one]
    assert "Failed login from 127.0.0.1 at the web console" in line
    assert "a-guess" not in line


def test_requests_without_credentials_drop_expired_sessions(broker: Broker, clock: list[float]) -> None:
    users = sessions_of(broker, clock, (PLAIN,))
    users.of(ALICE)
    clock[0] += MAX_AGE_SECONDS + 1
    with pytest.raises(LoginNeeded):
        users.of(None)
    assert not users._users
    users.close()


async def test_sessions_expire_while_the_console_gets_no_requests(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.console.app.EXPIRY_SECONDS", 0.01)
    monkeypatch.setattr(sessions_module, "MAX_AGE_SECONDS", 0.0)
    with Console(settings_of(broker, PLAIN), "token") as console:
        users = console._sessions
        await trio.to_thread.run_sync(users.of, ALICE)
        assert users._users
        async with trio.open_nursery() as nursery:
            nursery.start_soon(console.expire_sessions)
            with trio.fail_after(20):
                while users._users:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


async def test_pages_follow_a_user_to_another_mechanism(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.console.client_pool.MAX_AGE_SECONDS", 0.0)  # each page has a new connection
    change_password(broker, *CAROL, SCRAM_SHA_256)
    async with run_console(settings_of(broker, *MECHANISMS)) as console:
        console.http.auth = CAROL.username, CAROL.password
        await console.page("/")
        change_password(broker, *CAROL, SCRAM_SHA_512)
        change_password(broker, "carol", None, SCRAM_SHA_256)
        await console.page("/")
        change_password(broker, "carol", None, SCRAM_SHA_512)
        assert "wrong user name or password" in await console.page("/", 401)


def test_rights_on_the_cluster_are_requested_once_a_minute(broker: Broker, clock: list[float]) -> None:
    users = sessions_of(broker, clock)
    session = users.of(ALICE)
    assert not session.clients.run(session.may_describe_cluster)
    broker.set_acls([Acl.allow("alice", "DESCRIBE", cluster=True)])
    assert not session.clients.run(session.may_describe_cluster)
    clock[0] += MAX_AGE_SECONDS
    assert session.clients.run(session.may_describe_cluster)
    assert len(broker.requests.find("DescribeCluster", client_id="kwire-console")) == 2
    users.close()


def test_tokens_of_forms_differ_between_users(broker: Broker, clock: list[float]) -> None:
    users = sessions_of(broker, clock)
    tokens = [users.token(one) for one in (None, ALICE, BOB, BasicCredentials("ANONYMOUS", "x"))]
    assert len(set(tokens)) == 4
    assert users.token(BasicCredentials("alice", "other")) == users.token(ALICE)
    without = Sessions(ConsoleSettings("127.0.0.1:1", 1, (), may_write=True), "secret")
    assert without.token(None) == "secret"


def test_without_listeners_the_error_says_what_is_missing() -> None:
    users = Sessions(ConsoleSettings("", 1, (), may_write=True, access=Access(())), "secret")
    for given in (None, ALICE):
        with pytest.raises(NoListener, match="add a listener with SCRAM or PLAIN"):
            users.of(given)


def test_a_tail_ends_within_a_minute_after_its_user_was_deleted(broker: Broker, clock: list[float]) -> None:
    change_password(broker, *CAROL, SCRAM_SHA_256)
    broker.set_acls([Acl.allow("carol", "READ", topic="orders")])
    security = Security(None, Credentials(SCRAM_SHA_256, *CAROL))
    cluster = CommandClient(ClientSettings(servers_of(broker.bootstrap_servers), security=security))
    tail = Tail(cluster, [("orders", 0)], renews_login=True, now=lambda: clock[0])
    tail.next()
    broker.produce("orders", "one")
    assert [row["offset"] for row in tail.next()["rows"]] == [0]
    clock[0] += MAX_AGE_SECONDS
    broker.produce("orders", "two")
    assert [row["offset"] for row in tail.next()["rows"]] == [1], "a new connection loses no record"
    change_password(broker, "carol", None, SCRAM_SHA_256)
    tail.next()
    clock[0] += MAX_AGE_SECONDS
    with pytest.raises(ApiError) as failed:
        tail.next()
    assert is_wrong_password(failed.value)
    tail.close()


def test_no_text_of_a_session_shows_a_password(broker: Broker, clock: list[float]) -> None:
    users = sessions_of(broker, clock)
    session = users.of(ALICE)
    shown = repr([ALICE, users, session, vars(users), vars(session), vars(session.clients), PLAINTEXT])
    assert "alice-secret" not in shown
    users.close()

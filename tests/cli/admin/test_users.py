"""`kwire users` and `kwire tokens`, as one of the users asks."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kwire.testing import Broker, ClientConfig, Kafka
from kwire.testing.cluster import Cluster as Brokers
from kwire.wire.errors import ApiError
from tests.cli.running import Desk, Ran

SCRAM = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(users={"alice": "alice-secret", "bob": "bob-secret"}) as broker:
        yield broker


@pytest.fixture
def as_user(secured: Broker, offline: Desk, tmp_path: Path) -> Callable[..., Ran]:
    """Run a command as somebody: alice, where nobody else is said."""

    def run(*arguments: str, login: ClientConfig | None = None) -> Ran:
        path = tmp_path / "client.properties"
        properties = (login or secured.client_config()).java
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return offline(*arguments, "--command-config", str(path))

    return run


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a password on the standard input."""
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def may_come(login: ClientConfig) -> bool:
    with Kafka(login.bootstrap_servers, properties=login.java) as kafka:
        try:
            kafka.topics()
        except ApiError:
            return False
    return True


def test_a_user_is_set_and_taken_away(
    secured: Broker, as_user: Callable[..., Ran], given: Callable[[str], None]
) -> None:
    given("carol-secret\r\nmore\n")
    ran = as_user("users", "set", "carol")
    assert ran.out.splitlines() == [f"carol has a password for {mechanism}" for mechanism in SCRAM]
    logins = [
        ClientConfig(secured.bootstrap_servers, "carol", "carol-secret", mechanism) for mechanism in SCRAM
    ]
    assert [may_come(login) for login in logins] == [True, True]
    given("changed")
    told = as_user("users", "set", "carol", "--mechanism", SCRAM[1], "--iterations", "8192", "--json").json
    assert told == [{"user": "carol", "mechanism": SCRAM[1]}]
    assert [may_come(login) for login in logins] == [True, False]
    rows = as_user("users", "list", "carol", "--json").json
    assert [(row["mechanism"], row["iterations"]) for row in rows] == [(SCRAM[0], 4096), (SCRAM[1], 8192)]
    assert as_user("users", "list", "--names").out.splitlines() == ["alice", "bob", "carol"]
    assert as_user("users", "delete", "carol", "--mechanism", SCRAM[0]).status == 0
    assert [may_come(login) for login in logins] == [False, False]
    assert as_user("users", "delete", "carol", "--json").json == [{"user": "carol", "mechanism": SCRAM[1]}]
    assert as_user("users", "list", "--names").out.splitlines() == ["alice", "bob"]
    assert "carol" in as_user("users", "delete", "carol").sentence


def test_a_broker_that_is_gone_keeps_nobody_from_a_password(
    offline: Desk, given: Callable[[str], None], tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    with Brokers(users={"alice": "alice-secret"}, timeout_s=60) as cluster:
        path.write_text("".join(f"{key}={value}\n" for key, value in cluster.client_config().java.items()))

        def ran_without(node_id: int, *arguments: str) -> Ran:
            """What comes of a command of which a broker dies that is still believed to be there."""
            cluster.brokers[node_id].crash()
            ran = offline(*arguments, "--command-config", str(path), "--timeout", "60")
            assert (ran.status, ran.err) == (0, f"node {node_id} has not applied the change yet\n")
            cluster.brokers[node_id].start()
            return ran

        given("new-secret")
        ran = ran_without(2, "users", "set", "carol")
        assert ran.out.splitlines() == [f"carol has a password for {mechanism}" for mechanism in SCRAM]
        [told] = ran_without(3, "tokens", "create", "--json").json
        cluster.brokers[2].crash()
        token = cluster.create_token()
        for login in (
            *(
                ClientConfig(cluster.bootstrap_servers, "carol", "new-secret", mechanism)
                for mechanism in SCRAM
            ),
            ClientConfig(cluster.bootstrap_servers, told["token"], told["password"], SCRAM[0], is_token=True),
            token,
        ):
            with Kafka(login.bootstrap_servers, timeout_s=60, properties=login.java) as kafka:
                kafka.topics()


def test_a_name_that_no_client_can_show_is_told(
    secured: Broker, as_user: Callable[..., Ran], given: Callable[[str], None]
) -> None:
    given("secret")
    ran = as_user("users", "set", "zoë", "--mechanism", SCRAM[0])
    assert (ran.status, ran.out) == (0, f"zoë has a password for {SCRAM[0]}\n"), "as Kafka's own tools do"
    assert ran.err == "clients cannot authenticate as zoë: SCRAM user names are ASCII\n"
    as_user("users", "delete", "zoë")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_password_is_asked_for_twice(
    secured: Broker, as_user: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["once", "other", "same", "same"]
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", lambda prompt: typed.pop(0))
    assert as_user("users", "set", "dave").sentence.endswith("the two passwords differ: nothing was changed")
    assert as_user("users", "set", "dave").status == 0
    assert may_come(ClientConfig(secured.bootstrap_servers, "dave", "same", SCRAM[0]))
    as_user("users", "delete", "dave")


def test_what_is_no_password_is_refused(
    as_user: Callable[..., Ran], given: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    assert as_user("users", "set", "x").sentence.endswith("the password is not UTF-8")
    given("\n")
    assert as_user("users", "set", "x").sentence.endswith("the password is empty")
    ran = as_user("users", "set", "x", "--iterations", "1")
    assert (ran.status, ran.sentence) == (2, "kwire users: --iterations 1: expected 4096 to 16384")


def test_a_token_is_made_renewed_and_ended(secured: Broker, as_user: Callable[..., Ran]) -> None:
    [told] = as_user("tokens", "create", "--renewer", "bob", "--lifetime", "10d", "--json").json
    assert (told["owner"], told["requester"], told["renewers"]) == ("alice", "alice", ["bob"])
    login = ClientConfig(secured.bootstrap_servers, told["token"], told["password"], SCRAM[1], is_token=True)
    assert may_come(login)
    [listed] = as_user("tokens", "list", "alice", "--json").json
    assert listed == {key: value for key, value in told.items() if key != "password"}
    assert as_user("tokens", "list", "bob", "--json").json == [listed], "he may renew it"
    assert as_user("tokens", "list", "carol", "--json").json == []
    secured.advance(DAY_MS // 2)
    [renewed] = as_user(
        "tokens", "renew", told["token"], "--for", "2d", "--json", login=secured.client_config("bob")
    ).json
    assert renewed["token"] == told["token"]
    assert renewed["expires"] > told["expires"]
    [later] = as_user("tokens", "expire", told["token"], "--after", "1h", "--json").json
    assert later["expires"] < told["expires"]
    assert as_user("tokens", "expire", told["token"]).status == 0
    assert as_user("tokens", "list", "--json").json == []
    assert not may_come(login)


def test_a_token_is_told_to_people(secured: Broker, as_user: Callable[..., Ran]) -> None:
    first, second = as_user("tokens", "create", "--owner", "User:bob").out.splitlines()
    token_id = first.split()[1]
    assert first.startswith(f"token {token_id} of bob expires at 2")
    assert second.startswith("password, for SCRAM with tokenauth=true: ")
    assert as_user("tokens", "expire", token_id).sentence == (
        "kwire tokens: the token: delegation token owner mismatch; "
        "only its owner and its renewers can do that"
    )
    ran = as_user("tokens", "expire", token_id, login=secured.client_config("bob"))
    assert ran.out.startswith(f"token {token_id} expires at 2")


def test_what_is_no_token_is_told(secured: Broker, as_user: Callable[..., Ran], desk: Desk) -> None:
    assert "there is no token nosuch that you can describe" in as_user("tokens", "renew", "nosuch").sentence
    ran = as_user("tokens", "create", "--lifetime", "soon")
    assert (ran.status, ran.sentence) == (
        2,
        "kwire tokens: --lifetime soon: expected a time like 10m (or ms, s, h, d)",
    )
    ran = as_user("tokens", "create", login=secured.create_token())
    assert ran.sentence.endswith("use a SASL listener, and a user with a password")
    assert desk("tokens", "create").sentence.endswith("use a SASL listener, and a user with a password")


def test_who_is_not_believed_is_told_what_to_look_at(secured: Broker, as_user: Callable[..., Ran]) -> None:
    ran = as_user("topics", "list", login=secured.client_config()._replace(password="guessed"))
    assert ran.sentence == (
        f"kwire topics: user alice at {secured.bootstrap_servers}: Authentication failed: Invalid username "
        f"or password (sasl authentication failed); check username and password in sasl.jaas.config"
    )

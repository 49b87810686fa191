"""`kwire users` and `kwire tokens`, run as a SASL user."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kwire.testing import Broker, ClientConfig, Kafka
from kwire.testing.cluster import Cluster
from kwire.wire.errors import ApiError
from tests.cli.run_command import CommandResult, RunCommand

SCRAM = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(users={"alice": "alice-secret", "bob": "bob-secret"}) as broker:
        yield broker


@pytest.fixture
def as_user(secured: Broker, offline: RunCommand, tmp_path: Path) -> Callable[..., CommandResult]:
    """Return a function that runs a command as a user, alice by default."""

    def run(*arguments: str, login: ClientConfig | None = None) -> CommandResult:
        path = tmp_path / "client.properties"
        properties = (login or secured.client_config()).java
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return offline(*arguments, "--command-config", str(path))

    return run


@pytest.fixture
def enter_password(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that puts a password on standard input."""
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def can_authenticate(login: ClientConfig) -> bool:
    with Kafka(login.bootstrap_servers, properties=login.java) as kafka:
        try:
            kafka.topics()
        except ApiError:
            return False
    return True


def test_user_is_created_changed_and_deleted(
    secured: Broker, as_user: Callable[..., CommandResult], enter_password: Callable[[str], None]
) -> None:
    enter_password("carol-secret\r\nmore\n")
    result = as_user("users", "set", "carol")
    assert result.out.splitlines() == [f"carol has a password for {mechanism}" for mechanism in SCRAM]
    logins = [
        ClientConfig(secured.bootstrap_servers, "carol", "carol-secret", mechanism) for mechanism in SCRAM
    ]
    assert [can_authenticate(login) for login in logins] == [True, True]
    enter_password("changed")
    described = as_user(
        "users", "set", "carol", "--mechanism", SCRAM[1], "--iterations", "8192", "--json"
    ).json
    assert described == [{"user": "carol", "mechanism": SCRAM[1]}]
    assert [can_authenticate(login) for login in logins] == [True, False]
    rows = as_user("users", "list", "carol", "--json").json
    assert [(row["mechanism"], row["iterations"]) for row in rows] == [(SCRAM[0], 4096), (SCRAM[1], 8192)]
    assert as_user("users", "list", "--names").out.splitlines() == ["alice", "bob", "carol"]
    assert as_user("users", "delete", "carol", "--mechanism", SCRAM[0]).status == 0
    assert [can_authenticate(login) for login in logins] == [False, False]
    assert as_user("users", "delete", "carol", "--json").json == [{"user": "carol", "mechanism": SCRAM[1]}]
    assert as_user("users", "list", "--names").out.splitlines() == ["alice", "bob"]
    assert "carol" in as_user("users", "delete", "carol").sentence


def test_stopped_broker_does_not_block_new_users_and_tokens(
    offline: RunCommand, enter_password: Callable[[str], None], tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    with Cluster(users={"alice": "alice-secret"}, timeout_s=60) as cluster:
        path.write_text("".join(f"{key}={value}\n" for key, value in cluster.client_config().java.items()))

        def run_while_down(node_id: int, *arguments: str) -> CommandResult:
            """Run a command while a broker is down that the metadata still lists as running."""
            cluster.brokers[node_id].crash()
            result = offline(*arguments, "--command-config", str(path), "--timeout", "60")
            assert (result.status, result.err) == (0, f"node {node_id} has not applied the change yet\n")
            cluster.brokers[node_id].start()
            return result

        enter_password("new-secret")
        result = run_while_down(2, "users", "set", "carol")
        assert result.out.splitlines() == [f"carol has a password for {mechanism}" for mechanism in SCRAM]
        [described] = run_while_down(3, "tokens", "create", "--json").json
        cluster.brokers[2].crash()
        token = cluster.create_token()
        for login in (
            *(
                ClientConfig(cluster.bootstrap_servers, "carol", "new-secret", mechanism)
                for mechanism in SCRAM
            ),
            ClientConfig(
                cluster.bootstrap_servers, described["token"], described["password"], SCRAM[0], is_token=True
            ),
            token,
        ):
            with Kafka(login.bootstrap_servers, timeout_s=60, properties=login.java) as kafka:
                kafka.topics()


def test_non_ascii_user_name_prints_a_warning(
    secured: Broker, as_user: Callable[..., CommandResult], enter_password: Callable[[str], None]
) -> None:
    enter_password("secret")
    result = as_user("users", "set", "zoë", "--mechanism", SCRAM[0])
    assert (result.status, result.out) == (0, f"zoë has a password for {SCRAM[0]}\n"), (
        "as Kafka's own tools do"
    )
    assert result.err == "clients cannot authenticate as zoë: SCRAM user names are ASCII\n"
    as_user("users", "delete", "zoë")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_password_prompt_asks_twice(
    secured: Broker, as_user: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = ["once", "other", "same", "same"]
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", lambda prompt: passwords.pop(0))
    assert as_user("users", "set", "dave").sentence.endswith("the two passwords differ: nothing was changed")
    assert as_user("users", "set", "dave").status == 0
    assert can_authenticate(ClientConfig(secured.bootstrap_servers, "dave", "same", SCRAM[0]))
    as_user("users", "delete", "dave")


def test_invalid_password_or_iterations_are_refused(
    as_user: Callable[..., CommandResult],
    enter_password: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    assert as_user("users", "set", "x").sentence.endswith("the password is not UTF-8")
    enter_password("\n")
    assert as_user("users", "set", "x").sentence.endswith("the password is empty")
    result = as_user("users", "set", "x", "--iterations", "1")
    assert (result.status, result.sentence) == (2, "kwire users: --iterations 1: expected 4096 to 16384")


def test_token_is_created_renewed_and_expired(secured: Broker, as_user: Callable[..., CommandResult]) -> None:
    [described] = as_user("tokens", "create", "--renewer", "bob", "--lifetime", "10d", "--json").json
    assert (described["owner"], described["requester"], described["renewers"]) == ("alice", "alice", ["bob"])
    login = ClientConfig(
        secured.bootstrap_servers, described["token"], described["password"], SCRAM[1], is_token=True
    )
    assert can_authenticate(login)
    [listed] = as_user("tokens", "list", "alice", "--json").json
    assert listed == {key: value for key, value in described.items() if key != "password"}
    assert as_user("tokens", "list", "bob", "--json").json == [listed], "bob is a renewer of the token"
    assert as_user("tokens", "list", "carol", "--json").json == []
    secured.advance(DAY_MS // 2)
    [renewed] = as_user(
        "tokens", "renew", described["token"], "--for", "2d", "--json", login=secured.client_config("bob")
    ).json
    assert renewed["token"] == described["token"]
    assert renewed["expires"] > described["expires"]
    [later] = as_user("tokens", "expire", described["token"], "--after", "1h", "--json").json
    assert later["expires"] < described["expires"]
    assert as_user("tokens", "expire", described["token"]).status == 0
    assert as_user("tokens", "list", "--json").json == []
    assert not can_authenticate(login)


def test_token_is_printed_as_text(secured: Broker, as_user: Callable[..., CommandResult]) -> None:
    first, second = as_user("tokens", "create", "--owner", "User:bob").out.splitlines()
    token_id = first.split()[1]
    assert first.startswith(f"token {token_id} of bob expires at 2")
    assert second.startswith("password, for SCRAM with tokenauth=true: ")
    assert as_user("tokens", "expire", token_id).sentence == (
        "kwire tokens: the token: delegation token owner mismatch; "
        "only its owner and its renewers can do that"
    )
    result = as_user("tokens", "expire", token_id, login=secured.client_config("bob"))
    assert result.out.startswith(f"token {token_id} expires at 2")


def test_tokens_errors_are_one_sentence(
    secured: Broker, as_user: Callable[..., CommandResult], run: RunCommand
) -> None:
    assert "there is no token nosuch that you can describe" in as_user("tokens", "renew", "nosuch").sentence
    result = as_user("tokens", "create", "--lifetime", "soon")
    assert (result.status, result.sentence) == (
        2,
        "kwire tokens: --lifetime soon: expected a time like 10m (or ms, s, h, d)",
    )
    result = as_user("tokens", "create", login=secured.create_token())
    assert result.sentence.endswith("use a SASL listener, and a user with a password")
    assert run("tokens", "create").sentence.endswith("use a SASL listener, and a user with a password")


def test_failed_authentication_names_the_key_to_check(
    secured: Broker, as_user: Callable[..., CommandResult]
) -> None:
    result = as_user("topics", "list", login=secured.client_config()._replace(password="guessed"))
    assert result.sentence == (
        f"kwire topics: user alice at {secured.bootstrap_servers}: Authentication failed: Invalid username "
        f"or password (sasl authentication failed); check username and password in sasl.jaas.config"
    )

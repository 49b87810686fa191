"""What all commands have in common: help, errors, exit statuses."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire.cli.main import TOOLS
from kwire.cli.main import main as kwire
from kwire.cli.tools import TOOL_MODULES, main, parser_of
from kwire.testing import Broker
from tests.cli.running import Desk

ROOT = Path(__file__).resolve().parents[2]


def _commands() -> Iterator[tuple[str, ...]]:
    """Commands, and those of them that have actions with each of these."""
    yield from _actions()
    yield from {command[:1] for command in _actions() if len(command) > 1}


def _actions() -> Iterator[tuple[str, ...]]:
    for name in TOOL_MODULES:
        subparsers = [one for one in parser_of(name)._actions if one.dest == "action"]
        yield from (
            ((name, action) for action in subparsers[0].choices or ()) if subparsers else iter([(name,)])
        )


@pytest.mark.parametrize("command", sorted(_commands()), ids=" ".join)
def test_help_has_a_sentence_and_an_example(command: tuple[str, ...], offline: Desk) -> None:
    ran = offline(*command, "--help")
    assert ran.status == 0
    paragraphs = ran.out.split("\n\n")
    assert paragraphs[0].startswith(f"usage: kwire {' '.join(command)} ")
    assert paragraphs[1].endswith(".")
    assert re.search(f"examples?:\n  kwire {' '.join(command)}", ran.out)
    assert "--json" in ran.out or (command[0],) == command


def test_every_command_is_a_command_of_kwire_and_in_the_documentation() -> None:
    assert list(TOOLS) == list(TOOL_MODULES)
    page = (ROOT / "docs" / "command-line.md").read_text()
    for command in _actions():
        assert f"`kwire {command[0]}`" in page
        assert len(command) == 1 or f"`{command[1]}`" in page, command


def test_kwire_runs_them(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    assert kwire(["topics", "list", "--json", "nothing-*", "-b", broker.bootstrap_servers]) == 1
    assert "there is no topic 'nothing-*': 'kwire topics list' lists the topics" in capsys.readouterr().err


def test_what_nobody_reads_any_more_is_no_error(broker: Broker, desk: Desk) -> None:
    desk("topics", "create", "a-long-name" * 20)
    command = [sys.executable, "-m", "kwire", "topics", "describe", "a-long*", "-b", broker.bootstrap_servers]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    finally:
        os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("redirected", "sentence"),
    [
        (">/dev/full", "standard output cannot be written: No space left on device"),
        (">&-", "standard output is closed: leave it open for the command's output"),
        (">&- 2>&-", None),
    ],
)
@pytest.mark.parametrize("command", ["topics list", "consume told --from 0 --until end", "completion bash"])
def test_what_cannot_be_told_is_one_sentence(
    broker: Broker, desk: Desk, command: str, redirected: str, sentence: str | None
) -> None:
    desk("produce", "told", "x")
    at = "" if "completion" in command else f"-b {broker.bootstrap_servers}"
    ran = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m kwire {command} {at} {redirected}"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    said = f"kwire {command.split()[0]}: {sentence}\n" if sentence else ""
    assert (ran.returncode, ran.stderr) == (1, said)


def test_standard_input_that_is_closed_is_told(broker: Broker) -> None:
    command = f"{sys.executable} -m kwire produce closed -b {broker.bootstrap_servers}"
    for rest, status, said in (("<&-", 2, "standard input is closed: give lines on it"), ("x <&-", 0, "")):
        ran = subprocess.run(["sh", "-c", f"{command} {rest}"], capture_output=True, text=True, cwd=ROOT)
        assert ran.returncode == status
        assert said in ran.stderr


def test_ctrl_c_ends_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("kwire.cli.admin.topics._list", interrupted)
    assert main("topics", ["list"], {}) == 130


def test_where_nobody_listens_it_is_said_how_to_start_one(offline: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ran = offline("topics", "list", "--bootstrap-server", f"127.0.0.1:{port}")
    assert ran.status == 1
    assert ran.sentence == (
        f"kwire topics: no broker is reachable (127.0.0.1:{port}: connection refused): start one with 'kwire "
        f"serve', or name another with --bootstrap-server"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("topics",),
            "kwire topics: the following arguments are required: ACTION; see 'kwire topics --help'",
        ),
        (
            ("topics", "list", "--name"),
            "kwire topics list: unrecognized arguments: --name, did you mean '--names'?",
        ),
        (
            ("consume", "a", "-n", "x"),
            "kwire consume: argument -n/--max: invalid int value: 'x'; see 'kwire consume",
        ),
        (("produce", "a", "--acks", "5"), "invalid choice: '5' (choose from '0', '1', 'all')"),
    ],
)
def test_arguments_that_are_wrong_are_told_in_one_sentence(
    offline: Desk, arguments: tuple[str, ...], told: str
) -> None:
    ran = offline(*arguments)
    assert ran.status == 2
    assert told in ran.sentence


@pytest.mark.parametrize(
    ("api", "code", "arguments", "what"),
    [
        ("Produce", "TOPIC_AUTHORIZATION_FAILED", ("produce", "hidden", "x"), "topic"),
        ("Fetch", "TOPIC_AUTHORIZATION_FAILED", ("consume", "hidden", "--idle", "0"), "topic"),
        ("OffsetFetch", "GROUP_AUTHORIZATION_FAILED", ("groups", "reset", "g", "--to", "end"), "group"),
        ("CreateTopics", "CLUSTER_AUTHORIZATION_FAILED", ("topics", "create", "x"), "cluster"),
    ],
)
def test_who_may_not_is_told_what_would_let_him(
    broker: Broker, desk: Desk, api: str, code: str, arguments: tuple[str, ...], what: str
) -> None:
    desk("topics", "create", "hidden", "--if-not-exists")
    fault = broker.faults.return_error(api, code)
    ran = desk(*arguments)
    assert fault.is_over
    assert f"; use a user with access, or change the {what}'s ACLs" in ran.sentence


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (["topics", "delete", "a", "--timeout", "3", "b"], {"topics": ["a", "b"]}),
        (
            ["configs", "alter", "topic", "--set", "retention.ms=1", "orders"],
            {"kind": "topic", "name": "orders"},
        ),
    ],
)
def test_arguments_stand_behind_options_too(command: list[str], found: dict[str, object]) -> None:
    assert found.items() <= vars(parser_of(command[0]).parse_args(command[1:])).items()


def test_one_argument_too_many_is_told(offline: Desk) -> None:
    ran = offline("configs", "describe", "topic", "orders", "--all", "bills")
    assert ran.status == 2
    assert ran.sentence.startswith("kwire configs describe: unrecognized arguments: bills; ")

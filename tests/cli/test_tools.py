"""Help, errors and exit statuses of all commands."""

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
from kwire.cli.shared.errors import describe_api_error
from kwire.cli.tools import TOOL_MODULES, main, parser_of
from kwire.testing import ApiName, Broker, ErrorName
from kwire.wire.errors import ApiError, ErrorCode
from tests.cli.run_command import RunCommand

ROOT = Path(__file__).resolve().parents[2]


def _commands() -> Iterator[tuple[str, ...]]:
    """Yield each command, and each command with each of its actions."""
    yield from _actions()
    yield from {command[:1] for command in _actions() if len(command) > 1}


def _actions() -> Iterator[tuple[str, ...]]:
    for name in TOOL_MODULES:
        subparsers = [one for one in parser_of(name)._actions if one.dest == "action"]
        yield from (
            ((name, action) for action in subparsers[0].choices or ()) if subparsers else iter([(name,)])
        )


@pytest.mark.parametrize("command", sorted(_commands()), ids=" ".join)
def test_tool_help_has_a_sentence_and_an_example(command: tuple[str, ...], offline: RunCommand) -> None:
    result = offline(*command, "--help")
    assert result.status == 0
    paragraphs = result.out.split("\n\n")
    assert paragraphs[0].startswith(f"usage: kwire {' '.join(command)} ")
    assert paragraphs[1].endswith(".")
    assert re.search(f"examples?:\n  kwire {' '.join(command)}", result.out)
    assert "--json" in result.out or (command[0],) == command


def test_every_command_is_in_kwire_and_in_the_documentation() -> None:
    assert list(TOOLS) == list(TOOL_MODULES)
    page = (ROOT / "docs" / "command-line.md").read_text()
    for command in _actions():
        assert f"`kwire {command[0]}`" in page
        assert len(command) == 1 or f"`{command[1]}`" in page, command


def test_kwire_runs_the_tools(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    assert kwire(["topics", "list", "--json", "nothing-*", "-b", broker.bootstrap_servers]) == 1
    error = "there is no topic 'nothing-*', or this user may not describe it: 'kwire topics list' lists the"
    assert error in capsys.readouterr().err


def test_closed_pipe_is_no_error(broker: Broker, run: RunCommand) -> None:
    run("topics", "create", "a-long-name" * 20)
    command = [sys.executable, "-m", "kwire", "topics", "describe", "a-long*", "-b", broker.bootstrap_servers]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("redirected", "message"),
    [
        (">/dev/full", "standard output cannot be written: No space left on device"),
        (">&-", "standard output is closed: leave it open for the command's output"),
        (">&- 2>&-", None),
    ],
)
@pytest.mark.parametrize(
    "command", ["topics list", "consume written --from 0 --until end", "completion bash"]
)
def test_unwritable_standard_output_is_one_sentence(
    broker: Broker, run: RunCommand, command: str, redirected: str, message: str | None
) -> None:
    run("produce", "written", "x")
    at = "" if "completion" in command else f"-b {broker.bootstrap_servers}"
    result = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m kwire {command} {at} {redirected}"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    expected = f"kwire {command.split()[0]}: {message}\n" if message else ""
    assert (result.returncode, result.stderr) == (1, expected)


def test_closed_standard_input_is_an_error(broker: Broker) -> None:
    command = f"{sys.executable} -m kwire produce closed -b {broker.bootstrap_servers}"
    for rest, status, expected in (
        ("<&-", 2, "standard input is closed: write lines to it"),
        ("x <&-", 0, ""),
    ):
        result = subprocess.run(["sh", "-c", f"{command} {rest}"], capture_output=True, text=True, cwd=ROOT)
        assert result.returncode == status
        assert expected in result.stderr


def test_ctrl_c_ends_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("kwire.cli.admin.topics._list", interrupted)
    assert main("topics", ["list"], {}) == 130


def test_unreachable_broker_suggests_kwire_serve(offline: RunCommand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = offline("topics", "list", "--bootstrap-server", f"127.0.0.1:{port}")
    assert result.status == 1
    assert result.sentence == (
        f"kwire topics: no broker is reachable (127.0.0.1:{port}: connection refused): start one with 'kwire "
        f"serve', or name another with --bootstrap-server"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_usage_error_is_one_sentence(offline: RunCommand, arguments: tuple[str, ...], message: str) -> None:
    result = offline(*arguments)
    assert result.status == 2
    assert message in result.sentence


@pytest.mark.parametrize(
    ("api", "code", "arguments"),
    [
        ("Produce", "TOPIC_AUTHORIZATION_FAILED", ("produce", "hidden", "x")),
        ("Fetch", "TOPIC_AUTHORIZATION_FAILED", ("consume", "hidden", "--idle", "0")),
        ("OffsetFetch", "GROUP_AUTHORIZATION_FAILED", ("groups", "reset", "g", "--to", "end")),
        ("CreateTopics", "CLUSTER_AUTHORIZATION_FAILED", ("topics", "create", "x")),
    ],
)
def test_authorization_error_names_the_log_with_the_missing_acl(
    broker: Broker, run: RunCommand, api: ApiName, code: ErrorName, arguments: tuple[str, ...]
) -> None:
    run("topics", "create", "hidden", "--if-not-exists")
    fault = broker.faults.return_error(api, code)
    result = run(*arguments)
    assert fault.is_over
    assert "; use a user with access, or add the ACL: the broker's log has " in result.sentence


def test_producer_id_needs_write_on_a_topic(broker: Broker, run: RunCommand) -> None:
    run("topics", "create", "hidden", "--if-not-exists")
    broker.faults.return_error("InitProducerId", "CLUSTER_AUTHORIZATION_FAILED")
    assert run("produce", "hidden", "x").sentence == (
        "kwire produce: a producer id: the user has no WRITE on any topic (cluster authorization failed); "
        "an ACL for WRITE on the topic is enough"
    )


def test_error_message_does_not_repeat_the_code() -> None:
    for message in ("Authorization failed.", "Topic authorization failed."):
        error = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"topic orders: {message}")
        assert describe_api_error(error).startswith("topic orders: topic authorization failed; use")


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
def test_arguments_may_follow_options(command: list[str], found: dict[str, object]) -> None:
    assert found.items() <= vars(parser_of(command[0]).parse_args(command[1:])).items()


def test_extra_argument_is_an_error(offline: RunCommand) -> None:
    result = offline("configs", "describe", "topic", "orders", "--all", "bills")
    assert result.status == 2
    assert result.sentence.startswith("kwire configs describe: unrecognized arguments: bills; ")

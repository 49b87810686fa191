"""What the command says before a broker starts: one line where something is wrong, and how much it loads."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire.cli.cluster.directory import ClusterDirectory
from kwire.cli.cluster.plan import NodeCounts
from kwire.cli.main import main
from kwire.cli.server.serve import OTHER_PORT_EXAMPLE

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """The command switches the garbage collector off, in a process that is its own elsewhere."""
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["serve", "--set", "num.partitions"], 2, "--set num.partitions: expected KEY=VALUE"),
        (["serve", "--set", "num.partition=3"], 1, "did you mean num.partitions?"),
        (["serve", "--set", "node.id=x"], 1, "Invalid value x for configuration node.id: "),
        (["serve", "--set", "broker.id=x"], 1, "Invalid value x for configuration broker.id: "),
        (["serve", "--slow-request-ms", "soon"], 2, "--slow-request-ms is 'soon': expected milliseconds"),
        (["serve", "--http", ""], 2, "--http : expected PORT or HOST:PORT"),
        (["serve", "--http", "0", "--console-writes"], 2, "has no effect without the console: add --console"),
        (["serve", "no-such.properties"], 1, "no-such.properties: No such file or directory: give the path"),
        (["format"], 2, "--cluster-id is missing"),
        (["format", "-t", "x", "--standalone", "--no-initial-controllers"], 2, "exclude each other"),
        (["format", "-t", "x", "--node-id", "x"], 1, "Invalid value x for configuration node.id: "),
        (["container", "run", "A"], 2, "A: expected NAME=VALUE"),
        (
            ["container", "healthy", "--default-configs-dir", "/none"],
            1,
            "/none/server.properties: No such file or directory: run this in the image, or name a directory",
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status
    told = capsys.readouterr().err
    assert told.startswith("kwire: ")
    assert said in told
    assert told.count("\n") == 1


def test_a_file_that_says_too_little_is_told_with_the_way_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\n")
    assert main(["serve", str(path)]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith('kwire: Missing required configuration "process.roles"')
    assert told.endswith(f": add it to {path}, or omit the file and set keys with --set")


def test_a_port_in_use_is_told_with_the_way_to_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        setting = f"listeners=PLAINTEXT://{where}"
        assert main(["serve", "--data", str(tmp_path), "--set", setting]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert where in told
    assert told.endswith(f"as {OTHER_PORT_EXAMPLE} does")
    assert (
        main(["serve", "--data", str(tmp_path), *OTHER_PORT_EXAMPLE.split(), "--set", "num.partitions=no"])
        == 1
    )
    assert "num.partitions" in capsys.readouterr().err, "what is proposed is taken as far as that"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["serve", "--htp", "8080"],
            "kwire serve: unrecognized arguments: --htp, did you mean '--http'?\n",
        ),
        (
            ["serve", "--port", "9093"],
            "kwire serve: unrecognized arguments: --port, did you mean "
            "'--set listeners=PLAINTEXT://127.0.0.1:PORT'?\n",
        ),
        (
            ["cluster"],
            "kwire cluster: the following arguments are required: ACTION; see 'kwire cluster --help'",
        ),
        (
            ["container", "run", "--x"],
            "kwire container run: unrecognized arguments: --x; see 'kwire container run",
        ),
        (
            ["pipeline", "archive"],
            "kwire pipeline archive: the following arguments are required: --config; see 'kwire pipeline ",
        ),
        (["bogus"], "kwire: argument COMMAND: invalid choice: 'bogus' (choose from 'serve', "),
    ],
)
def test_arguments_that_are_wrong_are_told_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr().err
    assert told.startswith(said)
    assert (ended.value.code, told.count("\n")) == (2, 1)


@pytest.mark.parametrize(("name", "wrong"), [("KWIRE_HTTP", "eighty"), ("KWIRE_CONSOLE", "yes")])
def test_what_the_environment_says_wrongly_of_the_http_port_is_told(
    name: str,
    wrong: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(name, wrong)
    assert main(["serve", "--data", str(tmp_path / "data")]) == 2
    assert wrong in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_variable_that_is_empty_asks_for_no_http_port(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[object] = []

    async def serve(config: object, http: object, *others: object) -> str:
        served.append(http)
        return "enough"

    monkeypatch.setattr("kwire.cli.server.serve._serve", serve)
    monkeypatch.setenv("KWIRE_HTTP", "")
    assert main(["serve", "--data", str(tmp_path)]) == 1
    assert served == [None]


def test_a_level_of_logging_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KWIRE_LOG_LEVEL", "loud")
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == (
        "kwire: KWIRE_LOG_LEVEL is 'loud': expected one of debug, info, warning, error\n"
    )


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    told = capsys.readouterr().out
    assert all(command in told for command in ("serve", "format", "pipeline"))


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "format",
        "cluster up",
        "cluster down",
        "container run",
        "container healthy",
        "pipeline",
        "pipeline audit",
    ],
)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: kwire {command} ")
    assert f"\n  kwire {command}" in told[told.index("\nexample") :]


def test_what_is_not_asked_for_is_not_loaded() -> None:
    look = "import sys; from kwire.cli.main import main; main(['--version']); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    loaded = {name for name in ran.stdout.split() if name.startswith(("kwire.", "trio"))}
    modules = (
        "",
        ".main",
        ".broker_settings",
        ".shared",
        ".shared.command_error",
        ".shared.parser",
        ".shared.standard_streams",
    )
    assert loaded == {f"kwire.cli{name}" for name in modules}


@pytest.mark.parametrize(
    ("command", "by"),
    [
        ("--version", "kwire"),
        ("format -t VR3DnY0PSo6BogqnlFV8Vg --data", "kwire format"),
        ("cluster down --dir", "kwire cluster"),
    ],
)
def test_that_standard_output_is_full_is_told(tmp_path: Path, command: str, by: str) -> None:
    place = tmp_path / "place"
    if "cluster" in command:
        ClusterDirectory(str(place)).create(NodeCounts(combined=1), 19_092, {})
    where = "" if command == "--version" else place
    ran = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m kwire {command} {where} >/dev/full"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert ran.stderr == f"{by}: standard output cannot be written: No space left on device\n"
    assert ran.returncode == 1


def test_a_broker_serves_whose_standard_output_is_full(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kwire", "serve", "--data", str(tmp_path / "data")]
    command += ["--set", "listeners=PLAINTEXT://127.0.0.1:0"]
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT) as broker,
    ):
        assert broker.stderr is not None
        assert any("kwire serves on 127.0.0.1:" in line for line in broker.stderr), "what it would have said"
        broker.terminate()
        assert "Exception" not in broker.stderr.read()
    assert broker.returncode == 0

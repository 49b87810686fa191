"""`kwire` before a broker starts: error messages, help and imports."""

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
from kwire.cli.server import serve
from kwire.cli.server.service import Service

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """Enable the garbage collector again: the command disables it for its own process."""
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
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
        (["format", "-t", "x", "--standalone", "--no-initial-controllers"], 2, "use only one of"),
        (["format", "-t", "x", "--node-id", "x"], 1, "Invalid value x for configuration node.id: "),
        (["container", "run", "A"], 2, "A: expected NAME=VALUE"),
        (
            ["container", "healthy", "--default-configs-dir", "/none"],
            1,
            "/none/server.properties: No such file or directory: run this in the image, or name a directory",
        ),
    ],
)
def test_main_errors_are_one_line(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status
    output = capsys.readouterr().err
    assert output.startswith("kwire: ")
    assert message in output
    assert output.count("\n") == 1


def test_missing_required_key_suggests_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\n")
    assert main(["serve", str(path)]) == 1
    output = capsys.readouterr().err.splitlines()[-1]
    assert output.startswith('kwire: Missing required configuration "process.roles"')
    assert output.endswith(f": add it to {path}, or omit the file and set keys with --set")


def test_used_port_suggests_one_that_is_not_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        argument = f"127.0.0.1:{taken.getsockname()[1]}"
        command = ["serve", "--data", str(tmp_path), "--set", f"listeners=PLAINTEXT://{argument}"]
        monkeypatch.setattr(serve, "OTHER_PORTS", (port, 0))
        assert main(command) == 1
        output = capsys.readouterr().err.splitlines()[-1]
        assert argument in output
        assert output.endswith("as --set listeners=PLAINTEXT://127.0.0.1:0 does")
        other.close()
        assert main(command) == 1
    suggested = f"--set listeners=PLAINTEXT://127.0.0.1:{port}"
    assert capsys.readouterr().err.endswith(f"as {suggested} does\n")
    assert main(["serve", "--data", str(tmp_path), *suggested.split(), "--set", "num.partitions=no"]) == 1
    assert "num.partitions" in capsys.readouterr().err, "the suggested option is accepted"


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_invalid_arguments_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    output = capsys.readouterr().err
    assert output.startswith(message)
    assert (ended.value.code, output.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("name", "value"), [("KWIRE_HTTP", "eighty"), ("KWIRE_CONSOLE", "yes"), ("KWIRE_ACCEPT_UNPROTECTED", "1")]
)
def test_invalid_environment_variable_is_an_error(
    name: str,
    value: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["serve", "--data", str(tmp_path / "data")]) == 2
    assert value in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_serve_without_a_protection_starts_only_if_that_is_accepted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Service, "run", lambda service: 0)
    command = ["serve", "--data", str(tmp_path), "--set", "authorizer.class.name=com.example.Authorizer"]
    assert main(command) == 1
    assert capsys.readouterr().err == (
        "kwire: kwire does not restrict clients as these settings ask: authorizer.class.name: remove them, "
        "or start without this protection with --accept-unprotected (KWIRE_ACCEPT_UNPROTECTED=true)\n"
    )
    assert main([*command, "--accept-unprotected"]) == 0
    monkeypatch.setenv("KWIRE_ACCEPT_UNPROTECTED", "true")
    assert main(command) == 0


def test_empty_http_variable_opens_no_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    http_addresses: list[object] = []

    def run(service: Service) -> int:
        http_addresses.append(service._http)
        return 0

    monkeypatch.setattr(Service, "run", run)
    monkeypatch.setenv("KWIRE_HTTP", "")
    assert main(["serve", "--data", str(tmp_path)]) == 0
    assert http_addresses == [None]


def test_invalid_log_level_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KWIRE_LOG_LEVEL", "loud")
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == (
        "kwire: KWIRE_LOG_LEVEL is 'loud': expected one of debug, info, warning, error\n"
    )


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    output = capsys.readouterr().out
    assert all(command in output for command in ("serve", "format", "pipeline"))


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
    output = capsys.readouterr().out
    assert output.startswith(f"usage: kwire {command} ")
    assert f"\n  kwire {command}" in output[output.index("\nexample") :]


def test_version_imports_few_modules() -> None:
    program = "import sys; from kwire.cli.main import main; main(['--version']); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name for name in result.stdout.split() if name.startswith(("kwire.", "trio"))}
    modules = (
        "",
        ".main",
        ".broker_settings",
        ".shared",
        ".shared.command_error",
        ".shared.parser",
        ".shared.standard_streams",
    )
    of_wire = {name for name in loaded if name.startswith("kwire.wire")}
    assert loaded - of_wire == {
        *(f"kwire.cli{name}" for name in modules),
        "kwire.host",
        "kwire.host.platform",
    }
    # The version names the language of the record scan.
    assert of_wire - {"kwire.wire._record_scan"} == {
        f"kwire.wire{name}" for name in ("", ".errors", ".named_tuple", ".primitives", ".record_scan")
    }


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("--version", "kwire"),
        ("format -t VR3DnY0PSo6BogqnlFV8Vg --data", "kwire format"),
        ("cluster down --dir", "kwire cluster"),
    ],
)
def test_full_standard_output_is_an_error(tmp_path: Path, command: str, program: str) -> None:
    directory = tmp_path / "place"
    if "cluster" in command:
        ClusterDirectory(str(directory)).create(NodeCounts(combined=1), 19_092, {})
    argument = "" if command == "--version" else directory
    result = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m kwire {command} {argument} >/dev/full"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert result.stderr == f"{program}: standard output cannot be written: No space left on device\n"
    assert result.returncode == 1


def test_broker_serves_with_a_full_standard_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kwire", "serve", "--data", str(tmp_path / "data")]
    command += ["--set", "listeners=PLAINTEXT://127.0.0.1:0"]
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT) as broker,
    ):
        assert broker.stderr is not None
        assert any("kwire serves on 127.0.0.1:" in line for line in broker.stderr), (
            "the address is logged instead"
        )
        broker.terminate()
        assert "Exception" not in broker.stderr.read()
    assert broker.returncode == 0

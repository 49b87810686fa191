"""Shell completion scripts, run by the shells."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kwire.cli.main import main


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> str:
    assert main(["completion", getattr(request, "param", "bash")]) == 0
    return capsys.readouterr().out


def _complete(script: str, line: str, kwire: str = "echo asked") -> list[str]:
    """Return bash's completions of the last word, with `kwire` defined as this shell command."""
    words = line.split(" ")
    shell_program = (
        f"kwire() {{ {kwire}; }}\n{script}\n"
        f"COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}\n"
        "_kwire; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    result = subprocess.run(["bash", "-c", shell_program], capture_output=True, text=True, check=True)
    assert not result.stderr
    return result.stdout.splitlines()


def test_bash_completes_commands_actions_options_and_values(script: str) -> None:
    assert {"serve", "topics", "completion"} <= set(_complete(script, "kwire "))
    assert _complete(script, "kwire to") == ["topics", "tokens"]
    assert _complete(script, "kwire topics de") == ["describe", "delete"]
    assert "--replication-factor" in _complete(script, "kwire topics create x --rep")
    assert _complete(script, "kwire topics list --bootstrap-server h:1 --int") == ["--internal"]
    assert _complete(script, "kwire consume x --value-format j") == ["json"]
    assert _complete(script, "kwire consume x --registry ") == [""]
    assert _complete(script, "kwire completion f") == ["fish"]
    assert _complete(script, "kwire cluster st") == ["status", "stop"]
    assert "--log-level" in _complete(script, "kwire serve --l")


def test_names_are_completed_by_running_list_commands(script: str) -> None:
    three = "printf '%s\\n' orders ordinary paid"
    assert _complete(script, "kwire topics describe or", three) == ["orders", "ordinary"]
    assert _complete(script, "kwire groups describe -b h:1 ", "printf '%s\\n' \"$@\"") == [
        *("groups", "list", "--names", "--timeout", "2", "-b", "h:1")
    ]
    assert _complete(
        script, "kwire users delete --command-config a.properties ", "printf '%s\\n' \"$@\""
    ) == [*("users", "list", "--names", "--timeout", "2", "--command-config", "a.properties")]
    assert "--offsets" in _complete(script, "kwire topics describe --o")
    assert "asked" not in _complete(script, "kwire topics create ")
    assert _complete(script, "kwire consume ") == ["asked"]
    assert _complete(script, "kwire configs describe --docs topic or", three) == ["orders", "ordinary"]
    assert "topic" in _complete(script, "kwire configs alter ")
    assert _complete(script, "kwire configs alter group readers --ap") == ["--append"]


def test_completed_name_is_quoted(script: str) -> None:
    assert _complete(script, "kwire groups describe ", "echo '$(date)'") == [r"\$\(date\)"]


@pytest.mark.parametrize("script", ["bash", "zsh", "fish"], indirect=True)
def test_each_shell_script_has_all_commands(script: str) -> None:
    for word in ("topics", "delete-offsets", "find-hanging", "doctor", "kill", "find-hanging", "older-than"):
        assert word in script


@pytest.mark.parametrize(
    ("script", "shell"), [(shell, shell) for shell in ("bash", "zsh", "fish")], indirect=["script"]
)
def test_scripts_have_valid_syntax(script: str, shell: str) -> None:
    if shell != "bash" and shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    result = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_unknown_shell_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2

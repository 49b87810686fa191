"""Scripts that complete the command, as a shell runs them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from kwire.cli.main import main


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> str:
    assert main(["completion", getattr(request, "param", "bash")]) == 0
    return capsys.readouterr().out


def _completed(script: str, line: str, kwire: str = "echo asked") -> list[str]:
    """What bash offers for the last word of a line, where `kwire` does that."""
    words = line.split(" ")
    asked = (
        f"kwire() {{ {kwire}; }}\n{script}\n"
        f"COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}\n"
        "_kwire; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    ran = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert not ran.stderr
    return ran.stdout.splitlines()


def test_bash_completes_commands_actions_options_and_their_values(script: str) -> None:
    assert {"serve", "topics", "completion"} <= set(_completed(script, "kwire "))
    assert _completed(script, "kwire to") == ["topics", "tokens"]
    assert _completed(script, "kwire topics de") == ["describe", "delete"]
    assert "--replication-factor" in _completed(script, "kwire topics create x --rep")
    assert _completed(script, "kwire topics list --bootstrap-server h:1 --int") == ["--internal"]
    assert _completed(script, "kwire consume x --value-format j") == ["json"]
    assert _completed(script, "kwire consume x --registry ") == [""]
    assert _completed(script, "kwire completion f") == ["fish"]
    assert _completed(script, "kwire cluster st") == ["status", "stop"]
    assert "--log-level" in _completed(script, "kwire serve --l")


def test_names_are_asked_for_where_they_stand(script: str) -> None:
    three = "printf '%s\\n' orders ordinary paid"
    assert _completed(script, "kwire topics describe or", three) == ["orders", "ordinary"]
    assert _completed(script, "kwire groups describe -b h:1 ", "printf '%s\\n' \"$@\"") == [
        *("groups", "list", "--names", "--timeout", "2", "-b", "h:1")
    ]
    assert _completed(
        script, "kwire users delete --command-config a.properties ", "printf '%s\\n' \"$@\""
    ) == [*("users", "list", "--names", "--timeout", "2", "--command-config", "a.properties")]
    assert "--offsets" in _completed(script, "kwire topics describe --o")
    assert "asked" not in _completed(script, "kwire topics create ")
    assert _completed(script, "kwire consume ") == ["asked"]
    assert _completed(script, "kwire configs describe --docs topic or", three) == ["orders", "ordinary"]
    assert "topic" in _completed(script, "kwire configs alter ")
    assert _completed(script, "kwire configs alter group readers --ap") == ["--append"]


def test_a_name_is_not_run(script: str) -> None:
    assert _completed(script, "kwire groups describe ", "echo '$(date)'") == [r"\$\(date\)"]


@pytest.mark.parametrize("script", ["bash", "zsh", "fish"], indirect=True)
def test_all_shells_are_told_all(script: str) -> None:
    for word in ("topics", "delete-offsets", "find-hanging", "doctor", "kill", "find-hanging", "older-than"):
        assert word in script


@pytest.mark.parametrize(
    ("script", "shell"), [(shell, shell) for shell in ("bash", "zsh", "fish")], indirect=["script"]
)
def test_scripts_are_sound(script: str, shell: str) -> None:
    if shell != "bash" and shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    ran = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_an_unknown_shell_is_wrong_use() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2

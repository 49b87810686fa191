"""Parsing of the Dockerfile in `docker/check`, which itself needs root and minutes."""

from __future__ import annotations

import os

import pytest

from tests.docker.check import main
from tests.docker.dockerfile import Context, read_steps
from tests.docker.image import DOCKERFILE, TOP


def test_missing_permission_to_build_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main([]) == 1
    result = capsys.readouterr().err
    assert result.startswith("docker/check: an image is built by root alone")
    assert result.count("\n") == 1


def test_dockerfile_steps_are_parsed() -> None:
    text = (
        'FROM a\n# no step\nCOPY --chown=u:g a b/ /c/\nRUN one \\\n  # neither\n  && two\nCMD ["x", "y z"]\n'
    )
    steps = read_steps(text)
    assert [step.instruction for step in steps] == ["FROM", "COPY", "RUN", "CMD"]
    assert (steps[1].options, steps[1].words) == ({"chown": "u:g"}, ["a", "b/", "/c/"])
    assert steps[2].text.split() == ["one", "&&", "two"]
    assert steps[3].words == ["x", "y z"]
    with pytest.raises(ValueError, match="ADD is no instruction"):
        read_steps("ADD a b")


def test_build_context_excludes_earlier_builds() -> None:
    context = Context(TOP, DOCKERFILE.with_name("Dockerfile.dockerignore").read_text())
    for step in read_steps(DOCKERFILE.read_text()):
        if step.instruction == "COPY" and "from" not in step.options:
            for source in step.words[:-1]:
                assert context.find(source).exists()
    for name in (".venv", "tests/docker", "docker/README.md", "kwire/broker/__pycache__"):
        assert context.excludes(name), name
    with pytest.raises(FileNotFoundError, match="the context has no such file"):
        context.find("tests")

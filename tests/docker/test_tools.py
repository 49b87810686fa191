"""The scripts of the image with the names of Apache Kafka's, and the arguments that they pass to `kwire`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docker.compose import OURS

TOPICS = OURS / "bin/kafka-topics.sh"


def run_script(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a fake `kwire` that prints its arguments, one per line."""
    kwire = directory / "kwire"
    kwire.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    kwire.chmod(0o755)
    path = f"{directory}:/usr/bin:/bin"
    return subprocess.run(
        [TOPICS, *arguments], env={"PATH": path}, capture_output=True, text=True, check=False, timeout=10
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--list", "list --internal --names"),
        ("--bootstrap-server a:1,b:2 --list --exclude-internal", "list --names --bootstrap-server a:1,b:2"),
        ("--create --topic t --partitions 3", "create t --partitions 3"),
        ("--topic=t --create --config a=b --config c=d", "create t --config a=b --config c=d"),
        ("--describe --topic t --command-config f", "describe t --command-config f"),
        ("--describe --under-replicated-partitions", "describe --under-replicated"),
        ("--delete --topic t --if-exists", "delete t --if-exists"),
        ("--alter --topic t --partitions 4", "alter t --partitions 4"),
    ],
)
def test_kafka_topics_options_become_kwire_options(given: str, expected: str, tmp_path: Path) -> None:
    result = run_script(tmp_path, *given.split())
    assert result.stdout.splitlines() == ["topics", *expected.split()]


def test_missing_action_lists_the_actions(tmp_path: Path) -> None:
    result = run_script(tmp_path, "--topic", "a b", "--bootstrap-server", "a:1")
    assert result.returncode == 1
    assert result.stderr.startswith("kafka-topics.sh: give one of --list")
    assert run_script(tmp_path, "--describe", "--topic", "a b").stdout == "topics\ndescribe\na b\n"

"""Client programs in JavaScript (kafkajs) and Go (franz-go), installed into ``interop/target/languages``.

A program reads one JSON object from its standard input: `bootstrap`, `authority` and `keyStore` (paths of PEM
files; `keyStore` may be empty), `topic` and `values`. It connects, produces the values, and consumes them in
a group. It prints one JSON object: the consumed `values`, or `errors`, which are the error and its causes,
each as "class: message".
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from interop.reference import HERE, TARGET, Missing, alone_in_target

SOURCES = HERE / "languages"
INSTALLED = TARGET / "languages"
INSTALL_S = 600
RUN_S = 90


@cache
def kafkajs() -> list[str]:
    """Return the command line of the program in JavaScript."""
    node, npm = _command("node"), _command("npm")
    directory = INSTALLED / "kafkajs"
    with alone_in_target():
        shutil.copytree(SOURCES / "kafkajs", directory, dirs_exist_ok=True)
        _install([npm, "ci", "--prefer-offline", "--no-audit", "--no-fund"], directory)
    return [node, str(directory / "client.js")]


@cache
def franz_go() -> list[str]:
    """Return the command line of the program in Go."""
    go = _command("go")
    program = INSTALLED / "franz-go"
    with alone_in_target():
        _install([go, "build", "-buildvcs=false", "-o", str(program)], SOURCES / "franz-go")
    return [str(program)]


PROGRAMS: dict[str, Callable[[], list[str]]] = {"kafkajs": kafkajs, "franz-go": franz_go}


def run(program: str, given: dict[str, Any]) -> dict[str, Any]:
    """Run a program, and return what it prints. Raises an exception if the program fails or hangs."""
    done = subprocess.run(
        PROGRAMS[program](),
        input=json.dumps(given),
        stdout=subprocess.PIPE,
        text=True,
        timeout=RUN_S,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _command(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise Missing(f"make interop-languages needs {name} on the PATH.")
    return path


def _install(command: list[str], directory: Path) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    if done.returncode != 0:
        raise Missing(f"{' '.join(command)} failed: {done.stdout[-500:]}{done.stderr[-500:]}")

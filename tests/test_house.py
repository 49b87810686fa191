"""The rules of the house, as tests: who may import whom, who may touch the world, how long a module gets.

The rules are the tables below, and CONTRIBUTING.md tells their reasons. The sources are parsed, not imported.
Each rule is also tried on a made-up module that breaks it, so that a check that has gone blind is found.
A new room (a package, or a module right under broker/) needs its line in MAY_IMPORT.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

LOW = {"kwire", "broker.clock", "broker.host", "broker.config"}
STORED = {*LOW, "broker.storage"}
MACHINES = {*STORED, "broker.controller", "broker.raft", "broker.replication", "coordinator"}
WIRED = {
    *MACHINES,
    "broker.directories",
    "broker.producer_ids",
    "broker.state_topic",
    "broker.topics_view",
    "broker.transaction_ports",
    "broker.handlers",
    "broker.node",
    "broker.format",
}
SHELL = {*WIRED, "broker.net"}

MAY_IMPORT: dict[str, set[str]] = {
    "kwire": set(),
    "kwire.columns": {"kwire"},  # for the pipeline alone, with packages that the broker does without
    "broker.clock": set(),
    "broker.host": {"kwire", "broker.clock"},
    "broker.config": {"kwire", "broker.storage.log_config"},
    "broker.storage": {"kwire", "broker.clock", "broker.host"},
    "broker.controller": STORED,
    "broker.raft": {*STORED, "broker.controller"},  # the quorum's log is what the controller's image replays
    "broker.replication": STORED,
    "coordinator": STORED,
    "broker.producer_ids": MACHINES,  # which the controller gives this broker
    "broker.state_topic": MACHINES,  # what coordinators ask of a broker
    "broker.topics_view": MACHINES,  # what consumer groups ask of the metadata
    "broker.transaction_ports": {*MACHINES, "broker.state_topic"},
    "broker.directories": MACHINES,  # moves between log directories, and what the cluster knows of these
    "broker.format": {*STORED, "broker.controller", "broker.raft"},
    "broker.handlers": MACHINES,
    "broker.node": WIRED,
    "broker.net": WIRED,
    "broker.cli": {*SHELL, "pipeline.cli"},  # one command for both
    "broker.__main__": {"broker.cli"},
    "broker.testing": SHELL,
    # Strangers: they speak the wire, or read the files.
    "interop": set(),
    "interop.exactly_once.faulty_broker": {*SHELL, "broker.cli"},  # breaks it on purpose, from inside
    "interop.test_segment_source": {
        "interop",
        "kwire",
        "broker.testing",
        "broker.storage",
        "pipeline",
    },  # no broker
    "bench": {"pipeline"},  # the jobs are measured as a program that imports them runs them
    "pipeline": {"kwire", "broker.storage"},
}
"""What each room may import, beside itself. Imports run downwards only."""

SEEN_BY_TYPES = {
    ("broker.state_topic", "broker.node"),
    ("broker.topics_view", "broker.node"),
    ("broker.transaction_ports", "broker.node"),
    ("broker.directories", "broker.node"),
    ("broker.handlers", "broker.node"),
}
"""Rooms whose types a lower room names in annotations: under TYPE_CHECKING, so not there when it runs."""

THIRD_PARTY: dict[str, set[str]] = {
    "kwire": {"crc32c", "lz4", "snappy", "zstandard"},
    "kwire.columns": {"numpy", "pyarrow"},
    "broker.storage": {"crc32c"},
    "coordinator": {"re2", "xxhash"},
    "broker.net": {"trio"},
    "broker.cli": {"trio"},
    "broker.testing": {"trio", "pytest"},
}
"""What a room may use from outside of the standard library. Strangers may use what they like."""

STRANGERS = {"interop", "bench", "pipeline"}

WORLD = {
    "asyncio", "concurrent", "datetime", "fcntl", "mmap", "multiprocessing", "os", "pathlib", "secrets",
    "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time",
    "trio",
}  # fmt: skip
"""Modules through which a program touches the world. Everyone else is handed time, chance and disks."""

PURE = {"pathlib.PurePath", "pathlib.PurePosixPath"}
"""Names in such modules that touch nothing."""

TOUCHES_WORLD = {
    "broker.net",
    "broker.storage.disk",
    "broker.storage.cleaner.child",  # starts the process that cleans
    "broker.storage.cleaner.worker",  # and is that process
    "broker.clock",
    "broker.cli",
    "broker.testing",
    *STRANGERS,
}
"""Who may: the shell, and what is not the broker."""

READS_FILES = {"broker.config.load"}
"""Who else may call open(): server.properties is read before there is a disk to ask."""

SEEDED = {"random": "Random", "uuid": "UUID"}
"""Of these modules the one name that everyone may use: it makes chance of what it is given."""

LONGEST = 600
MAY_BE_LONGER: dict[str, int] = {}
"""Modules over the limit, and their length at most. The list may only shrink."""

MACHINE_PATH = re.compile(r"(?<![\w.~$}<-])/(?:home|Users|root|work)/\w")
"""A path that means something on one machine only."""


class Import(NamedTuple):
    line: int
    target: str
    for_types: bool


def room_of(module: str) -> str | None:
    """The room that a module, or a name in a module, is in."""
    return max((room for room in MAY_IMPORT if is_in(module, room)), key=len, default=None)


def is_in(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".")


def imports_of(module: str, tree: ast.Module, *, is_package: bool = False) -> Iterator[Import]:
    """Every import anywhere in the module, also those inside of functions."""
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, id(node) in for_types)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parents = module.split(".")
                kept = parents[: len(parents) - node.level + is_package]
                origin = ".".join([*kept, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(node.lineno, f"{origin}.{alias.name}", id(node) in for_types)


def import_faults(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """What is wrong with a module's imports: upwards, from outside, or of the world."""
    room = room_of(module)
    if room is None:
        return [] if module == "broker" else [f"{module} is in no room: give it a line in MAY_IMPORT"]
    faults = []
    for line, target, for_types in imports_of(module, ast.parse(source), is_package=is_package):
        where = f"{module}:{line} imports {target}"
        top = target.partition(".")[0]
        if top in ("kwire", "broker", "coordinator", "pipeline", "interop", "bench", "tests"):
            target_room = room_of(target)
            if target_room is None:
                faults.append(f"{where}, which is in no room")
            elif target_room != room and not any(is_in(target, allowed) for allowed in MAY_IMPORT[room]):
                if not for_types:
                    faults.append(f"{where}: {room} may not import {target_room}")
                elif (room, target_room) not in SEEN_BY_TYPES:
                    faults.append(f"{where} for its types: say so in SEEN_BY_TYPES")
        elif for_types or room in STRANGERS:
            continue
        elif top in WORLD and target not in PURE and not touches_world(module):
            faults.append(f"{where}: only the shell touches the world")
        elif top not in sys.stdlib_module_names and top not in THIRD_PARTY.get(room, set()):
            faults.append(f"{where}: not one of the packages that {room} may use")
    return faults


def touches_world(module: str) -> bool:
    return any(is_in(module, place) for place in TOUCHES_WORLD)


def world_faults(module: str, source: str) -> list[str]:
    """Async code, files opened by hand, and chance that no seed decides, outside of the shell."""
    if touches_world(module):
        return []
    faults = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef):
            faults.append(f"{module}:{node.lineno} async def {node.name}: only the shell is asynchronous")
        elif isinstance(node, ast.Attribute):
            faults += chance_faults(module, node.lineno, ast.unparse(node.value), node.attr)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                faults += chance_faults(module, node.lineno, node.module, alias.name)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("Random", "random.Random") and not node.args:
                faults.append(f"{module}:{node.lineno} {called}() without a seed")
            elif called == "open" and not any(is_in(module, room) for room in READS_FILES):
                faults.append(f"{module}:{node.lineno} open(): files are the business of broker.storage.disk")
    return faults


def chance_faults(module: str, line: int, origin: str | None, name: str) -> list[str]:
    """A draw from the process's own chance, of which no test knows the seed."""
    if origin in SEEDED and name != SEEDED[origin]:
        return [f"{module}:{line} {origin}.{name}: chance comes in as an argument"]
    return []


def length_faults(lengths: dict[str, int], may_be_longer: dict[str, int]) -> list[str]:
    """Modules that are too long, and entries in the list of exceptions that have outlived their reason."""
    faults = []
    for path, lines in lengths.items():
        limit = may_be_longer.get(path, LONGEST)
        if lines > limit:
            faults.append(f"{path} has {lines} lines, more than {limit}: divide it")
    stale = [path for path in may_be_longer if lengths.get(path, 0) <= LONGEST]
    return faults + [f"{path} is not over {LONGEST} lines: take it off the list" for path in stale]


def path_faults(name: str, text: str) -> list[str]:
    return [
        f"{name}:{number} names a path of one machine: {line.strip()[:120]}"
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]


def modules() -> Iterator[tuple[str, bool, str]]:
    """Name, whether it is a package's own module, and source of every module of ours but the tests."""
    for top in ("kwire", "broker", "coordinator", "pipeline", "interop", "bench"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "target" in parts:
                continue
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            yield name, is_package, path.read_text(encoding="utf-8")


def repository_files() -> list[Path]:
    """What git holds or would take, or, where there is no git, what does not look built."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split("\0")
        paths = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        built = re.compile(r"^\.|^(__pycache__|target|build|dist|kwire-data)$")
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(built.match(part) for part in path.relative_to(ROOT).parts)
        ]
    return [path for path in sorted(paths) if path.is_file()]


# The house as it stands.


def test_imports_run_downwards() -> None:
    faults = [
        fault
        for name, is_package, source in modules()
        for fault in import_faults(name, source, is_package=is_package)
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_only_the_shell_touches_the_world() -> None:
    faults = [fault for name, _, source in modules() for fault in world_faults(name, source)]
    assert not faults, "\n" + "\n".join(faults)


def test_types_seen_upwards_are_still_needed() -> None:
    seen = {
        (room_of(name), room_of(found.target))
        for name, is_package, source in modules()
        for found in imports_of(name, ast.parse(source), is_package=is_package)
        if found.for_types
    }
    assert seen >= SEEN_BY_TYPES


def test_modules_are_short() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in repository_files()
        if path.suffix == ".py"
    }
    faults = length_faults(lengths, MAY_BE_LONGER)
    assert not faults, "\n" + "\n".join(faults)


def test_no_file_names_a_path_of_one_machine() -> None:
    faults = []
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not a text
        faults += path_faults(str(path.relative_to(ROOT)), text)
    assert not faults, "\n" + "\n".join(faults)


def test_locks_pin_what_the_project_asks_for_and_name_no_index() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {"runtime": project["dependencies"]}
    for extra, wanted in project["optional-dependencies"].items():
        asked[extra] = [*project["dependencies"], *wanted]
    for lock, requirements in asked.items():
        text = (ROOT / "requirements" / f"{lock}.lock").read_text()
        pinned = set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
        assert {re.split(r"[^\w-]", wanted)[0].lower() for wanted in requirements} <= pinned, lock
        assert not re.search(r"^-|://", text, re.MULTILINE), lock


def test_the_readme_names_every_api_and_no_other() -> None:
    readme = (ROOT / "README.md").read_text()
    table = readme.partition("## What is supported")[2].partition("\n\nEach")[0]
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][1:]
    named = {re.sub(r"\(.*?\)", "", name).strip() for cell in cells for name in cell.split(",")}
    dispatch = ast.parse((ROOT / "broker" / "handlers" / "dispatch.py").read_text())
    served = {
        "".join(word.capitalize() for word in str(ast.literal_eval(node.args[2])).split("_"))
        for node in ast.walk(dispatch)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Served"
    }
    assert served
    assert named == served


# The checks themselves.


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kwire.made_up", "from broker.storage.log import Log"),
        ("kwire.made_up", "import trio"),
        ("kwire.made_up", "import numpy"),
        ("broker.storage.made_up", "import broker.node"),
        ("broker.storage.made_up", "from broker import node"),
        ("broker.storage.made_up", "from ..net import loop"),
        ("broker.storage.made_up", "def late():\n    from broker.net.loop import Loop"),
        ("broker.storage.made_up", "import time"),
        ("broker.config.made_up", "from broker.storage.log import Log"),
        ("broker.controller.made_up", "from broker.raft.service import Service"),
        ("broker.controller.made_up", "import os.path"),
        ("broker.replication.made_up", "from coordinator.machine import Result"),
        ("broker.handlers.made_up", "from broker.node import Node"),
        ("broker.handlers.made_up", "from broker.net.loop import Loop"),
        ("broker.node", "from broker.net.serve import serve"),
        ("broker.net.made_up", "from broker.cli import main"),
        ("broker.net.made_up", "import requests"),
        ("coordinator.made_up", "from broker.handlers.context import RequestContext"),
        ("coordinator.made_up", "from socket import socket"),
        ("coordinator.made_up", "if TYPE_CHECKING:\n    from broker.node import Node"),
        ("interop.made_up", "from kwire.batch import batches"),
        ("broker.unheard_of", "import re"),
        ("broker.cli", "import broker.unheard_of"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(import_faults(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kwire.made_up", "import struct\nimport lz4.frame\nfrom kwire.errors import WireError"),
        ("broker.config.made_up", "from broker.storage.log_config import LogConfig"),
        ("broker.config.made_up", "from pathlib import PurePath"),
        ("broker.storage.disk", "import os"),
        ("broker.handlers.made_up", "if TYPE_CHECKING:\n    from broker.node import Node"),
        ("broker.handlers.made_up", "from coordinator.machine import Result"),
        ("broker.net.made_up", "import socket\nimport trio\nfrom broker.node import Node"),
        ("interop.made_up", "import socket\nimport kafka"),
    ],
)
def test_a_right_import_is_let_be(module: str, source: str) -> None:
    assert import_faults(module, source) == []


def test_a_package_resolves_its_relative_imports_from_itself() -> None:
    assert import_faults("broker.storage", "from .net import x", is_package=True) == []
    assert len(import_faults("broker.storage", "from ..net import x", is_package=True)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "async def f(): pass",
        "import random\nrandom.random()",
        "from random import choice",
        "import uuid\nname = uuid.uuid4()",
        "import random\nrng = random.Random()",
        "with open('x') as file: pass",
    ],
)
def test_touching_the_world_is_found(source: str) -> None:
    assert len(world_faults("coordinator.made_up", source)) == 1
    assert world_faults("broker.net.made_up", source) == []


def test_chance_from_a_seed_is_let_be() -> None:
    for source in (
        "import random\nrng = random.Random(7)\nrng.random()",
        "import uuid\nname = uuid.UUID(int=rng.getrandbits(128), version=4)",
    ):
        assert world_faults("coordinator.made_up", source) == []
        assert import_faults("coordinator.made_up", source) == []


def test_a_long_module_is_found_and_so_is_a_stale_exception() -> None:
    assert length_faults({"a.py": LONGEST}, {}) == []
    assert len(length_faults({"a.py": LONGEST + 1}, {})) == 1
    assert length_faults({"a.py": LONGEST + 1}, {"a.py": LONGEST + 1}) == []
    assert len(length_faults({"a.py": LONGEST + 2}, {"a.py": LONGEST + 1})) == 1
    assert len(length_faults({"a.py": LONGEST}, {"a.py": LONGEST + 1})) == 1
    assert len(length_faults({}, {"gone.py": LONGEST + 1})) == 1


def test_a_path_of_one_machine_is_found() -> None:
    assert len(path_faults("x", "see /" + "home/me/kafka")) == 1
    assert len(path_faults("x", "['/" + "Users/me']")) == 1
    assert path_faults("x", "interop/" + "work/me, https://example.org/" + "home/me, /var/lib/kwire") == []

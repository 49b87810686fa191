"""The house keeps its rules, which are in `architecture.py`.

Each rule is also tried on a made-up module that breaks it, so that a check that has gone blind is found.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.architecture import (
    LONGEST,
    MAY_BE_LONGER,
    MAY_IMPORT_BY_NAME,
    ROOT,
    circles,
    folder_graph,
    import_faults,
    imports_by_name,
    is_in,
    length_faults,
    logger_faults,
    module_graph,
    modules,
    path_faults,
    repository_files,
    world_faults,
)

# The house as it stands.


def test_imports_run_downwards() -> None:
    faults = [
        fault
        for name, is_package, source in modules()
        for fault in import_faults(name, source, is_package=is_package)
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_no_modules_and_no_folders_import_in_circles() -> None:
    graph = module_graph(modules())
    assert circles(graph) == []
    assert circles(folder_graph(graph)) == []


def test_few_import_by_a_name_that_is_made() -> None:
    found = {
        name
        for name, _, source in modules()
        if name.startswith("kwire") and imports_by_name(ast.parse(source))
    }
    assert found == MAY_IMPORT_BY_NAME


def test_only_the_shell_touches_the_world() -> None:
    faults = [fault for name, _, source in modules() for fault in world_faults(name, source)]
    assert not faults, "\n" + "\n".join(faults)


def test_loggers_say_which_node_speaks() -> None:
    faults = [fault for name, _, source in modules() for fault in logger_faults(name, source)]
    assert not faults, "\n" + "\n".join(faults)


def test_each_room_has_its_tests_under_its_own_name() -> None:
    rooms = {name for name, is_package, _ in modules() if is_package and is_in(name, "kwire")}
    with_modules = {name.rpartition(".")[0] for name, is_package, _ in modules() if not is_package}
    missing = [
        room
        for room in sorted(rooms & with_modules - {"kwire"})
        if not any((ROOT / "tests" / Path(*room.split(".")[1:])).glob("test_*.py"))
    ]
    assert not missing


def test_the_map_names_every_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`(?:kwire/)?([a-z/]+)/`", text.partition("## The map")[2].partition("\n## ")[0])
    parents = ("kwire", "kwire.broker")
    rooms = {name for name, is_package, _ in modules() if is_package and name.rpartition(".")[0] in parents}
    assert rooms - {"kwire.broker"} <= {"kwire." + name.replace("/", ".") for name in named}


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


def test_the_page_of_what_is_supported_names_every_api_and_no_other() -> None:
    table = (ROOT / "docs" / "supported.md").read_text().partition("| Group | APIs |")[2].partition("\n\n")[0]
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    named = {re.sub(r"\(.*?\)", "", name).strip() for cell in cells for name in cell.split(",")}
    table = ast.parse((ROOT / "kwire" / "broker" / "api" / "request" / "table.py").read_text())
    served = {
        "".join(word.capitalize() for word in ast.unparse(key).partition(".")[2].split("_"))
        for node in ast.walk(table)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if key is not None
    }
    assert served
    assert named == served


# The checks themselves.


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kwire.wire.made_up", "from kwire.broker.storage.log.log import Log"),
        ("kwire.wire.made_up", "import trio"),
        ("kwire.wire.made_up", "import numpy"),
        ("kwire.broker.storage.made_up", "import kwire.broker.node"),
        ("kwire.broker.storage.made_up", "from kwire.broker import node"),
        ("kwire.broker.storage.made_up", "from ..net import loop"),
        ("kwire.broker.storage.made_up", "def late():\n    from kwire.broker.net.loop import Loop"),
        ("kwire.broker.storage.made_up", "import time"),
        ("kwire.broker.config.made_up", "from kwire.broker.storage.log.log import Log"),
        ("kwire.broker.controller.made_up", "from kwire.broker.raft.quorum import Quorum"),
        ("kwire.broker.controller.made_up", "import os.path"),
        ("kwire.broker.replication.made_up", "from kwire.coordinator.machine import CoordinatorResult"),
        ("kwire.broker.api.made_up", "from kwire.broker.node.node import Node"),
        ("kwire.broker.api.made_up", "from kwire.broker.net.loop import Loop"),
        ("kwire.broker.node.node", "from kwire.broker.net.serve import serve"),
        ("kwire.broker.net.made_up", "from kwire.cli import main"),
        ("kwire.broker.net.made_up", "import requests"),
        ("kwire.broker.observe.made_up", "from kwire.broker.node.node import Node"),
        ("kwire.coordinator.made_up", "from kwire.broker.api.request.context import RequestContext"),
        ("kwire.coordinator.made_up", "from socket import socket"),
        ("kwire.coordinator.made_up", "if TYPE_CHECKING:\n    from kwire.broker.node.node import Node"),
        ("kwire.broker.api.made_up", "if TYPE_CHECKING:\n    from kwire.broker.node.node import Node"),
        ("interop.made_up", "from kwire.wire.batch import batches"),
        ("interop.made_up", "from broker.storage import disk"),
        ("kwire.broker.unheard_of", "import re"),
        ("kwire.cli", "import kwire.broker.unheard_of"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(import_faults(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kwire.wire.made_up", "import struct\nimport lz4.frame\nfrom kwire.wire.errors import WireError"),
        ("kwire.broker.config.made_up", "from kwire.broker.storage.log.log_config import LogConfig"),
        ("kwire.broker.config.made_up", "from pathlib import PurePath"),
        ("kwire.broker.storage.disk", "import os"),
        ("kwire.broker.api.made_up", "from kwire.coordinator.machine import CoordinatorResult"),
        ("kwire.broker.net.made_up", "import socket\nimport trio\nfrom kwire.broker.node.node import Node"),
        ("interop.made_up", "import socket\nimport kafka"),
    ],
)
def test_a_right_import_is_let_be(module: str, source: str) -> None:
    assert import_faults(module, source) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"d"}}) == []
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}}
    assert circles(graph) == [["a", "b", "c"], ["d", "e"]]


def test_a_circle_of_rooms_is_found() -> None:
    assert circles(folder_graph({"kwire.broker.a.b": {"kwire.c.d"}, "kwire.c.e": {"kwire.broker.f"}})) == []
    graph = {"kwire.broker.a.b": {"kwire.c.d"}, "kwire.c.e": {"kwire.broker.a.f"}}
    assert circles(folder_graph(graph)) == [["kwire.broker/a", "kwire.c"]]
    graph = {"kwire.a.ports": {"kwire.a.b.c"}, "kwire.a.b.d": {"kwire.a.ports"}}
    assert circles(folder_graph(graph)) == [["kwire.a.b", "kwire.a.ports"]]


@pytest.mark.parametrize("named", ["kwire.a.b", "kwire.a.b.handle", ".b.handle", "kwire.a."])
def test_what_is_imported_by_a_string_is_found(named: str) -> None:
    table = ("kwire.a.table", False, f"TABLE = {{1: {named!r}}}; import_module(TABLE[1])")
    for is_package in (False, True):
        assert circles(module_graph([table, ("kwire.a.b", is_package, "import kwire.a.table")])) != []


def test_a_package_resolves_its_relative_imports_from_itself() -> None:
    assert import_faults("kwire.broker.storage", "from .net import x", is_package=True) == []
    assert len(import_faults("kwire.broker.storage", "from ..net import x", is_package=True)) == 1


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
    assert len(world_faults("kwire.coordinator.made_up", source)) == 1
    assert world_faults("kwire.broker.net.made_up", source) == []


@pytest.mark.parametrize(
    "source", ["import logging\nlogger = logging.getLogger('kwire')", "from logging import getLogger"]
)
def test_a_logger_of_no_node_is_found(source: str) -> None:
    assert len(logger_faults("kwire.broker.storage.made_up", source)) == 1
    assert logger_faults("kwire.pipeline.made_up", source) == []
    assert logger_faults("kwire.broker.api.made_up", "self._logger = host.logger('kwire.x')") == []


def test_chance_from_a_seed_is_let_be() -> None:
    for source in (
        "import random\nrng = random.Random(7)\nrng.random()",
        "import uuid\nname = uuid.UUID(int=rng.getrandbits(128), version=4)",
    ):
        assert world_faults("kwire.coordinator.made_up", source) == []
        assert import_faults("kwire.coordinator.made_up", source) == []


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

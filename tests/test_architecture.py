"""The code base follows the rules in `architecture.py`.

Each check is also run on an invented module that breaks its rule, to show that the check works.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.architecture import (
    MAX_MODULE_LINES,
    MAY_BE_LONGER,
    MAY_IMPORT_BY_NAME,
    ROOT,
    folder_graph,
    import_cycles,
    import_errors,
    imports_by_name,
    is_in,
    length_errors,
    logger_errors,
    module_graph,
    modules,
    outside_errors,
    path_errors,
    repository_files,
)

# The code base.


def test_imports_run_downwards() -> None:
    errors = [
        error
        for name, is_package, source in modules()
        for error in import_errors(name, source, is_package=is_package)
    ]
    assert not errors, "\n" + "\n".join(errors)


def test_modules_and_folders_have_no_import_cycles() -> None:
    graph = module_graph(modules())
    assert import_cycles(graph) == []
    assert import_cycles(folder_graph(graph)) == []


def test_only_listed_modules_call_import_module() -> None:
    found = {
        name
        for name, _, source in modules()
        if name.startswith("kwire") and imports_by_name(ast.parse(source))
    }
    assert found == MAY_IMPORT_BY_NAME


def test_only_the_io_shell_accesses_the_operating_system() -> None:
    errors = [error for name, _, source in modules() for error in outside_errors(name, source)]
    assert not errors, "\n" + "\n".join(errors)


def test_only_the_platform_module_syncs_descriptors() -> None:
    """On macOS, os.fsync leaves the data in the disk's volatile cache, so everything calls `sync_file`."""
    syncing = {
        name
        for name, _, source in modules()
        if name.startswith("kwire.")
        and any(
            isinstance(node, ast.Attribute) and node.attr in {"fsync", "fdatasync"}
            for node in ast.walk(ast.parse(source))
        )
    }
    assert syncing == {"kwire.host.platform.files"}


def test_loggers_name_the_node() -> None:
    errors = [error for name, _, source in modules() for error in logger_errors(name, source)]
    assert not errors, "\n" + "\n".join(errors)


def test_each_package_has_a_tests_folder_of_its_name() -> None:
    packages = {name for name, is_package, _ in modules() if is_package and is_in(name, "kwire")}
    with_modules = {name.rpartition(".")[0] for name, is_package, _ in modules() if not is_package}
    missing = [
        package
        for package in sorted(packages & with_modules - {"kwire"})
        if not any((ROOT / "tests" / Path(*package.split(".")[1:])).glob("test_*.py"))
    ]
    assert not missing


def test_contributing_lists_every_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(
        r"`(?:kwire/)?([a-z/]+)/`", text.partition("## Layout of the code")[2].partition("\n## ")[0]
    )
    parents = ("kwire", "kwire.broker")
    packages = {
        name for name, is_package, _ in modules() if is_package and name.rpartition(".")[0] in parents
    }
    assert packages - {"kwire.broker"} <= {"kwire." + name.replace("/", ".") for name in named}


def test_modules_stay_below_the_length_limit() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in repository_files()
        if path.suffix == ".py"
    }
    errors = length_errors(lengths, MAY_BE_LONGER)
    assert not errors, "\n" + "\n".join(errors)


def test_no_file_contains_a_machine_specific_path() -> None:
    errors = []
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not a text
        errors += path_errors(str(path.relative_to(ROOT)), text)
    assert not errors, "\n" + "\n".join(errors)


def test_lock_files_pin_every_dependency_and_name_no_index() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    dependencies = config["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"]
    required = [("runtime", dependencies)]
    for extra, wanted in config["project"]["optional-dependencies"].items():
        # The extra `regex` names one of the dependencies. The extra `tls` is installed for tests only.
        lock = {"regex": "runtime", "tls": "dev"}.get(extra, extra)
        required.append((lock, [*dependencies, *wanted]))
    for lock, requirements in required:
        text = (ROOT / "requirements" / f"{lock}.lock").read_text()
        pinned = set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
        assert {re.split(r"[^\w-]", wanted)[0].lower() for wanted in requirements} <= pinned, lock
        assert not re.search(r"^-|://", text, re.MULTILINE), lock


def test_supported_page_lists_exactly_the_served_apis() -> None:
    table = (
        (ROOT / "docs" / "supported.md").read_text().partition("| Subject | APIs |")[2].partition("\n\n")[0]
    )
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    named = {re.sub(r"\(.*?\)", "", name).strip() for cell in cells for name in cell.split(",")}
    tree = ast.parse((ROOT / "kwire" / "broker" / "api" / "request" / "supported_apis.py").read_text())
    served = {
        "".join(word.capitalize() for word in ast.unparse(key).partition(".")[2].split("_"))
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if key is not None
    }
    assert served
    assert named == served


# The checks.


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kwire.wire.invented", "from kwire.broker.storage.log.log import Log"),
        ("kwire.wire.invented", "import trio"),
        ("kwire.wire.invented", "import numpy"),
        ("kwire.broker.storage.invented", "import kwire.broker.node"),
        ("kwire.broker.storage.invented", "from kwire.broker import node"),
        ("kwire.broker.storage.invented", "from ..net import loop"),
        ("kwire.broker.storage.invented", "def late():\n    from kwire.broker.net.loop import Loop"),
        ("kwire.broker.storage.invented", "import time"),
        ("kwire.broker.config.invented", "from kwire.broker.storage.log.log import Log"),
        ("kwire.broker.controller.invented", "from kwire.broker.raft.quorum import Quorum"),
        ("kwire.broker.controller.invented", "import os.path"),
        (
            "kwire.broker.replication.invented",
            "from kwire.coordinator.state_machine import CoordinatorResult",
        ),
        ("kwire.broker.api.invented", "from kwire.broker.node.node import Node"),
        ("kwire.broker.api.invented", "from kwire.broker.net.loop import Loop"),
        ("kwire.broker.node.node", "from kwire.broker.net.serve import serve"),
        ("kwire.broker.net.invented", "from kwire.cli import main"),
        ("kwire.broker.net.invented", "import requests"),
        ("kwire.broker.observe.invented", "from kwire.broker.node.node import Node"),
        ("kwire.coordinator.invented", "from kwire.broker.api.request.context import RequestContext"),
        ("kwire.coordinator.invented", "from socket import socket"),
        ("kwire.coordinator.invented", "if TYPE_CHECKING:\n    from kwire.broker.node.node import Node"),
        ("kwire.broker.api.invented", "if TYPE_CHECKING:\n    from kwire.broker.node.node import Node"),
        ("interop.invented", "from kwire.wire.batch import batches"),
        ("interop.invented", "from broker.storage import disk"),
        ("kwire.broker.unlisted", "import re"),
        ("kwire.cli", "import kwire.broker.unlisted"),
    ],
)
def test_forbidden_import_is_reported(module: str, source: str) -> None:
    assert len(import_errors(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kwire.wire.invented", "import struct\nimport lz4.frame\nfrom kwire.wire.errors import WireError"),
        ("kwire.broker.config.invented", "from kwire.broker.storage.log.log_config import LogConfig"),
        ("kwire.broker.config.invented", "from pathlib import PurePath"),
        ("kwire.broker.storage.disk", "import os"),
        ("kwire.broker.api.invented", "from kwire.coordinator.state_machine import CoordinatorResult"),
        ("kwire.broker.net.invented", "import socket\nimport trio\nfrom kwire.broker.node.node import Node"),
        ("interop.invented", "import socket\nimport kafka"),
    ],
)
def test_permitted_import_is_accepted(module: str, source: str) -> None:
    assert import_errors(module, source) == []


def test_import_cycle_is_reported() -> None:
    assert import_cycles({"a": {"b"}, "b": {"c"}, "c": {"d"}}) == []
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}}
    assert import_cycles(graph) == [["a", "b", "c"], ["d", "e"]]


def test_import_cycle_of_folders_is_reported() -> None:
    assert (
        import_cycles(folder_graph({"kwire.broker.a.b": {"kwire.c.d"}, "kwire.c.e": {"kwire.broker.f"}}))
        == []
    )
    graph = {"kwire.broker.a.b": {"kwire.c.d"}, "kwire.c.e": {"kwire.broker.a.f"}}
    assert import_cycles(folder_graph(graph)) == [["kwire.broker/a", "kwire.c"]]
    graph = {"kwire.a.ports": {"kwire.a.b.c"}, "kwire.a.b.d": {"kwire.a.ports"}}
    assert import_cycles(folder_graph(graph)) == [["kwire.a.b", "kwire.a.ports"]]


@pytest.mark.parametrize("named", ["kwire.a.b", "kwire.a.b.handle", ".b.handle", "kwire.a."])
def test_import_by_name_in_a_string_is_reported(named: str) -> None:
    table = ("kwire.a.table", False, f"TABLE = {{1: {named!r}}}; import_module(TABLE[1])")
    for is_package in (False, True):
        assert import_cycles(module_graph([table, ("kwire.a.b", is_package, "import kwire.a.table")])) != []


def test_relative_import_in_a_package_init_is_resolved() -> None:
    assert import_errors("kwire.broker.storage", "from .net import x", is_package=True) == []
    assert len(import_errors("kwire.broker.storage", "from ..net import x", is_package=True)) == 1


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
def test_operating_system_access_is_reported(source: str) -> None:
    assert len(outside_errors("kwire.coordinator.invented", source)) == 1
    assert outside_errors("kwire.broker.net.invented", source) == []


@pytest.mark.parametrize(
    "source", ["import logging\nlogger = logging.getLogger('kwire')", "from logging import getLogger"]
)
def test_logger_without_a_node_is_reported(source: str) -> None:
    assert len(logger_errors("kwire.broker.storage.invented", source)) == 1
    assert logger_errors("kwire.pipeline.invented", source) == []
    assert logger_errors("kwire.broker.api.invented", "self._logger = host.logger('kwire.x')") == []


def test_seeded_randomness_is_accepted() -> None:
    for source in (
        "import random\nrng = random.Random(7)\nrng.random()",
        "import uuid\nname = uuid.UUID(int=rng.getrandbits(128), version=4)",
    ):
        assert outside_errors("kwire.coordinator.invented", source) == []
        assert import_errors("kwire.coordinator.invented", source) == []


def test_long_module_and_stale_exception_are_reported() -> None:
    assert length_errors({"a.py": MAX_MODULE_LINES}, {}) == []
    assert len(length_errors({"a.py": MAX_MODULE_LINES + 1}, {})) == 1
    assert length_errors({"a.py": MAX_MODULE_LINES + 1}, {"a.py": MAX_MODULE_LINES + 1}) == []
    assert len(length_errors({"a.py": MAX_MODULE_LINES + 2}, {"a.py": MAX_MODULE_LINES + 1})) == 1
    assert len(length_errors({"a.py": MAX_MODULE_LINES}, {"a.py": MAX_MODULE_LINES + 1})) == 1
    assert len(length_errors({}, {"gone.py": MAX_MODULE_LINES + 1})) == 1


def test_machine_specific_path_is_reported() -> None:
    assert len(path_errors("x", "see /" + "home/me/kafka")) == 1
    assert len(path_errors("x", "['/" + "Users/me']")) == 1
    assert path_errors("x", "interop/" + "work/me, https://example.org/" + "home/me, /var/lib/kwire") == []

"""The rules of the house: who may import whom, who may touch the world, how long a module gets.

They are the tables below, and CONTRIBUTING.md tells their reasons. The sources are parsed, not imported.
A new room (a package, or a module right under broker/) needs its line in MAY_IMPORT.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

MAY_GET_LOGGERS = {
    "kwire.host.loggers",
    "kwire.cli",
    "kwire.pipeline",
    "kwire.testing.simulated.environment",  # hears what all nodes log
}
"""Who may log without saying for which node: `logging.getLogger`. Others are handed a `NodeLogger`."""

LOW = {"kwire.wire", "kwire.host", "kwire.broker.config"}
STORED = {*LOW, "kwire.broker.storage"}
KNOWN = {*STORED, "kwire.broker.security", "kwire.broker.metadata"}
MACHINES = {
    *KNOWN, "kwire.broker.controller", "kwire.broker.raft", "kwire.broker.replication", "kwire.coordinator",
}  # fmt: skip
WIRED = {*MACHINES, "kwire.broker.api", "kwire.broker.node"}
SHELL = {*WIRED, "kwire.broker.net"}
CLIENT_COMMANDS = {
    *KNOWN, "kwire.broker.raft.quorum_state", "kwire.client", "kwire.cli.shared", "kwire.cli.records",
    "kwire.cli.admin", "kwire.cli.files",
}  # fmt: skip
"""What commands may import that talk to a running cluster or read its files."""

MAY_IMPORT: dict[str, set[str]] = {
    "kwire.wire": set(),
    "kwire.wire.columns": {"kwire.wire"},  # the pipeline's, with packages that the broker does without
    "kwire.host": {"kwire.wire"},
    "kwire.broker.config": {"kwire.wire", "kwire.host", "kwire.broker.storage.log.log_config"},
    "kwire.broker.storage": {"kwire.wire", "kwire.host"},
    "kwire.broker.security": LOW,
    "kwire.broker.metadata": STORED,
    "kwire.broker.controller": KNOWN,
    "kwire.broker.raft": KNOWN,
    "kwire.broker.replication": KNOWN,
    "kwire.coordinator": KNOWN,
    "kwire.broker.api": MACHINES,
    "kwire.broker.node": WIRED,
    "kwire.broker.net": WIRED,
    "kwire.http": set(),
    "kwire.broker.observe": {*SHELL - {"kwire.broker.node"}, "kwire.http"},  # it is handed the node
    # As whom it goes to a broker, which users tell by the same text as a broker does.
    "kwire.client": {"kwire.wire", "kwire.broker.security", "kwire.broker.config.jaas"},
    # The files, and what is in them.
    "kwire.cli.shared": CLIENT_COMMANDS,
    "kwire.cli.admin": CLIENT_COMMANDS,
    "kwire.cli.records": CLIENT_COMMANDS,
    "kwire.cli.files": CLIENT_COMMANDS,
    "kwire.cli.doctor": CLIENT_COMMANDS,
    # A separate process, which no package imports. It shares the queries and formats of the client commands.
    "kwire.console": {*CLIENT_COMMANDS, "kwire.http"},
    # The command line starts everything else.
    "kwire.cli": {*SHELL, "kwire.broker.observe", "kwire.client", "kwire.cli", "kwire.pipeline.cli"},
    "kwire.__main__": {"kwire.cli"},
    "kwire.testing": {*SHELL, "kwire.client"},
    "simulation": {*SHELL, "kwire.client", "kwire.testing"},
    "kwire.testing.plugin": {"kwire.testing"},  # pytest's, which alone imports it
    # Strangers: they speak the wire, or read the files.
    "interop": {"interop.cluster"},
    "interop.exactly_once.faulty_broker": {*SHELL, "kwire.cli"},  # breaks it on purpose, from inside
    "interop.cluster": {"interop", "kwire.testing"},  # its checker of histories, which knows no broker
    # What is on the disk of a node of either kind, as kwire reads it.
    "interop.cluster.images": {"kwire.wire", "kwire.broker.metadata"},
    "interop.test_peers": {"interop", *SHELL},  # what kwire says to other nodes, to brokers of both kinds
    # No broker.
    "interop.test_segment_source": {"interop", "kwire.wire", "kwire.broker.storage", "kwire.pipeline"},
    "bench": {"kwire.pipeline"},  # the jobs are measured as a program that imports them runs them
    "kwire.pipeline": {"kwire.wire", "kwire.broker.storage"},
}
"""What each room may import, beside itself. Imports run downwards only."""

THIRD_PARTY: dict[str, set[str]] = {
    "kwire.wire": {"crc32c", "lz4", "snappy", "zstandard"},
    "kwire.wire.columns": {"numpy", "pyarrow"},
    "kwire.broker.storage": {"crc32c"},
    "kwire.broker.metadata": {"re2"},
    "kwire.coordinator": {"re2", "xxhash"},
    "kwire.cli.records": {"fastavro"},  # optional
    "kwire.broker.net": {"trio"},
    "kwire.http": {"hypercorn", "starlette", "trio"},
    "kwire.broker.observe": {"starlette", "trio"},
    "kwire.console": {"jinja2", "starlette", "trio"},
    "kwire.cli": {"trio"},
    "kwire.testing.plugin": {"pytest"},
    "interop.test_peers": {"pytest", "trio"},
}
"""What a room may use from outside of the standard library. Strangers may use what they like."""

STRANGERS = {"interop", "interop.cluster", "bench", "kwire.pipeline"}

LINKS = {"broker", "coordinator", "pipeline"}
"""What stands at the top of the repository to be seen, and is to be imported as a part of kwire."""

WORLD = {
    "asyncio", "concurrent", "datetime", "fcntl", "mmap", "multiprocessing", "os", "pathlib", "secrets",
    "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time",
    "trio",
}  # fmt: skip
"""Modules through which a program touches the world. Everyone else is handed time, chance and disks."""

PURE = {"pathlib.PurePath", "pathlib.PurePosixPath"}
"""Names in such modules that touch nothing."""

TOUCHES_WORLD = {
    "kwire.broker.net",
    "kwire.broker.storage.disk",
    "kwire.broker.storage.cleaner.child",  # starts the process that cleans
    "kwire.broker.storage.cleaner.worker",  # and is that process
    "kwire.host.clock",
    "kwire.broker.observe",
    "kwire.cli",
    "kwire.client",
    "kwire.console",
    "kwire.http",
    "kwire.testing",
    "simulation",
    *STRANGERS,
}
"""Who may: the shell, and what is not the broker."""

READS_FILES = {"kwire.broker.config.load"}
"""Who else may call open(): server.properties is read before there is a disk to ask."""

SEEDED = {"random": "Random", "uuid": "UUID"}
"""Of these modules the one name that everyone may use: it makes chance of what it is given."""

LONGEST = 600
MAY_BE_LONGER: dict[str, int] = {}
"""Modules over the limit, and their length at most. The list may only shrink."""

MACHINE_PATH = re.compile(r"(?<![\w.~$}<-])/(?:home|Users|root|work)/\w")
"""A path that means something on one machine only."""

DOTTED = re.compile(r"\w+(\.\w+)+\.?|(\.\w+){2,}")
"""What `import_module` may be handed: a name, a beginning of some, or a relative one and a name in it."""


MAY_IMPORT_BY_NAME = {
    "kwire.broker.api.dispatch.handlers",
    "kwire.cli.commands",
    "kwire.cli.files.internal_records",
    "kwire.pipeline.cli",
    "kwire.testing",
    "kwire.wire.registry",
}
"""Who may call `import_module`: the names stand in it, or begin there, so that circles are seen."""


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
        fault = f"{module} is in no room: give it a line in MAY_IMPORT"
        return [] if module in ("kwire", "kwire.broker") else [fault]
    faults = []
    for line, target, for_types in imports_of(module, ast.parse(source), is_package=is_package):
        where = f"{module}:{line} imports {target}"
        top = target.partition(".")[0]
        if top in ("kwire", "simulation", "interop", "bench", "tests"):
            target_room = room_of(target)
            if target_room is None:
                faults.append(f"{where}, which is in no room")
            elif target_room != room and not any(is_in(target, allowed) for allowed in MAY_IMPORT[room]):
                faults.append(f"{where}: {room} may not import {target_room}")
        elif top in LINKS:
            faults.append(f"{where}: a link to a room, not a package")
        elif for_types or room in STRANGERS:
            continue
        elif top in WORLD and target not in PURE and not touches_world(module):
            faults.append(f"{where}: only the shell touches the world")
        elif top not in sys.stdlib_module_names and top not in THIRD_PARTY.get(room, set()):
            faults.append(f"{where}: not one of the packages that {room} may use")
    return faults


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of names that lead to each other, each sorted. Tarjan's strongly connected components."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_names: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        open_names.append(name)
        for target in sorted(graph.get(name, ())):
            if target not in order:
                visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in open_names:
                lowest[name] = min(lowest[name], order[target])
        if lowest[name] == order[name]:
            start = open_names.index(name)
            circle, open_names[start:] = sorted(open_names[start:]), []
            if len(circle) > 1:
                found.append(circle)

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return sorted(found)


def module_graph(of: Iterable[tuple[str, bool, str]]) -> dict[str, set[str]]:
    """Which module imports which: at any time, lazily, for types alone, or by its name in a string."""
    sources = {name: (is_package, source) for name, is_package, source in of}
    fronts = {name for name, (is_package, _) in sources.items() if is_package}
    graph: dict[str, set[str]] = {}
    for name, (is_package, source) in sources.items():
        tree = ast.parse(source)
        named = {*names_in(name if is_package else name.rpartition(".")[0], tree)}
        if not imports_by_name(tree):
            named -= fronts  # loggers are called like rooms
        targets = {one for one in sources if is_in(one, "kwire") and one.rpartition(".")[0] + "." in named}
        for target in {found.target for found in imports_of(name, tree, is_package=is_package)} | named:
            targets.add(target if target in sources else target.rpartition(".")[0])
        graph[name] = (targets & sources.keys()) - {name}
    return graph


def imports_by_name(tree: ast.Module) -> bool:
    """Whether a module calls `import_module`."""
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module"
        for node in ast.walk(tree)
    )


def names_in(package: str, tree: ast.Module) -> Iterator[str]:
    """Names of modules, of what is in them, and beginnings of such, as strings in a module of a package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            yield package + node.value if node.value[0] == "." else node.value


def folder_graph(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Which folder or module imports which of those beside it; rooms of broker/ are beside kwire's others."""
    between: dict[str, set[str]] = {}
    for name, targets in graph.items():
        for target in targets:
            one, other = (end.replace("kwire.broker.", "kwire.broker/").split(".") for end in (name, target))
            apart = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
            if apart is not None:  # else one of them is the other's front
                between.setdefault(".".join(one[: apart + 1]), set()).add(".".join(other[: apart + 1]))
    return between


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
                faults.append(
                    f"{module}:{node.lineno} open(): files are the business of kwire.broker.storage.disk"
                )
    return faults


def chance_faults(module: str, line: int, origin: str | None, name: str) -> list[str]:
    """A draw from the process's own chance, of which no test knows the seed."""
    if origin in SEEDED and name != SEEDED[origin]:
        return [f"{module}:{line} {origin}.{name}: chance comes in as an argument"]
    return []


def logger_faults(module: str, source: str) -> list[str]:
    """Loggers that do not say which node speaks."""
    if not is_in(module, "kwire") or any(is_in(module, place) for place in MAY_GET_LOGGERS):
        return []
    return [
        f"{module}:{node.lineno} logging.getLogger: a logger comes of Host.logger, or as an argument"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Attribute, ast.ImportFrom)) and "getLogger" in ast.unparse(node)
    ]


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
    for top in ("kwire", "simulation", "interop", "bench"):
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

"""Rules of the code base: permitted imports, access to the operating system, and the length of modules.

The tables below are the rules; CONTRIBUTING.md gives the reasons. The sources are parsed, not imported.
A new package (or a module directly in broker/) needs a line in MAY_IMPORT.
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
    "kwire.testing.child_process",  # logs the records of the child process
    "kwire.testing.child_server",  # captures the log of all brokers
    "kwire.testing.simulated.environment",  # captures the log of all nodes
}
"""Modules that may call `logging.getLogger`. All others are handed a `NodeLogger`, which names the node."""

BASE = {"kwire.wire", "kwire.host", "kwire.broker.config"}
STORED = {*BASE, "kwire.broker.storage"}
WITH_METADATA = {*STORED, "kwire.broker.security", "kwire.broker.metadata"}
STATE_MACHINES = {
    *WITH_METADATA, "kwire.broker.controller", "kwire.broker.raft", "kwire.broker.replication",
    "kwire.coordinator",
}  # fmt: skip
WITH_NODE = {*STATE_MACHINES, "kwire.broker.api", "kwire.broker.node"}
WITH_NET = {*WITH_NODE, "kwire.broker.net"}
CLIENT_COMMANDS = {
    *WITH_METADATA, "kwire.broker.raft.quorum_state", "kwire.client", "kwire.cli.shared", "kwire.cli.records",
    "kwire.cli.admin", "kwire.cli.files",
}  # fmt: skip
"""Imports of commands that talk to a running cluster or read its files."""

MAY_IMPORT: dict[str, set[str]] = {
    "kwire.wire": set(),
    "kwire.wire.columns": {"kwire.wire"},  # for the pipeline, with dependencies that the broker does not have
    "kwire.host": {"kwire.wire"},
    "kwire.broker.config": {"kwire.wire", "kwire.host", "kwire.broker.storage.log.log_config"},
    "kwire.broker.storage": {"kwire.wire", "kwire.host"},
    "kwire.broker.security": BASE,
    "kwire.broker.metadata": STORED,
    "kwire.broker.controller": WITH_METADATA,
    "kwire.broker.raft": WITH_METADATA,
    "kwire.broker.replication": WITH_METADATA,
    "kwire.coordinator": WITH_METADATA,
    "kwire.broker.api": STATE_MACHINES,
    "kwire.broker.node": WITH_NODE,
    "kwire.broker.net": WITH_NODE,
    "kwire.http": set(),
    "kwire.broker.observe": {*WITH_NET - {"kwire.broker.node"}, "kwire.http"},  # the node is passed to it
    # Clients are given JAAS configurations in the same syntax as brokers.
    "kwire.client": {
        "kwire.wire",
        "kwire.host.system_socket",
        "kwire.host.system_time",
        "kwire.broker.security",
        "kwire.broker.config.jaas",
    },
    "kwire.certificates": {"kwire.wire"},
    # The files, and what is in them.
    "kwire.cli.shared": CLIENT_COMMANDS,
    "kwire.cli.admin": {*CLIENT_COMMANDS, "kwire.certificates"},
    "kwire.cli.records": CLIENT_COMMANDS,
    "kwire.cli.files": CLIENT_COMMANDS,
    # Loads the stores of certificates, and finds the endpoints, as a node would.
    "kwire.cli.doctor": {
        *CLIENT_COMMANDS,
        "kwire.broker.net.listeners",
        "kwire.broker.net.store_files",
        "kwire.broker.raft.endpoints",
    },
    # A separate process, which no package imports. It shares the queries and formats of the client commands.
    "kwire.console": {*CLIENT_COMMANDS, "kwire.http"},
    # The command line starts everything else.
    "kwire.cli": {*WITH_NET, "kwire.broker.observe", "kwire.client", "kwire.cli", "kwire.pipeline.cli"},
    "kwire.__main__": {"kwire.cli"},
    "kwire.testing": {*WITH_NET, "kwire.client", "kwire.certificates"},
    "simulation": {*WITH_NET, "kwire.client", "kwire.testing"},
    "kwire.testing.plugin": {
        "kwire.testing",
        "kwire.host.platform",
        "kwire.host.system_time",
    },  # only pytest imports it
    "kwire.testing.failure_traceback": {"kwire.testing"},
    # Independent programs, which use the protocol or read the files.
    "interop": {"interop.cluster", "kwire.wire.plural"},
    "interop.exactly_once.faulty_broker": {*WITH_NET, "kwire.cli"},  # plants errors inside the broker
    # The history checker of kwire.testing does not depend on the broker.
    "interop.cluster": {"interop", "kwire.testing"},
    # Decodes the metadata on the disks of kwire and Apache Kafka nodes.
    "interop.cluster.metadata_images": {"kwire.wire", "kwire.broker.metadata"},
    "interop.test_peer_connections": {
        "interop",
        *WITH_NET,
    },
    # Puts the proxy of kwire.testing in front of Apache Kafka.
    "interop.test_proxy": {"interop", "interop.cluster", "kwire.testing"},
    # Compares the validation of batches with that of Apache Kafka's classes, without a broker.
    "interop.test_batch_validation": {"interop", "kwire.wire", "kwire.broker.storage"},
    # Compares the decoder of Avro values with Avro's Java library, without a broker.
    "interop.test_avro": {"interop", "kwire.pipeline"},
    # Compares the names of certificates and principals with those of Java, without a broker.
    "interop.test_certificate_names": {"interop", "kwire.broker.security"},
    # It compares kwire's decisions with those of Apache Kafka's class.
    "interop.test_quota_throttles": {"interop", "kwire.broker.security"},
    "interop.test_authorizations": {"interop", "kwire.broker.config", "kwire.broker.security"},
    # Reads segment files without a broker.
    "interop.test_segment_source": {"interop", "kwire.wire", "kwire.broker.storage", "kwire.pipeline"},
    # measures the jobs as a library, and makes certificates for both brokers
    "bench": {"kwire.pipeline", "kwire.wire.plural", "kwire.certificates"},
    # Loads the stores and credentials in the properties of clients.
    "kwire.pipeline": {
        "kwire.wire",
        "kwire.host.platform",
        "kwire.broker.storage",
        "kwire.broker.security",
        "kwire.client.security",
    },
}
"""Permitted imports of each package, besides itself. Imports run downwards only."""

THIRD_PARTY: dict[str, set[str]] = {
    "kwire.wire": {"crc32c", "lz4", "snappy", "xxhash", "zstandard"},
    "kwire.wire.columns": {"numpy", "pyarrow"},
    "kwire.broker.storage": {"crc32c"},
    "kwire.broker.security": {"cryptography"},  # optional
    "kwire.certificates": {"cryptography"},  # optional
    "kwire.broker.metadata": {"re2"},
    "kwire.coordinator": {"re2", "xxhash"},
    "kwire.cli.records": {"fastavro"},  # optional
    "kwire.broker.net": {"trio"},
    "kwire.http": {"hypercorn", "starlette", "trio"},
    "kwire.broker.observe": {"starlette", "trio"},
    "kwire.console": {"jinja2", "starlette", "trio"},
    "kwire.cli": {"trio"},
    "kwire.testing": {"trio"},  # only in tests that run in trio
    "kwire.testing.plugin": {"pytest"},
    "kwire.testing.failure_traceback": {"pytest"},
    "interop.test_peer_connections": {"pytest", "trio"},
    "interop.test_proxy": {"aiokafka", "confluent_kafka", "kafka", "pytest"},
    "interop.test_batch_validation": {"pytest"},
    "interop.test_avro": {"pyarrow"},
}
"""Third-party packages that each package may use. Independent programs may use any."""

INDEPENDENT = {"interop", "interop.cluster", "bench", "kwire.pipeline"}

LINKS = {"broker", "coordinator", "pipeline"}
"""Links at the top of the repository. The packages are imported as parts of kwire, not through the links."""

OUTSIDE = {
    "_socket", "_thread", "asyncio", "concurrent", "datetime", "fcntl", "mmap", "multiprocessing", "os",
    "pathlib", "posix", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess",
    "tempfile", "threading", "time", "trio",
}  # fmt: skip
"""Modules that give access to the operating system. Most packages are handed time, randomness and disks."""

SYSTEM = {
    "kwire.host.platform",
    "kwire.host.second_instance",
    "kwire.host.system_os",
    "kwire.host.system_socket",
    "kwire.host.system_time",
}
"""Modules of kwire that give access to the operating system."""

PURE = {"pathlib.PurePath", "pathlib.PurePosixPath"}
"""Names in the modules of `OUTSIDE` that do not access the operating system."""

MAY_TOUCH_OUTSIDE = {
    "kwire.broker.net",
    "kwire.broker.security.tls_context",  # builds OpenSSL's contexts, which read keys from files
    "kwire.broker.security.presented_certificates",  # observes handshakes
    "kwire.broker.storage.descriptors",
    "kwire.broker.storage.disk",
    "kwire.broker.storage.cleaner.worker_pool",  # starts the cleaner process
    "kwire.broker.storage.cleaner.worker",  # runs in the cleaner process
    "kwire.host.clock",
    *SYSTEM,
    "kwire.certificates",  # converts times for `cryptography`, which makes keys from the system's randomness
    "kwire.broker.observe",
    "kwire.cli",
    "kwire.client",
    "kwire.console",
    "kwire.http",
    "kwire.testing",
    "simulation",
    *INDEPENDENT,
}
"""Modules that may use the modules of `OUTSIDE`: the I/O shell, and everything that is not the broker."""

MAY_OPEN_FILES = {"kwire.broker.config.load"}
"""Other modules that may call open(): server.properties is read before the disk object exists."""

SEEDABLE = {"random": "Random", "uuid": "UUID"}
"""The one name in each of these modules that every module may use: its result follows from its argument."""

MAX_MODULE_LINES = 600
MAY_BE_LONGER: dict[str, int] = {}
"""Longer modules, with the length that each may have. The list may only shrink."""

MACHINE_PATH = re.compile(r"(?<![\w.~$}<-])/(?:home|Users|root|work)/\w")
"""A path that exists only on one machine."""

DOTTED = re.compile(r"\w+(\.\w+)+\.?|(\.\w+){2,}")
"""Strings that could be passed to `import_module`: a module name, a prefix of one, or a relative name."""


MAY_IMPORT_BY_NAME = {
    "kwire.broker.api.dispatch.handlers",
    "kwire.cli.tools",
    "kwire.cli.files.internal_records",
    "kwire.pipeline.cli",
    "kwire.testing",
    "kwire.wire.registry",
    "kwire.wire.schema",  # the module of a class
}
"""Modules that may call `import_module`. They contain the names as strings, so that cycles are visible."""


class Import(NamedTuple):
    line: int
    target: str
    for_types: bool


def package_of(module: str) -> str | None:
    """Return the entry of MAY_IMPORT that covers a module, or a name in a module."""
    return max((package for package in MAY_IMPORT if is_in(module, package)), key=len, default=None)


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imports_of(module: str, tree: ast.Module, *, is_package: bool = False) -> Iterator[Import]:
    """Yield every import in the module, including those inside functions."""
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


def import_errors(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Return the forbidden imports of a module: upwards, third-party, or of the operating system."""
    package = package_of(module)
    if package is None:
        error = f"{module} has no line in MAY_IMPORT"
        return [] if module in ("kwire", "kwire.broker") else [error]
    errors = []
    for line, target, for_types in imports_of(module, ast.parse(source), is_package=is_package):
        if target == "kwire.__version__":
            continue  # every module may know the version
        where = f"{module}:{line} imports {target}"
        top = target.partition(".")[0]
        if top in ("kwire", "simulation", "interop", "bench", "tests"):
            target_package = package_of(target)
            if target_package is None:
                errors.append(f"{where}, which has no line in MAY_IMPORT")
            elif target_package != package and not any(
                is_in(target, allowed) for allowed in MAY_IMPORT[package]
            ):
                errors.append(f"{where}: {package} may not import {target_package}")
            elif not may_touch_outside(module) and any(is_in(target, one) for one in SYSTEM):
                errors.append(f"{where}: only the I/O shell may access the operating system")
        elif top in LINKS:
            errors.append(f"{where}: a link, not a package")
        elif for_types or package in INDEPENDENT:
            continue
        elif top in OUTSIDE and target not in PURE and not may_touch_outside(module):
            errors.append(f"{where}: only the I/O shell may access the operating system")
        elif top not in sys.stdlib_module_names and top not in THIRD_PARTY.get(package, set()):
            errors.append(f"{where}: {package} may not use this dependency")
    return errors


def import_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the sorted groups of names that import each other: strongly connected components, by Tarjan."""
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
    """Return the modules that each module imports, also lazily, for types only, or by name in a string."""
    sources = {name: (is_package, source) for name, is_package, source in of}
    packages_themselves = {name for name, (is_package, _) in sources.items() if is_package}
    graph: dict[str, set[str]] = {}
    for name, (is_package, source) in sources.items():
        tree = ast.parse(source)
        named = {*names_in(name if is_package else name.rpartition(".")[0], tree)}
        if not imports_by_name(tree):
            named -= packages_themselves  # logger names look like package names
        targets = {one for one in sources if is_in(one, "kwire") and one.rpartition(".")[0] + "." in named}
        for target in {found.target for found in imports_of(name, tree, is_package=is_package)} | named:
            targets.add(target if target in sources else target.rpartition(".")[0])
        graph[name] = (targets & sources.keys()) - {name}
    return graph


def imports_by_name(tree: ast.Module) -> bool:
    """Return whether a module calls `import_module`."""
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module"
        for node in ast.walk(tree)
    )


def names_in(package: str, tree: ast.Module) -> Iterator[str]:
    """Yield the strings of a module that may be module names or prefixes of them, made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            yield package + node.value if node.value[0] == "." else node.value


def folder_graph(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the siblings that each folder or module imports. Packages in broker/ are siblings, too."""
    between: dict[str, set[str]] = {}
    for name, targets in graph.items():
        for target in targets:
            one, other = (end.replace("kwire.broker.", "kwire.broker/").split(".") for end in (name, target))
            apart = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
            if apart is not None:  # otherwise one contains the other
                between.setdefault(".".join(one[: apart + 1]), set()).add(".".join(other[: apart + 1]))
    return between


def may_touch_outside(module: str) -> bool:
    return any(is_in(module, place) for place in MAY_TOUCH_OUTSIDE)


def outside_errors(module: str, source: str) -> list[str]:
    """Return uses of async code, open() and unseeded randomness outside the I/O shell."""
    if may_touch_outside(module):
        return []
    errors = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef):
            errors.append(f"{module}:{node.lineno} async def {node.name}: only the I/O shell is asynchronous")
        elif isinstance(node, ast.Attribute):
            errors += randomness_errors(module, node.lineno, ast.unparse(node.value), node.attr)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                errors += randomness_errors(module, node.lineno, node.module, alias.name)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("Random", "random.Random") and not node.args:
                errors.append(f"{module}:{node.lineno} {called}() without a seed")
            elif called == "open" and not any(is_in(module, package) for package in MAY_OPEN_FILES):
                errors.append(f"{module}:{node.lineno} open(): only kwire.broker.storage.disk accesses files")
    return errors


def randomness_errors(module: str, line: int, origin: str | None, name: str) -> list[str]:
    """Return an error for a use of the process-wide random generator, whose seed no test controls."""
    if origin in SEEDABLE and name != SEEDABLE[origin]:
        return [f"{module}:{line} {origin}.{name}: randomness is passed as an argument"]
    return []


def logger_errors(module: str, source: str) -> list[str]:
    """Return uses of loggers that do not name the node."""
    if not is_in(module, "kwire") or any(is_in(module, place) for place in MAY_GET_LOGGERS):
        return []
    return [
        f"{module}:{node.lineno} logging.getLogger: use Host.logger, or take the logger as an argument"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Attribute, ast.ImportFrom)) and "getLogger" in ast.unparse(node)
    ]


def length_errors(lengths: dict[str, int], may_be_longer: dict[str, int]) -> list[str]:
    """Return modules that are too long, and exceptions that are no longer needed."""
    errors = []
    for path, lines in lengths.items():
        limit = may_be_longer.get(path, MAX_MODULE_LINES)
        if lines > limit:
            errors.append(f"{path} has {lines} lines, more than {limit}: split it")
    stale = [path for path in may_be_longer if lengths.get(path, 0) <= MAX_MODULE_LINES]
    return errors + [
        f"{path} has at most {MAX_MODULE_LINES} lines: remove it from the list" for path in stale
    ]


def path_errors(name: str, text: str) -> list[str]:
    return [
        f"{name}:{number} names a path of one machine: {line.strip()[:120]}"
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]


def modules() -> Iterator[tuple[str, bool, str]]:
    """Yield name, whether it is an `__init__`, and source of every module except the tests."""
    for top in ("kwire", "simulation", "interop", "bench"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "target" in parts:
                continue
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            yield name, is_package, path.read_text(encoding="utf-8")


def repository_files() -> list[Path]:
    """Return the files that git tracks or would add. Without git, return all that are no build results."""
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

"""The names that a module of the standard library lacks on macOS, according to mypy's stubs (typeshed)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

STUBS = {
    "_socket": "_socket.pyi",
    "fcntl": "fcntl.pyi",
    "mmap": "mmap.pyi",
    "os": "os/__init__.pyi",
    "resource": "resource.pyi",
    "select": "select.pyi",
    "signal": "signal.pyi",
    "socket": "socket.pyi",
    "time": "time.pyi",
}
NOT_ALWAYS = {
    "_socket": {"MSG_NOSIGNAL"},
    "fcntl": {"F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW"},
    "socket": {"MSG_NOSIGNAL"},
}
"""Names that depend on the version of macOS on which Python was built."""


def missing_names() -> dict[str, list[str]]:
    """Return the names that exist on Linux but not on macOS, by module."""
    found = find_spec("mypy")
    assert found is not None
    assert found.submodule_search_locations is not None
    stubs = Path(found.submodule_search_locations[0], "typeshed", "stdlib")
    missing = {}
    for module, file in STUBS.items():
        tree = ast.parse((stubs / file).read_text(encoding="utf-8"))
        on = {platform: set(_names(tree.body, platform)) for platform in ("linux", "darwin")}
        missing[module] = sorted(on["linux"] - on["darwin"] | NOT_ALWAYS.get(module, set()))
    return missing


def _names(statements: list[ast.stmt], platform: str) -> Iterator[str]:
    facts = SimpleNamespace(platform=platform, version_info=sys.version_info)
    for statement in statements:
        match statement:
            case ast.If():
                test = compile(ast.Expression(statement.test), "stub", "eval")
                taken = statement.body if eval(test, {"sys": facts}) else statement.orelse
                yield from _names(taken, platform)
            case ast.FunctionDef() | ast.ClassDef():
                yield statement.name
            case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
                yield name
            case ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in statement.names)

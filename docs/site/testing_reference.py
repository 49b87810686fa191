"""The reference page of `kwire.testing`, generated from its signatures and docstrings.

MkDocs calls `on_files` while it builds (mkdocs.yml). Nothing is written into the repository.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from kwire import testing

CLASSES = (
    *("Broker", "Cluster", "Kafka", "Proxy", "Outages"),
    *("Recorder", "Exchange", "Faults", "Fault", "FaultOptions"),
    *("History", "Anomaly", "SimulatedCluster", "SimulatedBroker"),
    *("Record", "TopicPartition", "Group", "Member", "LookupTable"),
    *("ClientConfig", "ClientTls", "Tls", "Token", "Acl", "Denial", "ApiError"),
)
"""The classes of the page, in order."""
CREATED_BY_KWIRE = {
    "Exchange",
    "Fault",
    "Outages",
    "SimulatedBroker",
    "FaultOptions",
    "LookupTable",
    "ApiError",
}
"""Classes whose constructor is not shown, because tests do not call it."""
INTERNAL = {
    "Recorder": {
        *("begin_test", "connections", "count_response_bytes", "max_bytes", "max_requests", "numbered"),
        *("max_response_bytes", "record_request", "since_test_began", "source", "topic_names"),
    },
    "Exchange": {
        *(
            "body",
            "complete",
            "decode",
            "fetched_partitions",
            "header",
            "request_message",
            "response_message",
        ),
        *("result", "size_bytes", "topic_names"),
    },
    "Faults": {"active_since", "any_pending", "match", "register", "remember"},
    "Fault": {
        *("api", "client_id", "count", "delay_s", "description", "error_code", "kind", "match", "matches"),
        *("partition", "remaining", "topic"),
    },
    "LookupTable": {"named", "noun"},
    "SimulatedCluster": {"replicas", "roles", "seed", "spec"},
}
"""Members for other modules of kwire, which may change."""
MAX_LITERALS = 20
"""Types with more names than this show the first names only."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site."""
    files.append(File.generated(config, "testing-reference.md", content=reference_page(testing)))
    return files


def reference_page(package: ModuleType) -> str:
    """Return the page with the public classes, functions and types of `kwire.testing`."""
    lines = [
        "# Every name of kwire.testing",
        "",
        "[A broker in your tests](testing.md) explains these classes with examples.",
        "Import every name from `kwire.testing`.",
        "",
    ]
    for name in CLASSES:
        lines += [f"## {name}", "", *_class(name, getattr(package, name))]
    lines += ["## Functions", "", *_function("wait_until", package.wait_until, "", "###")]
    lines += ["## Types", "", *_types(package)]
    return "\n".join(lines) + "\n"


def _class(name: str, kind: type) -> Iterator[str]:
    yield from _text(inspect.cleandoc(kind.__doc__ or ""))
    init = vars(kind).get("__init__")
    if init is not None and name not in CREATED_BY_KWIRE:
        yield from _function(name, init, "", "###")
    documented = _attributes(kind)
    for member in public_members(name, kind):
        value: Any = inspect.getattr_static(kind, member, None)
        for wrapped in ("fget", "func", "__func__"):
            value = getattr(value, wrapped, value)
        is_property = isinstance(inspect.getattr_static(kind, member, None), property)
        if inspect.isfunction(value) and not is_property and not _is_cached(kind, member):
            yield from _function(member, value, f"{name}.", "###")
        else:
            annotation = _annotation(value) if inspect.isfunction(value) else documented[member][0]
            text = (inspect.getdoc(value) if inspect.isfunction(value) else documented[member][1]) or ""
            yield f"### {name}.{member}"
            yield ""
            if annotation:
                yield f"`{annotation}`"
                yield ""
            yield from _text(text)


def public_members(name: str, kind: type) -> list[str]:
    """Return the members of a class that tests may use, except those of `Kafka`, sorted."""
    own = {member for base in _own_bases(kind) for member in vars(base)} | set(_attributes(kind))
    return sorted(one for one in own if not one.startswith("_") and one not in INTERNAL.get(name, ()))


def _own_bases(kind: type) -> list[type]:
    """Return the classes of kwire that a class inherits from, without `Kafka` unless it is the class."""
    return [
        base
        for base in kind.__mro__
        if base.__module__.startswith("kwire") and (base is kind or base.__name__ != "Kafka")
    ]


def _attributes(kind: type) -> dict[str, tuple[str, str]]:
    """Return the annotation and the docstring of each field, and of each attribute set in `__init__`."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(_own_bases(kind)):
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        init = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        for prefix, body in (("", tree.body), *(("self.", one.body) for one in init)):
            for position, statement in enumerate(body):
                target, annotation = _assigned(statement)
                name = target.removeprefix(prefix)
                if target.startswith(prefix) and name.isidentifier() and not name.startswith("_"):
                    found[name] = annotation, _docstring_after(body, position)
    return found


def _assigned(statement: ast.stmt) -> tuple[str, str]:
    """Return the target and the annotation of an assignment. Both are empty for other statements."""
    if isinstance(statement, ast.AnnAssign):
        return ast.unparse(statement.target), ast.unparse(statement.annotation)
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement.targets[0]), ""
    return "", ""


def _docstring_after(body: list[ast.stmt], position: int) -> str:
    after = body[position + 1] if position + 1 < len(body) else None
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return inspect.cleandoc(str(after.value.value))
    return ""


def _is_cached(kind: type, member: str) -> bool:
    return type(inspect.getattr_static(kind, member)).__name__ == "cached_property"


def _annotation(function: Any) -> str:
    return str(inspect.get_annotations(function).get("return", ""))


def _function(name: str, function: Any, prefix: str, heading: str) -> Iterator[str]:
    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    signature = signature.replace(parameters=parameters)
    if name[0].isupper():
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    text = re.sub(r"'([^']*)'(?=[,)=]| =|$)", r"\1", str(signature))
    yield f"{heading} {prefix}{name}()"
    yield ""
    yield "```python"
    if len(name + text) > 90:
        inner = ",\n    ".join(re.sub(r": '([^']*)'", r": \1", str(one)) for one in _shown(parameters))
        result = text.rpartition(")")[2]
        text = f"(\n    {inner},\n){result}"
    yield f"{name}{text}"
    yield "```"
    yield ""
    yield from _text(inspect.cleandoc(function.__doc__ or ""))


def _shown(parameters: list[inspect.Parameter]) -> Iterator[object]:
    """Yield the parameters, with the separator `*` before the first one that is a keyword only."""
    kinds = [one.kind for one in parameters]
    has_args = inspect.Parameter.VAR_POSITIONAL in kinds
    for position, one in enumerate(parameters):
        if one.kind is one.KEYWORD_ONLY and not has_args and one.kind not in kinds[:position]:
            yield "*"
        yield one


def _types(package: ModuleType) -> Iterator[str]:
    for name in sorted(set(package.__all__) - {*CLASSES, "wait_until"}):
        value = getattr(package, name)
        yield f"### {name}"
        yield ""
        if get_origin(value) is Literal:
            names = get_args(value)
            shown = ", ".join(f"`{one}`" for one in names[:MAX_LITERALS])
            yield shown + (f" and {len(names) - MAX_LITERALS} more" if len(names) > MAX_LITERALS else "")
        elif isinstance(value, type) and get_origin(value) is None:
            yield from _text(inspect.cleandoc(value.__doc__ or ""))
        else:
            yield f"`{value!r}`".replace("collections.abc.", "")
        yield ""


def _text(docstring: str) -> Iterator[str]:
    """Yield the lines of a docstring, and an empty line."""
    yield from docstring.splitlines()
    yield ""

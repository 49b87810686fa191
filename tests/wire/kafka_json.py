"""Kafka's message definitions, from the JSON files that kafka-python ships.

Definitions of requests that kafka-python lacks are in `data/`, written by `golden.py`. The parser shares no
code with kwire: a definition is a `Struct` of `Entry`s, with versions, nullable versions and defaults.
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any

PACKAGE = "kafka.protocol.schemas.resources"
DATA = Path(__file__).parent / "data"
OTHERS = DATA / "kafka-4.3.1-requests.json"
"""Definitions of requests and responses that kafka-python does not have."""
STORED = DATA / "kafka-4.3.1-stored.json"
"""Definitions of records in Kafka's logs and files."""

ENDLESS = 0x7FFF
WIDTHS = {
    "bool": "Bool",
    "int8": "Int8",
    "int16": "Int16",
    "uint16": "UInt16",
    "int32": "Int32",
    "uint32": "UInt32",
    "int64": "Int64",
    "float64": "Float64",
    "string": "Str",
    "bytes": "Bytes",
    "records": "Records",
    "uuid": "Uuid",
}
"""Kafka's primitive types and their names in kwire."""


def reference(module: str) -> Any:
    """Import a module of kafka-python without deprecation warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return import_module(module)


@dataclass(frozen=True)
class Span:
    """A range of versions, including both ends."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


def span(text: str) -> Span:
    if text == "none":
        return Span(1, 0)
    found = re.fullmatch(r"(\d+)(?:-(\d+)|(\+))?", text)
    assert found, text
    first, last, endless = found.groups()
    return Span(int(first), ENDLESS if endless else int(last or first))


@dataclass(frozen=True)
class Entry:
    """One field of a definition."""

    name: str
    json_name: str
    element: str
    """The type of the field or its elements: the name of a primitive in Kafka, or of a structure."""
    is_list: bool
    struct: Struct | None
    versions: Span
    nullable: Span
    tag: int | None
    tagged: Span
    flexible: Span | None
    ignorable: bool
    default: Any
    """The default in kwire's terms; "struct" for a structure that is not null by default."""

    def is_nullable(self, version: int) -> bool:
        return version in self.nullable


@dataclass(frozen=True)
class Struct:
    """The fields of a message or of a structure inside one."""

    name: str
    entries: tuple[Entry, ...]

    def at(self, version: int) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if version in entry.versions)


@dataclass(frozen=True)
class Definition:
    """The definition of a message."""

    name: str
    api_key: int
    versions: Span
    flexible: Span
    struct: Struct


def snake_case(name: str) -> str:
    """Convert FetchMaxWaitMs to fetch_max_wait_ms."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def without_comments(text: str) -> str:
    """Remove the `//` comments of Kafka's JSON, except inside of strings."""
    pattern = r'("(?:\\.|[^"\\])*")|//[^\n]*'
    return re.sub(pattern, lambda found: found.group(1) or "", text)


def parse(text: str) -> Definition:
    raw = json.loads(without_comments(text))
    shared = {one["name"]: one["fields"] for one in raw.get("commonStructs", ())}
    return Definition(
        raw["name"],
        raw.get("apiKey", -1),
        span(raw["validVersions"]),
        span(raw["flexibleVersions"]),
        Struct(raw["name"], tuple(_entry(one, shared) for one in raw["fields"])),
    )


def in_kafka_python(name: str) -> bool:
    """Return whether kafka-python has this message."""
    return resources.files(reference(PACKAGE)).joinpath(f"{name}.json").is_file()


@cache
def definition(name: str) -> Definition:
    """Return the definition of a message. Raise KeyError if neither kafka-python nor `data/` has it."""
    if in_kafka_python(name):
        file = resources.files(reference(PACKAGE)).joinpath(f"{name}.json")
        return parse(file.read_text(encoding="utf-8"))
    return parse(json.dumps(_kept()[name]))


@cache
def _kept() -> dict[str, Any]:
    """Return the definitions in `data/`."""
    found: dict[str, Any] = {}
    for file in (OTHERS, STORED):
        found |= json.loads(file.read_text(encoding="ascii"))
    return found


def _entry(raw: dict[str, Any], shared: dict[str, list[dict[str, Any]]]) -> Entry:
    kind: str = raw["type"]
    is_list = kind.startswith("[]")
    element = kind.removeprefix("[]")
    struct = None
    if element not in WIDTHS:
        fields = raw["fields"] if "fields" in raw else shared[element]
        struct = Struct(element, tuple(_entry(one, shared) for one in fields))
    tagged = span(raw.get("taggedVersions", "none"))
    return Entry(
        snake_case(raw["name"]),
        raw["name"][0].lower() + raw["name"][1:],
        element,
        is_list,
        struct,
        span(raw["versions"]) if "versions" in raw else tagged,
        span(raw.get("nullableVersions", "none")),
        raw.get("tag"),
        tagged,
        span(raw["flexibleVersions"]) if "flexibleVersions" in raw else None,
        bool(raw.get("ignorable", False)),
        _default(element, is_list, raw.get("default")),
    )


def _default(element: str, is_list: bool, given: object) -> Any:
    if given == "null" or element == "records":
        return None
    if is_list:
        return []
    if element not in WIDTHS:
        return "struct"
    if element == "string":
        return given or ""
    if element == "bytes":
        return b""
    if element == "uuid":
        return bytes(16)
    if element == "bool":
        return given in (True, "true")
    if element == "float64":
        return float(str(given or 0))
    return int(str(given or 0), 0)

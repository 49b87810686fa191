"""A second, slow codec of Kafka's protocol that interprets Kafka's definitions.

It shares no code with kwire, so that both do not have the same mistakes. Values are plain: a structure is a
dict by field name without the fields that a version lacks.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from typing import Any, TypeAlias

from kwire.wire.schema import Message, fields_of
from tests.wire.kafka_json import Definition, Entry, Struct

Value: TypeAlias = dict[str, Any]

FIXED = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
    "uuid": ">16s",
}


def varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


class Writer:
    """Encodes one version of a definition."""

    def __init__(self, definition: Definition, version: int) -> None:
        self.definition = definition
        self.version = version
        self.flexible = version in definition.flexible

    def message(self, value: Value) -> bytes:
        return self.structure(self.definition.struct, value)

    def structure(self, shape: Struct, value: Value) -> bytes:
        out = b""
        tagged: dict[int, bytes] = {}
        for entry in shape.at(self.version):
            given = value[entry.name]
            if self.version not in entry.tagged:
                out += self.field(entry, given)
            elif given != default_of(entry, self.version):
                assert entry.tag is not None
                tagged[entry.tag] = self.field(entry, given)
        if self.flexible:
            out += varint(len(tagged))
            for tag in sorted(tagged):
                out += varint(tag) + varint(len(tagged[tag])) + tagged[tag]
        return out

    def field(self, entry: Entry, value: Any) -> bytes:
        if not entry.is_list:
            return self.element(entry, value, entry.is_nullable(self.version))
        if value is None:
            assert entry.is_nullable(self.version)
            return varint(0) if self.flexible else struct.pack(">i", -1)
        count = varint(len(value) + 1) if self.flexible else struct.pack(">i", len(value))
        return count + b"".join(self.element(entry, one, False) for one in value)

    def element(self, entry: Entry, value: Any, nullable: bool) -> bytes:
        if entry.struct is not None:
            if not nullable:
                return self.structure(entry.struct, value)
            null = b"\x00" if self.version in entry.tagged else b"\xff"
            return null if value is None else b"\x01" + self.structure(entry.struct, value)
        if entry.element in FIXED:
            return struct.pack(FIXED[entry.element], value)
        width = ">h" if entry.element == "string" else ">i"
        if value is None:
            assert nullable
            return varint(0) if self.flexible else struct.pack(width, -1)
        data = value.encode() if entry.element == "string" else bytes(value)
        return (varint(len(data) + 1) if self.flexible else struct.pack(width, len(data))) + data


class Reader:
    """Decodes one version of a definition; `position` is the next byte."""

    def __init__(self, definition: Definition, version: int, data: bytes) -> None:
        self.definition = definition
        self.version = version
        self.flexible = version in definition.flexible
        self.data = data
        self.position = 0

    def message(self) -> Value:
        return self.structure(self.definition.struct)

    def structure(self, shape: Struct) -> Value:
        value: Value = {}
        tagged: dict[int, Entry] = {}
        for entry in shape.at(self.version):
            if self.version in entry.tagged:
                assert entry.tag is not None
                tagged[entry.tag] = entry
                value[entry.name] = default_of(entry, self.version)
            else:
                value[entry.name] = self.field(entry)
        if self.flexible:
            for _ in range(self.varint()):
                tag, size = self.varint(), self.varint()
                stop = self.position + size
                if tag in tagged:
                    value[tagged[tag].name] = self.field(tagged[tag])
                    assert self.position == stop
                self.position = stop
        return value

    def field(self, entry: Entry) -> Any:
        if not entry.is_list:
            return self.element(entry, entry.is_nullable(self.version))
        count = self.varint() - 1 if self.flexible else self.fixed(">i")
        return None if count < 0 else [self.element(entry, False) for _ in range(count)]

    def element(self, entry: Entry, nullable: bool) -> Any:
        if entry.struct is not None:
            if nullable and self.fixed(">b") < (1 if self.version in entry.tagged else 0):
                return None
            return self.structure(entry.struct)
        if entry.element in FIXED:
            return self.fixed(FIXED[entry.element])
        if self.flexible:
            size = self.varint() - 1
        else:
            size = self.fixed(">h" if entry.element == "string" else ">i")
        if size < 0:
            assert nullable or entry.element == "records"
            return None
        data = self.data[self.position : self.position + size]
        assert len(data) == size
        self.position += size
        return data.decode() if entry.element == "string" else data

    def fixed(self, code: str) -> Any:
        (value,) = struct.unpack_from(code, self.data, self.position)
        self.position += struct.calcsize(code)
        return value

    def varint(self) -> int:
        value, scale = 0, 1
        while True:
            byte = self.data[self.position]
            self.position += 1
            value += byte % 128 * scale
            if byte < 128:
                return value
            scale *= 128


def default_of(entry: Entry, version: int) -> Any:
    """Return the default of a field as a plain value."""
    if entry.struct is not None and entry.default == "struct":
        return {one.name: default_of(one, version) for one in entry.struct.at(version)}
    return entry.default


def representative(shape: Struct, version: int) -> Value:
    """Return a value with a non-default in every field and one element in every list."""
    return {entry.name: _filled(entry, version) for entry in shape.at(version)}


def _filled(entry: Entry, version: int) -> Any:
    one: Any
    if entry.struct is not None:
        one = representative(entry.struct, version)
    elif entry.element == "string":
        one = f"{entry.name} é"
    elif entry.element in ("bytes", "records"):
        one = entry.name.encode()
    elif entry.element == "uuid":
        one = bytes(range(16))
    elif entry.element == "bool":
        one = entry.default is not True
    elif entry.element == "float64":
        one = 2.5
    else:
        one = 7 + len(entry.name)
    return [one] if entry.is_list else one


class Maker:
    """Generates random values of a version, including extremes, nulls, empty and long values."""

    def __init__(self, version: int, choose: random.Random) -> None:
        self.version = version
        self.choose = choose

    def structure(self, shape: Struct) -> Value:
        return {entry.name: self.field(entry) for entry in shape.at(self.version)}

    def field(self, entry: Entry) -> Any:
        if entry.is_nullable(self.version) and self.choose.random() < 0.25:
            return None
        if self.version in entry.tagged and self.choose.random() < 0.3:
            return default_of(entry, self.version)
        if not entry.is_list:
            return self.element(entry)
        most = 3 if entry.struct is not None else 130 if self.choose.random() < 0.05 else 4
        return [self.element(entry) for _ in range(self.choose.randint(0, most))]

    def element(self, entry: Entry) -> Any:
        kind = entry.element
        if entry.struct is not None:
            return self.structure(entry.struct)
        if kind == "string":
            length = self.choose.choice(
                (0, 1, 5, 126, 127, 128, 300) if self.choose.random() < 0.1 else (0, 1, 5)
            )
            return "".join(self.choose.choices("az09-._é漢\U0001f600\x00", k=length))
        if kind in ("bytes", "records"):
            return self.choose.randbytes(self.choose.choice((0, 1, 60, 127, 128)))
        if kind == "uuid":
            return self.choose.randbytes(16)
        if kind == "bool":
            return self.choose.random() < 0.5
        if kind == "float64":
            return self.choose.uniform(-1e9, 1e9)
        bits = int(kind.removeprefix("u").removeprefix("int"))
        low, high = (0, 2**bits - 1) if kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return self.choose.choice((low, high, -1 if low else 1, 0, self.choose.randint(low, high)))


def to_message(message_class: type[Message], value: Value) -> Message:
    """Convert a plain value to kwire's message."""
    nested = {field.name: field.message for field in fields_of(message_class)}

    def convert(name: str, given: Any) -> Any:
        inner = nested[name]
        if inner is None or given is None:
            return given
        if isinstance(given, list):
            return [to_message(inner, one) for one in given]
        return to_message(inner, given)

    return message_class(**{name: convert(name, given) for name, given in value.items()})


def to_value(message: Message, shape: Struct, version: int) -> Value:
    """Convert kwire's message to a plain value without the fields that the version lacks."""
    entries: Iterable[Entry] = shape.at(version)

    def convert(entry: Entry, given: Any) -> Any:
        if given is None:
            return None
        if entry.struct is not None:
            inner = entry.struct
            if entry.is_list:
                return [to_value(one, inner, version) for one in given]
            return to_value(given, inner, version)
        return bytes(given) if entry.element == "records" else given

    return {entry.name: convert(entry, getattr(message, entry.name)) for entry in entries}

"""Schema resolution: the conversion of values from a writer's schema to a reader's schema.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
Where the specification leaves a choice, the choice is that of Avro's Java library:

- A record of a union is that with the full name of the writer's record. If there is none, it is the last one
  with its unqualified name whose fields fit.
- A number, text or bytes belong to the branch of the same type, and else to the first branch that they can be
  promoted to.
- Branches of equal unions correspond by position, if no other branch has the full name of the writer's type.
- An error concerns only the values in which it occurs, such as those of one branch of a union.

Two rules are those of the specification and not of the Java library:

- Records match only if their unqualified names are equal. The Java library ignores the names, and would read
  any record as a record whose fields have defaults.
- An enum or a fixed in a union also matches by its unqualified name, if only one branch has that name.

A logical type with another meaning, such as another unit of time, is an error of the values that have it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kwire.pipeline.values.avro_defaults import default_of
from kwire.pipeline.values.avro_schema import (
    ARRAY,
    ENUM,
    FIXED,
    MAP,
    NAMED,
    NO_DEFAULT,
    RECORD,
    UNION,
    AvroType,
    members_of,
)
from kwire.pipeline.values.avro_stored import BRANCH_VALUE, branch_position, has_several_types
from kwire.pipeline.values.columns import DecodeError

PROMOTED: Final = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"),
    ("float", "double"), ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip
"""Pairs of a writer's type and a reader's type to which it can be promoted."""
DOUBLE_BITS: Final = 53
"""The number of bits of an integer that a double always has."""
STICKY_BITS: Final = 10

Convert = Callable[[Any], Any]


def conversion(writer: AvroType, reader: AvroType) -> Convert | None:
    """Return the conversion of values that `stored_schema` of the writer reads, or None if there is none.

    The conversion raises DecodeError for a value that the reader's schema does not fit. It may change its
    argument. This function raises DecodeError if aliases make two types or two fields of the writer equal.
    """
    return _Resolution(reader).conversion(writer, reader, ())


def _error(path: tuple[str, ...], why: str) -> DecodeError:
    return DecodeError(f"the reader's schema does not fit the writer's: {': '.join((*path, why))}")


class _Resolution:
    def __init__(self, reader: AvroType) -> None:
        self._aliases = dict(_aliases(reader, set()))

    def _name(self, written: AvroType) -> str:
        """Return the full name of a writer's type, after aliases of the reader."""
        return self._aliases.get(written.name, written.name)

    def conversion(self, written: AvroType, wanted: AvroType, path: tuple[str, ...]) -> Convert | None:
        if written.kind == UNION:
            return self._from_union(written, wanted, path)
        if wanted.kind == UNION:
            return self._to_union(written, wanted, self._branch(written, wanted), path)
        why = self._mismatch(written, wanted) or _other_meaning(written, wanted)
        if why:
            return _fail(_error(path, why))
        if written.kind == RECORD:
            return self._record(written, wanted, path)
        if written.kind in (ARRAY, MAP):
            inside = self.conversion(written.item, wanted.item, path)
            if inside is None:
                return None
            return _list_of(inside) if written.kind == ARRAY else _map_of(inside)
        if written.kind == ENUM:
            return _symbol(written, wanted, path)
        return _promotion(written.kind, wanted.kind)

    def _mismatch(self, written: AvroType, wanted: AvroType) -> str:
        """Describe why no value of a type can be read as another type, apart from the types inside it.

        The result is empty if there is no reason. The writer's type is not a union.
        """
        if wanted.kind == UNION:
            found = self._branch(written, wanted) is None
            return f"no branch of the union fits {written}" if found else ""
        if written.kind != wanted.kind:
            return "" if (written.kind, wanted.kind) in PROMOTED else f"{written} is not {wanted}"
        if written.kind in NAMED.values() and not self._is_named_like(written, wanted):
            return f"{written} is not {wanted}"
        if written.kind == FIXED and written.size != wanted.size:
            return f"{written} has the size {written.size} and not {wanted.size}"
        if written.kind == RECORD:
            names = {field.name for field in written.fields}
            for field in wanted.fields:
                if field.default is NO_DEFAULT and names.isdisjoint((field.name, *field.aliases)):
                    return f"{written} has no field {field.name}, and there is no default value"
        return ""

    def _is_named_like(self, written: AvroType, wanted: AvroType) -> bool:
        return self._name(written).rpartition(".")[2] == wanted.unqualified

    def _branch(self, written: AvroType, union: AvroType) -> int | None:
        """Return the position of the branch of a reader's union to which a value belongs.

        The result is None if it belongs to no branch. The writer's type is not a union.
        """
        same = [position for position, branch in enumerate(union.items) if branch.kind == written.kind]
        if written.kind not in NAMED.values():
            promoted = (
                position
                for position, branch in enumerate(union.items)
                if (written.kind, branch.kind) in PROMOTED
            )
            return next(iter(same), next(promoted, None))
        for position in same:
            if union.items[position].name == self._name(written):
                return position
        fitting = [position for position in same if self._fits(written, union.items[position])]
        if written.kind != RECORD and len(fitting) > 1:
            return None
        return fitting[-1] if fitting else None

    def _fits(self, written: AvroType, branch: AvroType) -> bool:
        """Return whether a named type is read as a branch with another namespace."""
        if self._mismatch(written, branch):
            return False
        if written.kind != RECORD:
            return True
        return not any(
            one.kind != UNION and self._mismatch(one, other)
            for one, other in (
                (written.fields[at].type, field.type) for at, field in _matches(written, branch)
            )
        )

    def _record(self, written: AvroType, wanted: AvroType, path: tuple[str, ...]) -> Convert | None:
        renamed: list[tuple[str, str]] = []
        steps: list[tuple[str, Convert]] = []
        read: set[str] = set()
        for at, field in _matches(written, wanted):
            source = written.fields[at]
            if field.name in read:
                raise _error(path, f"{written} has both {field.name} and an alias of it")
            read.add(field.name)
            if source.name != field.name:
                renamed.append((source.name, field.name))
            step = self.conversion(source.type, field.type, (*path, field.name))
            if step is not None:
                steps.append((field.name, step))
        defaults = {field.name: default_of(field) for field in wanted.fields if field.name not in read}
        if not (renamed or steps or defaults):
            return None
        return _record_of(renamed, steps, defaults)

    def _to_union(
        self, written: AvroType, union: AvroType, position: int | None, path: tuple[str, ...]
    ) -> Convert | None:
        if position is None:
            return _fail(_error(path, self._mismatch(written, union)))
        branch = union.items[position]
        inside = self.conversion(written, branch, path)
        members = members_of(union)
        return _member(members.index(branch), inside) if branch in members else inside

    def _from_union(self, union: AvroType, wanted: AvroType, path: tuple[str, ...]) -> Convert | None:
        names = [self._name(branch) for branch in union.items if branch.name]
        if len(set(names)) < len(names):
            raise _error(path, f"the union has both {', '.join(names)} after aliases")
        is_equal = wanted.kind == UNION and self._is_equal(union, wanted, set())
        branches = [
            self._from_branch(branch, wanted, position if is_equal else None, path)
            for position, branch in enumerate(union.items)
        ]
        kinds = [branch.kind for branch in union.items]
        null = branches[kinds.index("null")] if "null" in kinds else None
        if has_several_types(union):
            return _choice(null, branches)
        if all(branch is None for branch in branches):
            return None
        others = (branch for branch, kind in zip(branches, kinds, strict=True) if kind != "null")
        return _nullable(null, next(others, None))

    def _from_branch(
        self, branch: AvroType, wanted: AvroType, position: int | None, path: tuple[str, ...]
    ) -> Convert | None:
        if position is None or any(other.name == self._name(branch) for other in wanted.items if other.name):
            return self.conversion(branch, wanted, path)
        return self._to_union(branch, wanted, position, path)

    def _is_equal(self, written: AvroType, wanted: AvroType, seen: set[tuple[int, int]]) -> bool:
        """Return whether two types are equal apart from namespaces, aliases, defaults and logical types."""
        if written.kind != wanted.kind:
            return False
        if written.kind in NAMED.values() and not self._is_named_like(written, wanted):
            return False
        if written.kind in (ARRAY, MAP, UNION):
            return len(written.items) == len(wanted.items) and all(
                self._is_equal(one, other, seen)
                for one, other in zip(written.items, wanted.items, strict=True)
            )
        if written.kind == RECORD:
            if (id(written), id(wanted)) in seen:
                return True
            seen.add((id(written), id(wanted)))
            return len(written.fields) == len(wanted.fields) and all(
                one.name in (other.name, *other.aliases) and self._is_equal(one.type, other.type, seen)
                for one, other in zip(written.fields, wanted.fields, strict=True)
            )
        return (written.symbols, written.size) == (wanted.symbols, wanted.size)


def _aliases(type_: AvroType, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Yield each alias of a type in a schema, with the type's full name."""
    if id(type_) in seen:
        return
    seen.add(id(type_))
    yield from ((alias, type_.name) for alias in type_.aliases)
    for inside in (*type_.items, *(field.type for field in type_.fields)):
        yield from _aliases(inside, seen)


def _matches(written: AvroType, wanted: AvroType) -> Iterator[tuple[int, Any]]:
    """Yield the position of each field of the writer's record that the reader has, and the reader's field."""
    by_name = {alias: field for field in wanted.fields for alias in field.aliases}
    by_name |= {field.name: field for field in wanted.fields}
    for position, field in enumerate(written.fields):
        if field.name in by_name:
            yield position, by_name[field.name]


def _other_meaning(written: AvroType, wanted: AvroType) -> str:
    """Describe the logical types if a stored value would have another meaning for the reader."""
    left, right = written.logical, wanted.logical
    if written.kind == "string" and wanted.kind == "bytes" and right is not None:
        return f"written as text, read as {right.meaning}"
    if left is None or right is None or left.meaning == right.meaning:
        return ""
    return f"written as {left.meaning}, read as {right.meaning}"


def _fail(error: DecodeError) -> Convert:
    def fail(value: Any) -> Any:
        raise DecodeError(str(error))

    return fail


def _list_of(inside: Convert) -> Convert:
    return lambda values: [inside(value) for value in values]


def _map_of(inside: Convert) -> Convert:
    return lambda values: {key: inside(value) for key, value in values.items()}


def _record_of(
    renamed: list[tuple[str, str]], steps: list[tuple[str, Convert]], defaults: Mapping[str, Any]
) -> Convert:
    def record(value: dict[str, Any]) -> dict[str, Any]:
        if renamed:
            # Take all values before the first new name, because a new name may be an old name of another.
            taken = [(new, value.pop(old)) for old, new in renamed]
            value.update(taken)
        for name, step in steps:
            value[name] = step(value[name])
        value.update(defaults)
        return value

    return record


def _symbol(written: AvroType, wanted: AvroType, path: tuple[str, ...]) -> Convert:
    symbols = [symbol if symbol in wanted.symbols else wanted.default_symbol for symbol in written.symbols]

    def symbol_at(index: int) -> str:
        if not 0 <= index < len(symbols):
            raise DecodeError(f"{': '.join((*path, written.name))} has no symbol {index}")
        found = symbols[index]
        if found is None:
            raise _error(path, f"{wanted} has no symbol {written.symbols[index]}")
        return found

    return symbol_at


def _member(member: int, inside: Convert | None) -> Convert:
    if inside is None:
        return lambda value: (member, value)
    return lambda value: (member, inside(value))


def _choice(null: Convert | None, branches: list[Convert | None]) -> Convert:
    def choice(value: tuple[str, dict[str, Any]] | None) -> Any:
        if value is None:
            return value if null is None else null(value)
        name, record = value
        branch = branches[branch_position(name)]
        inside = record[BRANCH_VALUE]
        return inside if branch is None else branch(inside)

    return choice


def _nullable(null: Convert | None, other: Convert | None) -> Convert:
    def nullable(value: Any) -> Any:
        branch = null if value is None else other
        return value if branch is None else branch(value)

    return nullable


def _promotion(written: str, wanted: str) -> Convert | None:
    if written == wanted:
        return None
    if wanted == "float":
        return _to_float
    if written in ("int", "long") and wanted == "double":
        return float
    if wanted == "bytes":
        return str.encode
    if wanted == "string":
        return _to_string
    return None


def _to_string(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"not valid UTF-8: {error.reason} at byte {error.start}") from None


def _to_float(value: int) -> float:
    """Round an integer to the nearest float once. A conversion to double first would round twice."""
    if value.bit_length() > DOUBLE_BITS:
        kept = value >> STICKY_BITS
        if value & (1 << STICKY_BITS) - 1:
            kept |= 1
        value = kept << STICKY_BITS
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found

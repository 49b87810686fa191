"""Whether an archive's decoded values keep their members if the reader's schema changes.

The members of a union are columns named by position, `member0` and so on. If a later schema has another type
at a position, Spark would read the values of older files as that type, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kwire.pipeline.values.avro_schema import ARRAY, MAP, RECORD, UNION, AvroType, members_of

NUMBERS: Final = ("int", "long", "float", "double")


def moved_members(written: AvroType, wanted: AvroType, name: str) -> Iterator[str]:
    """Yield a description of each union of the schema `written` whose members `wanted` has elsewhere.

    `name` is the name of the column in the description.
    """
    before, now = members_of(_other_than_null(written)), members_of(_other_than_null(wanted))
    if bool(before) != bool(now):
        which = "in the archive" if before else "now"
        yield f"{name} is a union of several types only {which}"
        return
    for number, member in enumerate(before):
        if number >= len(now) or not _is_same(member, now[number]):
            there = str(now[number]) if number < len(now) else "missing"
            yield f"{name}.member{number} is {member} in the archive and {there} now"
        else:
            yield from _inside(member, now[number], f"{name}.member{number}")
    if not before:
        yield from _inside(_other_than_null(written), _other_than_null(wanted), name)


def _inside(written: AvroType, wanted: AvroType, name: str) -> Iterator[str]:
    if written.kind != wanted.kind:
        return
    if written.kind in (ARRAY, MAP):
        yield from moved_members(written.item, wanted.item, f"{name}[]")
    elif written.kind == RECORD:
        fields = {field.name.lower(): field.type for field in written.fields}
        for field in wanted.fields:
            known = fields.get(field.name.lower())
            if known is not None:
                yield from moved_members(known, field.type, f"{name}.{field.name}")


def _other_than_null(type_: AvroType) -> AvroType:
    """Return the only branch besides null of a nullable type, or else the type itself."""
    if type_.kind != UNION:
        return type_
    others = [branch for branch in type_.items if branch.kind != "null"]
    return others[0] if len(others) == 1 else type_


def _is_same(written: AvroType, wanted: AvroType) -> bool:
    if written.kind != wanted.kind:
        return written.kind in NUMBERS and wanted.kind in NUMBERS
    return written.unqualified == wanted.unqualified or written.name in wanted.aliases

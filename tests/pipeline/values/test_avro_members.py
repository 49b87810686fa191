"""Changes of a reader's schema that would move values of an archive to other members."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kwire.pipeline.values.avro_members import moved_members
from kwire.pipeline.values.avro_schema import AvroSchema


def record(name: str, type_: Any = "int", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "x", "type": type_}], **more}


KNOWN = {"type": "enum", "name": "Known", "symbols": ["A"]}


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("int", "long"),
        (record("A"), ["null", record("A")]),
        ([record("A"), record("B")], [record("A"), "null", record("B"), record("C")]),
        ([record("A"), record("B")], [record("moved.A"), record("C", aliases=["B"])]),
        (["string", "int"], ["string", "long"]),
        (["int", "long"], ["long", "null"]),
        (record("A", ["string", KNOWN]), record("A", ["string", KNOWN, "null", "bytes"])),
    ],
)
def test_changes_that_keep_members(written: Any, wanted: Any) -> None:
    assert moved(written, wanted) == []


@pytest.mark.parametrize(
    ("written", "wanted", "why"),
    [
        (record("A"), [record("A"), record("B")], "data is a union of several types only now"),
        ([record("A"), record("B")], record("A"), "data is a union of several types only in the archive"),
        (
            [record("A"), record("B")],
            [record("C"), record("A"), record("B")],
            "data.member0 is record A in the archive and record C now",
        ),
        (["string", KNOWN], [KNOWN, "string"], "data.member0 is string in the archive and enum Known now"),
        (["string", "int", "bytes"], ["string", "int"], "data.member2 is bytes in the archive and missing"),
        (
            record("A", {"type": "array", "items": ["null", record("B")]}),
            record("A", {"type": "array", "items": [record("B"), "string"]}),
            "data.x[] is a union of several types only now",
        ),
        (
            [record("A", {"type": "map", "values": ["int", "string"]}), "null", "string"],
            [record("A", {"type": "map", "values": ["string", "int"]}), "null", "string"],
            "data.member0.x[].member0 is int in the archive and string now",
        ),
    ],
)
def test_changes_that_move_members_are_described(written: Any, wanted: Any, why: str) -> None:
    found = moved(written, wanted)
    assert found
    assert found[0].startswith(why)


def moved(written: Any, wanted: Any) -> list[str]:
    before, now = (AvroSchema([json.dumps(schema)]).type for schema in (written, wanted))
    return list(moved_members(before, now, "data"))

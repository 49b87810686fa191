"""Compatibility of Spark types in their JSON form."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.pipeline.values.types import duplicate_fields, incompatible_fields


def struct(**fields: Any) -> dict[str, Any]:
    told = [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in fields.items()]
    return {"type": "struct", "fields": told}


def array(item: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": item, "containsNull": True}


def mapping(item: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": item, "valueContainsNull": True}


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("string", "string"),
        (struct(a="integer", b="float"), struct(a="long", b="double")),
        (struct(a="integer", gone="string"), struct(a="double", new=struct(x="date"))),
        (struct(a=array(struct(x="short"))), struct(a=array(struct(x="integer", y="string")))),
        (struct(a=mapping("integer")), struct(a=mapping("long"))),
        (struct(a="decimal(9,2)"), struct(a="decimal(12,4)")),
    ],
)
def test_wider_types_and_more_fields_are_compatible(there: Any, here: Any) -> None:
    assert list(incompatible_fields(there, here, "data")) == []


@pytest.mark.parametrize(
    ("there", "here", "why"),
    [
        (struct(a="long"), struct(a="integer"), "data.a is long in the archive and integer now"),
        (struct(a="long"), struct(a="double"), "data.a is long in the archive and double now"),
        (struct(a="long"), struct(a="timestamp"), "data.a is long in the archive and timestamp now"),
        (struct(a="double"), struct(a="float"), "data.a is double in the archive and float now"),
        (struct(a="long"), struct(A="string"), "data.A is long in the archive and string now"),
        (struct(x="double"), struct(x=array("integer")), "data.x is double in the archive and array now"),
        (struct(x=struct(y="long")), "string", "data is struct in the archive and string now"),
        (
            struct(x=array(struct(y="long"))),
            struct(x=array(struct(y="date"))),
            "data.x[].y is long in the archive",
        ),
        (
            struct(x=mapping("long")),
            struct(x=mapping("date")),
            "data.x[] is long in the archive and date now",
        ),
        (
            struct(x=mapping("long")),
            struct(x=struct(y="long")),
            "data.x is map in the archive and struct now",
        ),
        (struct(a="decimal(12,4)"), struct(a="decimal(12,2)"), "data.a is decimal(12,4) in the archive"),
        (struct(a="decimal(12,2)"), struct(a="decimal(12,4)"), "data.a is decimal(12,2) in the archive"),
    ],
)
def test_incompatible_fields_are_named(there: Any, here: Any, why: str) -> None:
    [told] = incompatible_fields(there, here, "data")
    assert told.startswith(why)


def test_fields_that_differ_only_in_case_are_named() -> None:
    assert list(duplicate_fields(struct(a="long", b=array(struct(x="date", y="date"))), "data")) == []
    assert list(duplicate_fields(struct(a="long", A="date"), "data")) == ["data has 'a' and 'A'"]
    assert list(duplicate_fields(struct(m=mapping(struct(x="long", X="date"))), "data")) == [
        "data.m[] has 'x' and 'X'"
    ]

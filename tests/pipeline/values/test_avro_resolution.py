"""Resolution of Avro schemas: branches of unions, names, logical types and invalid schemas.

`interop/test_avro.py` compares generated schemas with Avro's Java library. The cases here have their results.
"""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kwire.pipeline.values.avro import column_of
from kwire.pipeline.values.avro_schema import AvroSchema
from kwire.pipeline.values.columns import DecodeError
from kwire.pipeline.values.decoder import Decoder, Plan
from kwire.pipeline.values.registry import Registry


class OneSchema(Registry):
    """A registry with one schema under every id."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __exit__(self, *_: object) -> None:
        """There is no connection to close."""

    def schema(self, schema_id: int) -> list[str]:
        return [self._text]


def record(name: str, *fields: tuple[Any, ...], **more: Any) -> dict[str, Any]:
    keys = ("name", "type", "default")
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(keys, field, strict=False)) for field in fields],
        **more,
    }


def encoded(writer: Any, value: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(json.loads(json.dumps(writer))), value)
    return body.getvalue()


def decode_bytes(writer: Any, reader: Any, *bodies: bytes) -> tuple[list[Any], list[Any]]:
    with Decoder(Plan("avro", reader=(json.dumps(reader),)), OneSchema(json.dumps(writer))) as decoder:
        data, faults = decoder.decode(pa.array([bytes(5) + body for body in bodies], pa.binary()))
    data.validate(full=True)
    return data.to_pylist(), faults.to_pylist()


def decode(writer: Any, reader: Any, value: Any) -> tuple[Any, str | None]:
    [found], [fault] = decode_bytes(writer, reader, encoded(writer, value))
    return found, fault


def long(logical: str) -> dict[str, str]:
    return {"type": "long", "logicalType": logical}


PAID = record("shop.Paid", ("payment", ["null", "string"], None))
PLACED = record("shop.Placed", ("order", "long"))
OPTIONAL = record("Optional", ("number", "int", 0))
KNOWN = {"type": "enum", "name": "Known", "symbols": ["A", "B"]}
MOVED_KNOWN = {**KNOWN, "name": "moved.Known"}
THREE = {"type": "fixed", "name": "Three", "size": 3}
NUMBERS = {"type": "map", "values": "int"}


@pytest.mark.parametrize(
    ("writer", "value", "reader", "wanted"),
    [
        (PLACED, {"order": 7}, [PAID, PLACED], {"member0": None, "member1": {"order": 7}}),
        (NUMBERS, {"k": 1}, [OPTIONAL, NUMBERS], {"member0": None, "member1": [("k", 1)]}),
        ("string", "A", [KNOWN, "string"], {"member0": None, "member1": "A"}),
        (KNOWN, "A", ["string", KNOWN], {"member0": None, "member1": "A"}),
        ("bytes", b"abc", [THREE, "bytes"], {"member0": None, "member1": b"abc"}),
        (THREE, b"abc", ["bytes", THREE], {"member0": None, "member1": b"abc"}),
        ("bytes", b"abc", [THREE, "string"], {"member0": None, "member1": "abc"}),
        ("int", 1, ["string", "double", "long"], {"member0": None, "member1": 1.0, "member2": None}),
        ("int", 1, ["string", "long", "int"], {"member0": None, "member1": None, "member2": 1}),
        (["string", "int", "long"], 1, ["long", "string", "int"],
         {"member0": None, "member1": None, "member2": 1}),
        (["null", PLACED], {"order": 7}, [PAID, "null", PLACED], {"member0": None, "member1": {"order": 7}}),
        (["null", PLACED], None, [PAID, "null", PLACED], None),
        (["null", "string", KNOWN], "A", "string", "A"),
        (MOVED_KNOWN, "B", ["null", KNOWN, "string"], {"member0": "B", "member1": None}),
        ("long", (1 << 60) + (1 << 36) + 1, ["null", "float"], 2.0**60 + 2.0**37),
    ],
)  # fmt: skip
def test_the_branch_of_a_union_is_that_of_the_written_type(
    writer: Any, value: Any, reader: Any, wanted: Any
) -> None:
    assert decode(writer, reader, value) == (wanted, None)


def event(namespace: str, *more: tuple[Any, ...]) -> dict[str, Any]:
    return record(f"{namespace}.Event", ("x", "int"), *more)


@pytest.mark.parametrize(
    ("written", "reader", "member"),
    [
        ("two", [event("one"), event("two")], "member1"),
        ("one", [event("two"), event("one")], "member1"),
        # Without its full name, the last record whose fields fit.
        ("other", [event("one"), event("two")], "member1"),
        ("other", [event("one"), event("two", ("required", "int"))], "member0"),
        ("other", [record("one.Else", ("x", "int")), event("two")], "member1"),
        ("other", [event("one"), {**event("two"), "aliases": ["other.Event"]}, event("three")], "member1"),
    ],
)
def test_records_with_one_name_in_several_namespaces(written: str, reader: Any, member: str) -> None:
    for writer in (event(written), ["null", "string", event(written)]):
        found, fault = decode(writer, reader, {"x": 7})
        assert fault is None
        assert {name: value for name, value in found.items() if value} == {member: {"x": 7}}


def test_equal_unions_in_another_order_keep_full_names() -> None:
    written = [event("one"), event("two")]
    for name, member in (("one.Event", "member1"), ("two.Event", "member0")):
        found, _ = decode(written, written[::-1], (name, {"x": 7}))
        assert found[member] == {"x": 7}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "why"),
    [
        (record("shop.Refund", ("amount", "int")), [PAID, PLACED], {"amount": 1}, "no branch of the union"),
        (record("shop.Refund", ("amount", "int")), PAID, {"amount": 1}, "record shop.Refund is not record"),
        (KNOWN, ["null", "string"], "A", "no branch of the union fits enum Known"),
        (KNOWN, [MOVED_KNOWN, {**KNOWN, "name": "again.Known"}], "A", "no branch of the union fits"),
        (THREE, {**THREE, "size": 4}, b"abc", "fixed Three has the size 3 and not 4"),
        (KNOWN, {**KNOWN, "symbols": ["B"]}, "A", "enum Known has no symbol A"),
        (["null", "int"], "int", None, "null is not int"),
        ("bytes", "string", b"\xff", "not valid UTF-8"),
        (record("R", ("a", "int"), ("b", "int")),
         {**record("R"), "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]},
         {"a": 1, "b": 2}, "both b and an alias of it"),
    ],
)  # fmt: skip
def test_a_value_without_a_place_is_undecodable(writer: Any, reader: Any, value: Any, why: str) -> None:
    found, fault = decode(writer, reader, value)
    assert found is None
    assert why in str(fault)


def test_fields_that_exchange_their_names_by_aliases() -> None:
    reader = {
        **record("R"),
        "fields": [
            {"name": "first", "type": "int", "aliases": ["a"]},
            {"name": "a", "type": "int", "aliases": ["b"]},
        ],
    }
    assert decode(record("R", ("b", "int")), record("R", ("a", "int", 5)), {"b": 1})[0] == {"a": 5}
    assert decode(record("R", ("first", "int"), ("b", "int")), reader, {"first": 1, "b": 2})[0] == {
        "first": 1,
        "a": 2,
    }


def test_an_enum_index_that_does_not_exist_is_undecodable() -> None:
    found, faults = decode_bytes(KNOWN, KNOWN, b"\x02", b"\x01", b"\x04")
    assert found == ["B", None, None]
    assert "Known has no symbol -1" in faults[1]
    assert "Known has no symbol 2" in faults[2]


MILLIS, MICROS = long("timestamp-millis"), long("timestamp-micros")
AT = datetime(2020, 1, 1, tzinfo=UTC)


def money(scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}


@pytest.mark.parametrize(
    ("around", "value"),
    [
        (lambda unit: unit, 1),
        (lambda unit: ["null", unit], 1),
        (lambda unit: ["boolean", unit], 1),
        (lambda unit: [unit, "boolean", "null"], 1),
        (lambda unit: {"type": "array", "items": unit}, [1]),
        (lambda unit: {"type": "map", "values": ["null", unit]}, {"k": 1}),
        (lambda unit: record("R", ("x", {"type": "array", "items": ["null", unit, "boolean"]})), {"x": [1]}),
        (lambda unit: ["boolean", record("R", ("x", unit))], {"x": 1}),
        (lambda unit: record("A", ("r", ["null", record("R", ("x", {"type": "map", "values": unit}))])),
         {"r": {"x": {"k": 1}}}),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (MILLIS, MICROS),
        (money(2), money(4)),
        ({"type": "int", "logicalType": "date"}, {"type": "int", "logicalType": "time-millis"}),
        ({"type": "bytes", "logicalType": "big-decimal"}, money(2)),
        ("string", money(2)),
    ],
)
def test_a_change_of_unit_or_scale_is_undecodable_everywhere(
    around: Any, value: Any, left: Any, right: Any
) -> None:
    def plain(unit: Any) -> Any:
        return unit if isinstance(unit, str) else unit["type"]

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [filled(item) for item in value]
        return {"bytes": b"\x01", "string": "1"}.get(plain(left), 1)

    body = encoded(around(plain(left)), filled(value))
    [found], [fault] = decode_bytes(around(left), around(right), body)
    assert found is None
    assert "written as" in fault
    [found], [fault] = decode_bytes(around(left), around(left), body)
    assert (found is None, fault) == (False, None)


def test_a_null_has_no_unit() -> None:
    assert decode(["null", MILLIS], ["null", MICROS], None) == (None, None)
    dropped = record("R", ("x", MILLIS), ("y", "int"))
    assert decode(dropped, record("R", ("y", "int")), {"x": AT, "y": 1}) == ({"y": 1}, None)


@pytest.mark.parametrize(
    ("type_", "value", "column"),
    [
        ({"type": "bytes", "logicalType": "decimal"}, b"\x01", pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, b"\x01", pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": -3}, b"\x01", pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": "9"}, b"\x01", pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9.5}, b"\x01", pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": True}, b"\x01", pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 1 << 40}, b"\x01", pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, b"\x01", pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": -1}, b"\x01", pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": None}, b"\x01", pa.binary()),
        ({**THREE, "logicalType": "decimal", "precision": 7}, b"abc", pa.binary()),
        ({**THREE, "logicalType": "uuid"}, b"abc", pa.binary()),
        ({**THREE, "logicalType": "duration"}, b"abc", pa.binary()),
        ({"type": "string", "logicalType": "decimal", "precision": 9}, "x", pa.string()),
        ({"type": "int", "logicalType": "timestamp-millis"}, 1, pa.int32()),
        ({"type": "string", "logicalType": "date"}, "x", pa.string()),
        ({"type": "long", "logicalType": ["date"]}, 1, pa.int64()),
        ({"type": "long", "logicalType": None}, 1, pa.int64()),
    ],
)
def test_an_invalid_logical_type_is_ignored(type_: Any, value: Any, column: pa.DataType) -> None:
    assert column_of(AvroSchema([json.dumps(type_)])).type == column
    plain = {key: item for key, item in type_.items() if key in ("type", "name", "size")}
    body = encoded(plain, value)
    assert decode_bytes(type_, type_, body) == ([value], [None])
    assert decode_bytes(type_, ["null", type_], body) == ([value], [None])
    assert decode_bytes(type_, plain, body) == ([value], [None])


def test_the_largest_decimal_of_a_fixed_type() -> None:
    fits = {**THREE, "logicalType": "decimal", "precision": 6, "scale": 6}
    assert decode_bytes(fits, fits, b"\xff\xff\xfe") == ([Decimal("-0.000002")], [None])


DEEP = json.dumps("int")
for _ in range(2000):
    DEEP = f'{{"type": "array", "items": {DEEP}}}'


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "{",
        "5",
        "null",
        "{}",
        '{"type": 5}',
        '{"type": null}',
        '"unknown"',
        '[["int"]]',
        '["int", "int"]',
        '[{"type": "array", "items": "int"}, {"type": "array", "items": "long"}]',
        '{"type": "array"}',
        '{"type": "map", "values": []  , "items": 3',
        '{"type": "record", "name": "R"}',
        '{"type": "record", "fields": []}',
        '{"type": "record", "name": "R", "fields": [3]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a"}]}',
        '{"type": "record", "name": "R", "fields": [{"type": "int"}]}',
        '{"type": "record", "name": "R", "fields": '
        '[{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
        '{"type": "enum", "name": "E"}',
        '{"type": "enum", "name": "E", "symbols": "A"}',
        '{"type": "enum", "name": "E", "symbols": ["A", "A"]}',
        '{"type": "enum", "name": "E", "symbols": [[]]}',
        '{"type": "fixed", "name": "F"}',
        '{"type": "fixed", "name": "F", "size": -1}',
        '{"type": "fixed", "name": "F", "size": "3"}',
        '{"type": "fixed", "name": ["F"], "size": 3}',
    ],
)
def test_no_schema_of_a_writer_ends_a_job(text: str) -> None:
    with Decoder(Plan("avro", reader=('"int"',)), OneSchema(text)) as decoder:
        data, faults = decoder.decode(pa.array([bytes(6)], pa.binary()))
    assert data.to_pylist() == [None]
    assert "valid Avro schema" in faults[0].as_py() or "too deeply" in faults[0].as_py()
    with pytest.raises(DecodeError):
        column_of(AvroSchema([text]))


@pytest.mark.parametrize(
    ("type_", "default"),
    [
        ("int", "1"),
        ("int", True),
        ("int", 1 << 31),
        ("long", 1.0),
        ("boolean", 0),
        ("bytes", "\u0100"),
        ("null", 0),
        (KNOWN, "C"),
        (THREE, "ab"),
        (NUMBERS, []),
        (["null", "int"], "x"),
        ({"type": "array", "items": "int"}, ["x"]),
        (PLACED, {}),
        ("float", 1e39),
    ],
)
def test_an_invalid_default_value_is_refused_only_for_the_reader(type_: Any, default: Any) -> None:
    schema = record("R", ("a", "int"), ("b", type_, default))
    with pytest.raises(DecodeError, match=r"default value of the field \w+ is invalid"):
        column_of(AvroSchema([json.dumps(schema)]))
    body = encoded(record("R", ("a", "int")), {"a": 1})
    assert decode_bytes(record("R", ("a", "int", default)), record("R", ("a", "int")), body)[1] == [None]


@pytest.mark.parametrize(
    ("type_", "default", "wanted"),
    [
        ("double", 3, 3.0),
        ("float", "NaN", "nan"),
        (["null", "int", "string"], "x", {"member0": None, "member1": "x"}),
        (["int", "double"], 1.5, {"member0": None, "member1": 1.5}),
        ([KNOWN, "string"], "x", {"member0": None, "member1": "x"}),
        (NUMBERS, {"k": 2}, [("k", 2)]),
        (THREE, "\u00ff\u0000a", b"\xff\x00a"),
    ],
)
def test_default_values(type_: Any, default: Any, wanted: Any) -> None:
    reader = record("R", ("a", "int"), ("b", type_, default))
    found, fault = decode(record("R", ("a", "int")), reader, {"a": 1})
    assert fault is None
    assert (str(found["b"]) if wanted == "nan" else found["b"]) == wanted


def test_names_are_relative_to_the_surrounding_namespace() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    writer = record("R", ("e", inner), ("f", "E"), ("g", "n.E"), namespace="n")
    reader = record("n.R", ("g", {**inner, "name": "n.E"}), ("e", "E"))
    body = bytes(3)
    assert decode_bytes(writer, reader, body) == ([{"g": "A", "e": "A"}], [None])


def test_a_nested_type_attribute() -> None:
    assert decode_bytes({"type": {"type": "long"}}, {"type": ["null", {"type": "long"}]}, b"\x02") == (
        [1],
        [None],
    )


def test_a_recursive_writer_schema_is_read() -> None:
    node = record("Node", ("n", "int"), ("next", ["null", "Node"]), ("any", ["null", "int", "Node"]))
    value = {"n": 1, "next": {"n": 2, "next": None, "any": None}, "any": None}
    assert decode(node, record("Node", ("n", "long")), value) == ({"n": 1}, None)

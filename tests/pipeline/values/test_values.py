"""Decoding of values without Spark, compared with Confluent's serializers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kwire.pipeline.values.avro import column_of
from kwire.pipeline.values.avro_schema import AvroSchema
from kwire.pipeline.values.columns import DecodeError
from kwire.pipeline.values.decoder import Decoder, Plan, with_data
from kwire.pipeline.values.registry import Registry, RegistryError
from tests.pipeline.schema_registry import SchemaRegistry

HERE = SerializationContext("t", MessageField.VALUE)
ONCE = (("max.retries", 0), ("timeout", 5))


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        yield registry


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def record(*fields: dict[str, Any], name: str = "shop.Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def write(registry: SchemaRegistry, schema: Any, *values: Any) -> list[bytes]:
    """Serialize values with Confluent's serializer."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        serializer = AvroSerializer(client, json.dumps(schema))
        return [serializer(value, HERE) for value in values]


def register(registry: SchemaRegistry, subject: str, text: str, type_: str = "AVRO") -> int:
    with SchemaRegistryClient({"url": registry.url}) as client:
        return int(client.register_schema(subject, Schema(text, type_)))


def decode(
    registry: SchemaRegistry, reader: Any, values: Sequence[bytes | None]
) -> tuple[list[Any], list[Any]]:
    plan = Plan("avro", reader=(json.dumps(reader),), registry=registry.url, registry_settings=ONCE)
    with Decoder(plan) as decoder:
        data, faults = decoder.decode(pa.array(values, pa.binary()))
    data.validate(full=True)
    return data.to_pylist(), faults.to_pylist()


def told_by_confluent(registry: SchemaRegistry, reader: Any, value: bytes) -> Any:
    with SchemaRegistryClient({"url": registry.url}) as client:
        return AvroDeserializer(client, json.dumps(reader))(value, HERE)


class TestAvro:
    OLD = record(
        field("id", "int"),
        field("price", "float"),
        field("client", "string"),
        field("note", "string"),
        field("state", {"type": "enum", "name": "State", "symbols": ["NEW", "PAID", "LOST"]}),
    )
    NEW = record(
        field("id", "long"),
        field("price", "double"),
        field("customer", "string", aliases=["client"]),
        field(
            "state",
            {"type": "enum", "name": "State", "symbols": ["NEW", "PAID", "OTHER"], "default": "OTHER"},
        ),
        field("channel", "string", default="shop"),
        field("lines", {"type": "array", "items": "int"}, default=[]),
        field("coupon", ["null", "string"], default=None),
    )

    def test_old_and_new_records_are_resolved_to_the_reader_schema(self, registry: SchemaRegistry) -> None:
        old = [
            {"id": 1, "price": 0.5, "client": "a", "note": "n", "state": "PAID"},
            {"id": 2, "price": 1.5, "client": "b", "note": "", "state": "LOST"},
        ]
        new = {
            "id": 1 << 40, "price": 0.1, "customer": "c", "state": "NEW",
            "channel": "web", "lines": [1, 2], "coupon": "x",
        }  # fmt: skip
        [first, second] = write(registry, self.OLD, *old)
        [third] = write(registry, self.NEW, new)
        data, faults = decode(registry, self.NEW, [first, third, None, second])
        added: dict[str, Any] = {"channel": "shop", "lines": [], "coupon": None}
        assert faults == [None] * 4
        assert data == [
            {"id": 1, "price": 0.5, "customer": "a", "state": "PAID", **added},
            new,
            None,
            {"id": 2, "price": 1.5, "customer": "b", "state": "OTHER", **added},
        ]
        for value, found in zip([first, second, third], [data[0], data[3], data[1]], strict=True):
            assert told_by_confluent(registry, self.NEW, value) == found

    def test_an_old_reader_schema_reads_compatible_records(self, registry: SchemaRegistry) -> None:
        narrow = record(field("price", "double"))
        [value] = write(
            registry, self.OLD, {"id": 1, "price": 0.5, "client": "a", "note": "n", "state": "PAID"}
        )
        assert decode(registry, narrow, [value]) == ([{"price": 0.5}], [None])

    def test_logical_types(self, registry: SchemaRegistry) -> None:
        def logical(type_: str, meaning: str, **more: Any) -> dict[str, Any]:
            return {"type": type_, "logicalType": meaning, **more}

        schema = record(
            field("day", logical("int", "date")),
            field("ms", logical("long", "timestamp-millis")),
            field("us", logical("long", "timestamp-micros")),
            field("local", logical("long", "local-timestamp-micros")),
            field("cost", logical("bytes", "decimal", precision=38, scale=4)),
            field("fix", logical("fixed", "decimal", precision=9, scale=2, name="Fix", size=4)),
            field("key", logical("string", "uuid")),
            field("maybe", ["null", logical("long", "timestamp-millis")]),
            field("unheard", logical("string", "of")),
        )
        key = uuid.UUID(int=7)
        value = {
            "day": date(1969, 12, 31),
            "ms": datetime(2013, 1, 31, 5, 6, 7, 8000, UTC),
            "us": datetime(1890, 1, 31, 5, 6, 7, 8, UTC),
            "local": datetime(2013, 1, 31, 5, 6, 7, 8),
            "cost": Decimal("-12345678901234567890123456789012.3456"),
            "fix": Decimal("-3.10"),
            "key": key,
            "maybe": None,
            "unheard": "x",
        }
        [written] = write(registry, schema, value)
        found, faults = decode(registry, schema, [written])
        assert faults == [None]
        assert found == [{**value, "key": str(key)}]
        assert str(column_of(AvroSchema([json.dumps(schema)])).type) == (
            "struct<day: date32[day], ms: timestamp[us, tz=UTC], us: timestamp[us, tz=UTC], "
            "local: timestamp[us], cost: decimal128(38, 4), fix: decimal128(9, 2), key: string, "
            "maybe: timestamp[us, tz=UTC], unheard: string>"
        )
        assert told_by_confluent(registry, schema, written) == value

    def test_timestamps_outside_of_the_range_of_python(self, registry: SchemaRegistry) -> None:
        written = record(field("at", "long"))
        wanted = record(field("at", {"type": "long", "logicalType": "timestamp-millis"}))
        far_ms = 253_402_300_800_000 * 2
        [far, never] = write(registry, written, {"at": far_ms}, {"at": (1 << 63) - 1})
        plan = Plan("avro", reader=(json.dumps(wanted),), registry=registry.url, registry_settings=ONCE)
        with Decoder(plan) as decoder:
            data, faults = decoder.decode(pa.array([far, never], pa.binary()))
        assert data.field("at")[0].value == far_ms * 1000
        assert data[1].as_py() is None
        assert "out of bounds" in faults[1].as_py() or "does not fit" in faults[1].as_py()

    @pytest.mark.parametrize(
        ("written", "wanted"),
        [
            (("long", "timestamp-millis"), ("long", "timestamp-micros")),
            (("int", "date"), ("long", "timestamp-millis")),
            (("bytes", "decimal", 2), ("bytes", "decimal", 4)),
        ],
    )
    def test_different_time_units_are_not_converted(
        self, registry: SchemaRegistry, written: Any, wanted: Any
    ) -> None:
        def schema(type_: str, name: str, scale: int = 0) -> dict[str, Any]:
            inner = {"type": type_, "logicalType": name, "precision": 9, "scale": scale}
            return record(field("deep", ["null", record(field("x", inner), name="Deep")]))

        value: Any = {"date": date(2020, 1, 1), "decimal": Decimal(1)}.get(
            written[1], datetime(2020, 1, 1, tzinfo=UTC)
        )
        [value] = write(registry, schema(*written), {"deep": {"x": value}})
        [found], [fault] = decode(registry, schema(*wanted), [value])
        assert found is None
        assert "deep: x: " in fault
        assert "written as" in fault

    def test_nested_types_and_unions(self, registry: SchemaRegistry) -> None:
        line = record(field("sku", "string"), field("tags", {"type": "map", "values": "long"}), name="Line")
        other = record(field("sku", "string"), name="Other")
        schema = record(
            field("lines", {"type": "array", "items": ["null", line]}),
            field("first", ["Line", "null"]),
            field(
                "any",
                {
                    "type": "array",
                    "items": [
                        "null", "string", "long", "boolean", "double", "bytes", other, "Line",
                        {"type": "enum", "name": "E", "symbols": ["X"]},
                        {"type": "fixed", "name": "F", "size": 2},
                    ],
                },
            ),
            field("wide", ["int", "null", "long"]),
            field("floats", ["float", "double"]),
            field("nothing", "null"),
        )  # fmt: skip
        tagged = {"sku": "a", "tags": {"x": 1, "y": 2}}
        value = {
            "lines": [tagged, None, {"sku": "b", "tags": {}}],
            "first": tagged,
            "any": [
                None, "X", 5, True, 0.5, b"1", ("shop.Other", {"sku": "o"}), ("shop.Line", tagged),
                ("shop.E", "X"), ("shop.F", b"12"),
            ],
            "wide": 1 << 40, "floats": 0.1, "nothing": None,
        }  # fmt: skip
        [written] = write(registry, schema, value)
        [found], faults = decode(registry, schema, [written])
        assert faults == [None]
        pairs = {"sku": "a", "tags": [("x", 1), ("y", 2)]}
        assert found["lines"] == [pairs, None, {"sku": "b", "tags": []}]
        assert found["first"] == pairs
        members = [
            item and {key: value for key, value in item.items() if value is not None} for item in found["any"]
        ]
        assert members == [
            None, {"member0": "X"}, {"member1": 5}, {"member2": True}, {"member3": 0.5}, {"member4": b"1"},
            {"member5": {"sku": "o"}}, {"member6": pairs}, {"member7": "X"}, {"member8": b"12"},
        ]  # fmt: skip
        assert (found["wide"], found["floats"], found["nothing"]) == (1 << 40, 0.1, None)

    def test_values_that_are_no_records(self, registry: SchemaRegistry) -> None:
        assert decode(registry, "long", write(registry, "int", 1, -1)) == ([1, -1], [None, None])

    def test_defaults_are_completed(self, registry: SchemaRegistry) -> None:
        part = record(field("q", "int", default=3), field("b", "bytes", default="\u00ff"), name="Part")
        [value] = write(registry, record(field("a", "int")), {"a": 1})
        found = decode(registry, record(field("part", part, default={})), [value])
        assert found == ([{"part": {"q": 3, "b": b"\xff"}}], [None])

    def test_schemas_with_references(self, registry: SchemaRegistry) -> None:
        part = json.dumps(record(field("q", "int"), name="shop.Part"))
        register(registry, "part", part)
        whole = json.dumps(record(field("a", "shop.Part"), field("b", ["null", "Part"])))
        references = [SchemaReference("shop.Part", "part", 1)]
        with SchemaRegistryClient({"url": registry.url}) as client:
            value = AvroSerializer(client, Schema(whole, "AVRO", references))(
                {"a": {"q": 1}, "b": None}, HERE
            )
        with Registry(registry.url) as asked:
            reader = asked.latest("t-value")
        assert reader == [part, whole]
        with Decoder(Plan("avro", reader=tuple(reader), registry=registry.url)) as decoder:
            data, faults = decoder.decode(pa.array([value], pa.binary()))
        assert (data.to_pylist(), faults.to_pylist()) == ([{"a": {"q": 1}, "b": None}], [None])

    def test_an_undecodable_value_has_a_reason_and_does_not_affect_others(
        self, registry: SchemaRegistry
    ) -> None:
        schema = record(field("s", "string"), field("n", "long"), name="shop.Small")
        [good] = write(registry, schema, {"s": "text", "n": 5})
        [other] = write(registry, record(field("s", "string"), name="Else"), {"s": "x"})
        unlike = record(field("s", "string"), field("n", "string"), name="Small")
        [wrong] = write(registry, unlike, {"s": "x", "n": "y"})
        json_id = register(registry, "j", "{}", "JSON")
        broken_id = register(registry, "b", '{"type": "rec"}')
        values = [
            (good, None),
            (b"", "0 bytes: too few for a schema id"),
            (b"\x00\x00\x00", "3 bytes: too few"),
            (b"\x07" + good[1:], "the first byte is 7, not 0"),
            (b"\x00\x00\x0f\x42\x40" + good[5:], "schema id 1000000 is not in the registry"),
            (good[:-1], "the value ends within its record"),
            (good + b"more", "4 bytes after the record"),
            (good[:5] + b"\x04\xff\xff\x02", "the value does not match its schema"),
            (other, "the reader's schema does not fit the writer's: "),
            (wrong, "the reader's schema does not fit the writer's: n: string is not long"),
            (b"\x00" + json_id.to_bytes(4, "big") + b"{}", f"schema id {json_id} is not Avro, but JSON"),
            (b"\x00" + broken_id.to_bytes(4, "big") + b"{}", "not a valid Avro schema"),
            (good, None),
        ]  # fmt: skip
        data, faults = decode(registry, schema, [value for value, _ in values])
        for found, fault, (_, wanted) in zip(data, faults, values, strict=True):
            assert found == (None if wanted else {"s": "text", "n": 5})
            assert (fault is None) if wanted is None else wanted in fault

    def test_a_number_that_is_too_large_for_its_column(self, registry: SchemaRegistry) -> None:
        [good, bad] = write(registry, record(field("n", "long")), {"n": 1}, {"n": 1 << 40})
        schema = record(field("n", "int"))
        narrow_id = register(registry, "narrow", json.dumps(schema))
        values = [b"\x00" + narrow_id.to_bytes(4, "big") + value[5:] for value in [good, bad, good]]
        data, faults = decode(registry, schema, list(values))
        assert data == [{"n": 1}, None, {"n": 1}]
        assert "the value does not fit" in faults[1]

    def test_a_schema_is_requested_once(self, registry: SchemaRegistry) -> None:
        schema = record(field("once", "int"))
        values: list[bytes | None] = list(write(registry, schema, *({"once": n} for n in range(50))))
        registry.asked.clear()
        plan = Plan("avro", reader=(json.dumps(schema),), registry=registry.url)
        with Decoder(plan) as decoder:
            for _ in range(3):
                decoder.decode(pa.array(values, pa.binary()))
        assert len(registry.asked) == 1

    def test_a_schema_may_be_registered_late(self, registry: SchemaRegistry) -> None:
        schema = record(field("late", "int"))
        late_id = len(registry.schemas) + 1
        value = pa.array([b"\x00" + late_id.to_bytes(4, "big") + b"\x02"], pa.binary())
        with Decoder(Plan("avro", reader=(json.dumps(schema),), registry=registry.url)) as decoder:
            assert "not in the registry" in decoder.decode(value)[1][0].as_py()
            assert register(registry, "late", json.dumps(schema)) == late_id
            assert decoder.decode(value)[0].to_pylist() == [{"late": 1}]

    @pytest.mark.parametrize(
        ("schema", "why"),
        [
            (record(field("next", ["null", "shop.Order"])), "shop.Order contains itself"),
            (record(), "shop.Order has no fields"),
            (
                record(field("n", {"type": "bytes", "logicalType": "decimal", "precision": 39})),
                "39 digits exceeds the maximum of 38",
            ),
            ({"type": "rec"}, "not a valid Avro schema"),
            ([], ""),
        ],
    )
    def test_schemas_without_a_column_type_are_refused(self, schema: Any, why: str) -> None:
        if schema == []:
            assert column_of(AvroSchema(["[]"])).type == pa.string()
            return
        with pytest.raises(DecodeError, match=why):
            column_of(AvroSchema([json.dumps(schema)]))


def test_proxy_variable_that_prevents_a_connection_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with SchemaRegistry() as registry:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        with (
            Registry(registry.url, dict(ONCE)) as through_proxy,
            pytest.raises(
                RegistryError,
                match=r"did not respond: .+ \(set NO_PROXY=127.0.0.1 to connect without the proxy",
            ),
        ):
            through_proxy.check()
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with Registry(registry.url, dict(ONCE)) as direct:
            direct.check()
        monkeypatch.setenv("ALL_PROXY", "gopher://127.0.0.1:1")
        with pytest.raises(
            RegistryError,
            match=r"cannot create .+ \(unset ALL_PROXY and http_proxy to connect without a proxy\)",
        ):
            Registry(registry.url, dict(ONCE))


class TestRegistry:
    def test_an_unreachable_registry_is_a_registry_error(self) -> None:
        with SchemaRegistry() as registry:
            [value] = write(registry, record(field("a", "int")), {"a": 1})
            url = registry.url
        plan = Plan("avro", reader=('"int"',), registry=url, registry_settings=ONCE)
        with (
            Decoder(plan) as decoder,
            pytest.raises(RegistryError, match=f"the schema registry {url} did not respond: .+"),
        ):
            decoder.decode(pa.array([value], pa.binary()))
        with Registry(url, dict(ONCE)) as gone, pytest.raises(RegistryError, match="did not respond"):
            gone.check()

    def test_a_failing_registry_is_a_registry_error(self) -> None:
        with SchemaRegistry() as registry, Registry(registry.url, dict(ONCE)) as asked:
            asked.check()
            registry.broken = True
            with pytest.raises(RegistryError, match="returned an error: the store is not there"):
                asked.schema(1)

    def test_another_server_is_a_registry_error(self, registry: SchemaRegistry) -> None:
        with (
            Registry(registry.url + "/elsewhere", dict(ONCE)) as asked,
            pytest.raises(RegistryError, match="returned an error: "),
        ):
            asked.latest("t-value")

    def test_a_response_without_schema_is_a_registry_error(self, registry: SchemaRegistry) -> None:
        writer = record(field("whole", "int"))
        [value] = write(registry, writer, {"whole": 1})
        values = pa.array([value], pa.binary())
        plan = Plan("avro", reader=(json.dumps(writer),), registry=registry.url)
        told = f"the schema registry {registry.url} returned no schema for"
        with Decoder(plan) as decoder, Registry(registry.url) as asked:
            registry.something_else = True
            try:
                with pytest.raises(RegistryError, match=f"{told} schema id"):
                    decoder.decode(values)
                with pytest.raises(RegistryError, match=f"{told} the latest schema of whole-value"):
                    asked.latest("whole-value")
            finally:
                registry.something_else = False
            assert decoder.decode(values)[0].to_pylist() == [{"whole": 1}]
            register(registry, "whole-value", json.dumps(writer))
            assert [json.loads(text) for text in asked.latest("whole-value")] == [writer]

    def test_an_invalid_registry_url_is_a_registry_error(self) -> None:
        with pytest.raises(RegistryError, match="cannot create a client"):
            Registry("registry:8081")
        with pytest.raises(
            RegistryError,
            match=r"cannot create a client of the schema registry .*: Unrecognized properties: shade",
        ):
            Registry("http://127.0.0.1:1", {"shade": "red"})

    def test_a_missing_subject_is_named(self, registry: SchemaRegistry) -> None:
        with Registry(registry.url) as asked, pytest.raises(DecodeError, match="has no subject nobody-value"):
            asked.latest("nobody-value")


def decode_as(format_: str, type_: pa.DataType | None, *values: bytes) -> tuple[list[Any], list[Any]]:
    data, faults = Decoder(Plan(format_, type_)).decode(pa.array(values, pa.binary()))
    return data.to_pylist(), faults.to_pylist()


def test_text() -> None:
    assert decode_as("text", None, "ä".encode(), b"\xff", b"") == (
        ["ä", None, ""],
        [None, "not valid UTF-8: invalid start byte at byte 0", None],
    )


def test_batches_keep_their_columns() -> None:
    count = 10_000
    values = pa.array([None if n % 3 == 0 else str(n).encode() for n in range(count)], pa.binary())
    batch = pa.record_batch({"offset": pa.array(range(count)), "value": values, "topic": ["t"] * count})
    parts = with_data(Plan("text"), batch)
    table = pa.Table.from_batches(parts)
    assert len(parts) == 2
    assert table.schema.names == ["offset", "value", "topic", "data", "data_error"]
    assert table.drop(["data", "data_error"]) == pa.Table.from_batches([batch])
    assert table["data"].cast(pa.binary()) == table["value"]
    assert with_data(Plan("text"), batch.slice(0, 0)) == []


def test_empty_batches() -> None:
    assert [len(array) for array in Decoder(Plan("text")).decode(pa.array([], pa.binary()))] == [0, 0]

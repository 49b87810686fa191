"""Avro values, with schemas from a registry or from files."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kwire.cli.records import avro
from kwire.cli.records.avro import AvroDecoder, file_encoder, subject_encoder
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.errors import FormatMismatch
from kwire.testing import Broker
from tests.cli.run_command import RunCommand
from tests.pipeline.schema_registry import SchemaRegistry

ITEM = {"type": "record", "name": "Item", "fields": [{"name": "n", "type": "long"}]}
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "Item"}]}
RESPONSES: dict[str, Any] = {
    "/schemas/ids/7": {
        "schema": json.dumps(ORDER),
        "references": [{"name": "Item", "subject": "the item", "version": 2}],
    },
    "/subjects/the%20item/versions/2": {"schema": json.dumps(ITEM)},
    "/schemas/ids/8": {"schema": "x", "schemaType": "PROTOBUF"},
    "/schemas/ids/9": {"schema": '{"type": "nothing"}'},
}


class _Registry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = RESPONSES.get(self.path)
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(found or {"error_code": 40403}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Registry) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def _encode(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


BY_ID = b"\0\0\0\0\x07" + _encode(ITEM, {"n": 5})  # the encoding of an order is that of its item


def test_schema_is_fetched_by_id_with_its_references(registry: str) -> None:
    decoder = AvroDecoder(registry, [])
    assert decoder.decode(BY_ID) == {"item": {"n": 5}}
    assert decoder.decode(BY_ID) == {"item": {"n": 5}}


def test_schema_is_found_by_its_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "int.avsc"
    path.write_text('{"type": "int", "doc": "what is not canonical does not count"}')
    # The specification's fingerprint of "int" is 7275d51a3f395c8f; it is written in little-endian order.
    data = b"\xc3\x01" + bytes.fromhex("7275d51a3f395c8f")[::-1] + b"\x06"
    decoder = AvroDecoder(None, [str(path)])
    assert decoder.decode(data) == 3
    with pytest.raises(FormatMismatch, match="no --schema has the fingerprint 0000000000000000"):
        decoder.decode(b"\xc3\x01" + bytes(8) + b"\x06")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{}", "not with 7b 7d"),
        (b"", "Avro values start with"),
        (b"\0\0\0\0\x06x", "the registry has no schema 6"),
        (b"\0\0\0\0\x08x", "not Avro, but PROTOBUF"),
        (b"\0\0\0\0\x09x", "is not a valid schema"),
        (BY_ID + b"x", "1 byte after the value"),
        (BY_ID[:-1], "does not match its schema"),
    ],
)
def test_value_that_is_not_avro_is_refused_with_a_reason(registry: str, data: bytes, reason: str) -> None:
    with pytest.raises(FormatMismatch, match=reason):
        AvroDecoder(registry, []).decode(data)


@pytest.mark.parametrize(
    "type_",
    [
        {"type": "bytes", "logicalType": "decimal"},
        {"type": "bytes", "logicalType": "decimal", "precision": 0},
        {"type": "bytes", "logicalType": "decimal", "precision": "2"},
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5},
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": -1},
        {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 50},
        {"type": "bytes", "logicalType": "date"},
        {"type": "bytes", "logicalType": "of-this-company"},
        {"type": "bytes", "logicalType": 5},
    ],
    ids=json.dumps,
)
def test_invalid_logical_type_is_ignored(type_: dict[str, Any], tmp_path: Path) -> None:
    fields = [
        {"name": "one", "type": type_},
        {"name": "union", "type": ["null", "F" if "name" in type_ else type_]},
        {"name": "list", "type": {"type": "array", "items": "F" if "name" in type_ else type_}},
        {"name": "map", "type": {"type": "map", "values": "F" if "name" in type_ else type_}},
    ]
    schema = json.dumps({"type": "record", "name": "Price", "fields": fields})
    stored = b"ab" if "name" in type_ else b"\x04ab"
    data = stored + b"\x02" + stored + b"\x02" + stored + b"\0" + b"\x02\x02k" + stored + b"\0"
    value = {"one": b"ab", "union": b"ab", "list": [b"ab"], "map": {"k": b"ab"}}
    with SchemaRegistry() as registry:
        registry.register("prices-value", {"schema": schema})
        by_id = b"\0" + (1).to_bytes(4, "big") + data
        assert AvroDecoder(registry.url, []).decode(by_id) == value
        assert subject_encoder(registry.url, "prices-value")(value) == by_id
    (tmp_path / "price.avsc").write_text(schema)
    encode = file_encoder(str(tmp_path / "price.avsc"))
    assert AvroDecoder(None, [str(tmp_path / "price.avsc")]).decode(encode(value)) == value


def test_valid_logical_type_is_applied(tmp_path: Path) -> None:
    (tmp_path / "price.avsc").write_text(
        '{"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 2}'
    )
    encode = file_encoder(str(tmp_path / "price.avsc"))
    decoder = AvroDecoder(None, [str(tmp_path / "price.avsc")])
    assert decoder.decode(encode(Decimal("1.25"))) == Decimal("1.25")


def test_deeply_nested_schema_is_refused(registry: str, tmp_path: Path) -> None:
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(sys.getrecursionlimit() // 2):
        nested = {"type": "array", "items": nested}
    (tmp_path / "deep").write_text(json.dumps(nested))
    with pytest.raises(CommandError, match="is not an Avro schema: it is nested too deeply"):
        AvroDecoder(None, [str(tmp_path / "deep")])
    with pytest.raises(FormatMismatch, match="is not a valid schema: it is nested too deeply"):
        avro.SchemaRegistry(registry).parse({"schema": json.dumps(nested)}, "schema 1")


def test_unusable_registry_or_schema_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        CommandError, match=r"is not reachable \(Connection refused\): start it, or name another"
    ):
        AvroDecoder("http://127.0.0.1:1", []).decode(BY_ID)
    with pytest.raises(CommandError, match="begins with http"):
        AvroDecoder("file:///etc", [])
    with pytest.raises(CommandError, match="No such file or directory: give the path of an Avro schema"):
        AvroDecoder(None, [str(tmp_path / "none")])
    (tmp_path / "bad").write_text("{")
    with pytest.raises(CommandError, match="is not an Avro schema"):
        AvroDecoder(None, [str(tmp_path / "bad")])
    with pytest.raises(FormatMismatch, match="use --registry URL"):
        AvroDecoder(None, []).decode(BY_ID)


def test_missing_fastavro_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.cli.records.avro.find_spec", lambda name: None)
    with pytest.raises(CommandError, match="pip install fastavro"):
        AvroDecoder("http://127.0.0.1:1", [])


def test_consume_prints_avro_values_as_json(run: RunCommand, registry: str) -> None:
    run("produce", "avro", BY_ID.hex(), "--value-format", "hex")
    result = run("consume", "avro", "--from", "0", "-n", "1", "--values", "--value-format", "avro",
               "--registry", registry)  # fmt: skip
    assert json.loads(result.out) == {"item": {"n": 5}}


POINT = json.dumps(
    {
        "type": "record",
        "name": "Point",
        "fields": [
            {"name": "x", "type": "int"},
            {"name": "label", "type": ["null", "string"], "default": None},
        ],
    }
)


@pytest.fixture(scope="module")
def subjects() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        registry.register("points-value", {"schema": '"string"'})
        registry.register("points-value", {"schema": POINT})
        registry.register("points-key", {"schema": '"long"'})
        registry.register("else-value", {"schema": "syntax", "schemaType": "PROTOBUF"})
        yield registry


def test_avro_produced_by_subject_is_read_by_confluents_deserializer(
    run: RunCommand, broker: Broker, subjects: SchemaRegistry
) -> None:
    run("produce", "points", '{"x": 1, "label": "a"}', '{"x": -2}', "--key", "7", "--key-format", "avro",
         "--value-format", "avro", "--registry", subjects.url)  # fmt: skip
    found = broker.records("points", count=2)
    with SchemaRegistryClient({"url": subjects.url}) as client:
        read = AvroDeserializer(client)
        decoder = [read(one.value, SerializationContext("points", MessageField.VALUE)) for one in found]
        assert decoder == [{"x": 1, "label": "a"}, {"x": -2, "label": None}]
        assert read(found[0].key, SerializationContext("points", MessageField.KEY)) == 7


def test_avro_is_produced_and_consumed_with_a_schema_file(
    run: RunCommand, tmp_path: Path, set_stdin: Callable[[bytes], None]
) -> None:
    (tmp_path / "point.avsc").write_text(POINT)
    path = str(tmp_path / "point.avsc")
    set_stdin(b'{"value": {"x": 3, "label": "b"}}\n{"value": null}\n')
    run("produce", "filed", "--records", "--value-format", "avro", "--value-schema", path)
    result = run("consume", "filed", "--from", "0", "--until", "end", "--values", "--value-format", "avro",
               "--schema", path)  # fmt: skip
    assert result.out == '{"x": 3, "label": "b"}\nnull\n'


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"x": 1.5}', "does not match its schema"),
        ('{"x": 4294967296}', "does not match its schema"),
        ('{"x": 1, "y": 2}', "more fields than the schema specifies: y"),
        ("{}", "does not match its schema"),
        ("x", "line 1: not JSON"),
    ],
)
def test_value_that_does_not_match_the_schema_is_not_sent(
    run: RunCommand, subjects: SchemaRegistry, value: str, reason: str
) -> None:
    run("topics", "create", "points", "--if-not-exists")
    before = run("topics", "describe", "points", "--offsets", "--json").json[0]["end"]
    result = run("produce", "points", value, "--value-format", "avro", "--registry", subjects.url)
    assert reason in result.sentence
    assert run("topics", "describe", "points", "--offsets", "--json").json[0]["end"] == before


def test_missing_schema_is_an_error(run: RunCommand, subjects: SchemaRegistry) -> None:
    avro = ("1", "--value-format", "avro")
    assert "--registry URL or --value-schema FILE" in run("produce", "other", *avro).sentence
    unknown = run("produce", "other", *avro, "--registry", subjects.url)
    assert "the registry has no subject other-value: register an Avro schema" in unknown.sentence
    protobuf = run("produce", "else", *avro, "--registry", subjects.url)
    assert "subject else-value is not Avro, but PROTOBUF" in protobuf.sentence

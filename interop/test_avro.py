"""The decoder of Avro values of the pipeline, compared with Apache Avro's Java library.

Java writes random values with a writer's schema, and reads them with a reader's schema. The pipeline must
decode the same values, and must report an error if Java does. It also reports an error where a value would
change its unit, which Java's generic reader does not check. Two rules of Avro's specification are stricter or
more lenient than the Java library; `avro_pairs.text` makes Java follow them.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
from collections import Counter
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from interop.avro_pairs import Pair, Pairs, bare_names, kind_of, others_than_null, text
from interop.java_outputs import java_outputs
from interop.reference import avro_jars
from kwire.pipeline.values.columns import DecodeError
from kwire.pipeline.values.decoder import Decoder, Plan
from kwire.pipeline.values.registry import Registry

PAIRS = int(os.environ.get("INTEROP_AVRO_PAIRS", "1000"))
SEED = int(os.environ.get("INTEROP_AVRO_SEED", "1"))
VALUES = 8
"""The number of values of each pair."""
WIDER = ({"int", "long"}, {"float", "double"})


class Undecodable(Exception):
    """A value that Java reads, but for which the pipeline must report an error."""


class OneSchema(Registry):
    """A registry with one schema under every id."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __exit__(self, *_: object) -> None:
        """There is no connection to close."""

    def schema(self, schema_id: int) -> list[str]:
        return [self._text]


def question(pair: Pair, seed: int) -> str:
    pairs = [[text(schema, has_markers=True) for schema in pair[:2]]]
    bare = bare_names(pair)
    pairs.append([text(schema, has_markers=True, bare=bare) for schema in pair[:2]])
    return json.dumps({"seed": seed, "count": VALUES, "pairs": pairs})


def expected(schema: Any, shown: Any, changed: str) -> Any:
    """Return the value that a column has for a value of Java. Raises Undecodable."""
    kind = kind_of(schema)
    if kind == "union":
        branch, inside = shown
        return expected_branch(schema, branch, inside, changed)
    if kind == changed and "logicalType" in schema:
        raise Undecodable("another unit")
    if kind == "record":
        return {
            field["name"]: expected(field["type"], shown[field["name"]], changed)
            for field in schema["fields"]
        }
    if kind == "array":
        return [expected(schema["items"], item, changed) for item in shown]
    if kind == "map":
        return {key: expected(schema["values"], item, changed) for key, item in shown.items()}
    if kind == "string":
        try:
            return bytes.fromhex(shown).decode()
        except UnicodeDecodeError:
            raise Undecodable("not valid UTF-8") from None
    if kind == "float":
        return struct.pack("f", *struct.unpack("f", struct.pack("i", shown)))
    if kind == "double":
        return struct.pack("q", shown)
    return expected_logical(schema, bytes.fromhex(shown) if kind in ("bytes", "fixed") else shown)


def expected_logical(schema: Any, value: Any) -> Any:
    logical = schema.get("logicalType", "")
    if logical == "decimal":
        return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-schema["scale"])
    if logical == "uuid":
        return str(uuid.UUID(bytes=value))
    if logical == "timestamp-millis":
        if not -(1 << 63) <= value * 1000 < 1 << 63:
            raise Undecodable("more microseconds than a column can have")
        return value * 1000
    if logical.endswith("timestamp-nanos"):
        return int(Decimal(value) / 1000)
    return value


def expected_branch(union: Any, branch: int, shown: Any, changed: str) -> Any:
    others = others_than_null(union)
    value = expected(union[branch], shown, changed)
    if union[branch]["type"] == "null":
        return None
    if len(others) == 1:
        return value
    has_units = any("logicalType" in other for other in others)
    kinds = {other["type"] for other in others}
    if kinds in WIDER and not has_units:
        if union[branch]["type"] == "float":
            return struct.pack("d", *struct.unpack("f", value))
        return value
    at = next(at for at, other in enumerate(others) if other is union[branch])
    return {f"member{number}": value if number == at else None for number in range(len(others))}


def normal(value: Any) -> Any:
    """Return an Arrow scalar in the form of `expected`."""
    if not value.is_valid:
        return None
    if isinstance(value, pa.StructScalar):
        return {name: normal(value[name]) for name in value.type.names}
    if isinstance(value, pa.MapScalar):
        return {entry["key"].as_py(): normal(entry["value"]) for entry in value.values}
    if isinstance(value, pa.ListScalar):
        return [normal(item) for item in value.values]
    if isinstance(value, pa.TimestampScalar | pa.Date32Scalar):
        return value.value
    if isinstance(value, pa.FloatScalar):
        return struct.pack("f", value.as_py())
    if isinstance(value, pa.DoubleScalar):
        return struct.pack("d", value.as_py())
    return value.as_py()


def compare(pair: Pair, answers: list[Any]) -> Counter[str]:
    """Compare all values of a pair, and count the results. Raises AssertionError."""
    values = [bytes(5) + bytes.fromhex(answer["bytes"]) for answer in answers]
    counts: Counter[str] = Counter()
    with Decoder(Plan("avro", reader=(text(pair.reader),)), OneSchema(text(pair.writer))) as decoder:
        data, faults = decoder.decode(pa.array(values, pa.binary()))
    data.validate(full=True)
    for answer, found, fault in zip(answers, data, faults.to_pylist(), strict=True):
        try:
            wanted = expected(pair.reader, answer["value"], pair.changed) if "value" in answer else None
            why = answer.get("error", "")
        except Undecodable as undecodable:
            wanted, why = None, str(undecodable)
        about = f"{text(pair.writer)}\nread as {text(pair.reader)}\nbytes {answer['bytes']}, Java: {answer}"
        assert bool(fault) == bool(why), f"{about}\nexpected error {why!r}, found {fault!r}: {normal(found)}"
        assert normal(found) == wanted, f"{about}\nfound {normal(found)}, expected {wanted}"
        counts["undecodable" if why else "decoded"] += 1
    return counts


def test_values_are_those_of_the_java_library() -> None:
    pairs = [Pairs(Random(f"{SEED}-{number}")).pair() for number in range(PAIRS)]
    answers = java_outputs(
        "AvroValues", (question(pair, SEED + number) for number, pair in enumerate(pairs)), avro_jars()
    )
    counts: Counter[str] = Counter()
    differences = []
    for pair, line in zip(pairs, answers, strict=True):
        try:
            counts += compare(pair, json.loads(line))
        except (AssertionError, DecodeError) as difference:
            differences.append(str(difference))
    assert not differences, f"{len(differences)} of {PAIRS} pairs differ:\n" + "\n\n".join(differences[:5])
    assert counts["decoded"] > PAIRS * VALUES / 3
    assert counts["undecodable"] > PAIRS * VALUES / 50

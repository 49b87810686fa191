"""The generated codecs, compared with an interpreter of Kafka's definitions and with kafka-python."""

from __future__ import annotations

import random

import pytest

from kwire.wire.codegen import decode, encode
from tests.wire import golden, kafka_json
from tests.wire.interpreter import Maker, Reader, Value, Writer, representative, to_message, to_value, varint
from tests.wire.kafka_json import Definition
from tests.wire.kafka_python import kafka_python_class, to_kafka_python

SEEDS = range(16)

MESSAGES = golden.declared_messages()
CASES = [
    pytest.param(name, version, id=f"{name}-{version}")
    for name, message_class in MESSAGES.items()
    for version in range(message_class.VERSIONS[0], message_class.VERSIONS[1] + 1)
]
FLEXIBLE_CASES = [
    pytest.param(name, version, id=f"{name}-{version}")
    for name, message_class in MESSAGES.items()
    for version in range(message_class.VERSIONS[0], message_class.VERSIONS[1] + 1)
    if version in message_class.FLEXIBLE
]

KAFKA_PYTHON_CASES = [case for case in CASES if kafka_json.in_kafka_python(str(case.values[0]))]


def check(name: str, version: int, definition: Definition, value: Value) -> None:
    """Check that both encoders write the same bytes and both decoders read the value."""
    message = to_message(MESSAGES[name], value)
    data = Writer(definition, version).message(value)
    assert encode(message, version) == data
    decoded, end = decode(MESSAGES[name], version, data)
    assert end == len(data)
    assert decoded == message
    reader = Reader(definition, version, data)
    assert to_value(decoded, definition.struct, version) == value == reader.message()
    assert reader.position == len(data)


@pytest.mark.parametrize(("name", "version"), CASES)
def test_default_value(name: str, version: int) -> None:
    definition = kafka_json.definition(name)
    value = to_value(MESSAGES[name](), definition.struct, version)
    check(name, version, definition, value)


@pytest.mark.parametrize(("name", "version"), CASES)
def test_representative_value(name: str, version: int) -> None:
    definition = kafka_json.definition(name)
    check(name, version, definition, representative(definition.struct, version))


@pytest.mark.parametrize(("name", "version"), CASES)
def test_random_values(name: str, version: int) -> None:
    definition = kafka_json.definition(name)
    for seed in SEEDS:
        choose = random.Random(f"{name} {version} {seed}")
        check(name, version, definition, Maker(version, choose).structure(definition.struct))


@pytest.mark.parametrize(("name", "version"), CASES)
def test_message_in_the_middle_of_a_buffer(name: str, version: int) -> None:
    """Positions are relative to the buffer, and every kind of buffer decodes the same."""
    definition = kafka_json.definition(name)
    value = representative(definition.struct, version)
    data = Writer(definition, version).message(value)
    expected = to_message(MESSAGES[name], value)
    for buffer in (b"abc" + data, bytearray(b"abc" + data), memoryview(b"abc" + data)):
        assert decode(MESSAGES[name], version, buffer, 3) == (expected, 3 + len(data))


@pytest.mark.parametrize(("name", "version"), FLEXIBLE_CASES)
def test_unknown_tags_are_skipped(name: str, version: int) -> None:
    """KIP-482: a receiver ignores the tags that it does not know."""
    definition = kafka_json.definition(name)
    struct = definition.struct
    value = to_value(MESSAGES[name](), struct, version)
    data = Writer(definition, version).message(value)
    assert data.endswith(b"\x00")
    unknown = varint(2) + varint(900) + varint(3) + b"xyz" + varint(70_000) + varint(0)
    decoded, end = decode(MESSAGES[name], version, data[:-1] + unknown)
    assert decoded == MESSAGES[name]()
    assert end == len(data) - 1 + len(unknown)


@pytest.mark.parametrize(("name", "version"), KAFKA_PYTHON_CASES)
def test_bytes_match_kafka_python(name: str, version: int) -> None:
    """kafka-python writes the same bytes and reads the same value."""
    definition = kafka_json.definition(name)
    value = representative(definition.struct, version)
    if name == "ApiVersionsResponse":
        value["error_code"] = 0  # with an error, kafka-python reads any version as version 0
    theirs = kafka_python_class(name)
    expected = to_kafka_python(theirs, value, version)
    data = encode(to_message(MESSAGES[name], value), version)
    if name.startswith("ConsumerProtocol"):
        # For stored records, kafka-python's encoder writes the version first.
        data = version.to_bytes(2, "big") + data
        assert expected.encode(version=version) == data
        assert theirs.decode(data) == expected
    else:
        assert expected.encode(version=version) == data
        assert theirs.decode(data, version=version) == expected

"""Every message, compared with the bytes that Apache Kafka 4.3.1 writes.

`golden.py` wrote the data, and `interop/test_java_parity.py` checks it with a JVM. Unlike kafka-python, it
has the records of Kafka's logs and files.
"""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64decode
from functools import cache
from typing import Any

import pytest

from kwire.wire.codegen import decode, encode
from kwire.wire.errors import ErrorCode
from kwire.wire.schema import Field, Message, fields_of
from tests.wire import golden, kafka_json
from tests.wire.kafka_json import snake_case
from tests.wire.test_oracle import differences

DECLARED = golden.declared_messages()


@cache
def cases() -> dict[tuple[str, int], list[tuple[Any, bytes]]]:
    """Return Kafka's JSON values and their bytes, by message and version."""
    found: dict[tuple[str, int], list[tuple[Any, bytes]]] = {}
    for line in golden.MESSAGES.read_text(encoding="ascii").splitlines():
        case = json.loads(line)
        found.setdefault((case["name"], case["version"]), []).append(
            (case["value"], bytes.fromhex(case["bytes"]))
        )
    return found


def from_json(message_class: type[Message], value: dict[str, Any]) -> Message:
    """Convert Kafka's JSON to kwire's message."""
    fields = {field.name: field for field in fields_of(message_class)}
    values: dict[str, Any] = {}
    for json_name, given in value.items():
        field = fields[snake_case(json_name[0].upper() + json_name[1:])]
        if field.is_list and given is not None:
            values[field.name] = [one(field, each) for each in given]
        else:
            values[field.name] = one(field, given)
    return message_class(**values)


def one(field: Field, given: Any) -> Any:
    if given is None:
        return None
    if field.message is not None:
        return from_json(field.message, given)
    if field.element == "Uuid":
        return urlsafe_b64decode(given + "==")
    return b64decode(given) if field.element in ("Bytes", "Records") else given


def test_every_version_has_cases() -> None:
    assert cases().keys() == {
        (name, version)
        for name, message_class in DECLARED.items()
        for version in golden.versions(message_class)
    }
    assert json.loads(kafka_json.STORED.read_text(encoding="ascii")).keys() == golden.stored_messages().keys()
    others = json.loads(kafka_json.OTHERS.read_text(encoding="ascii"))
    assert others.keys() == golden.messages_missing_in_kafka_python()


@pytest.mark.parametrize("name", DECLARED)
def test_bytes_match_java(name: str) -> None:
    """Bytes and decoded values are the same as those of Java."""
    for version in golden.versions(DECLARED[name]):
        for value, data in cases()[name, version]:
            message = from_json(DECLARED[name], value)
            assert encode(message, version) == data
            assert decode(DECLARED[name], version, data) == (message, len(data))


@pytest.mark.parametrize("name", golden.stored_messages())
def test_stored_definitions_match_kafka(name: str) -> None:
    """Stored records; `test_oracle.py` compares requests and responses."""
    ours, theirs = DECLARED[name], kafka_json.definition(name)
    assert theirs.api_key == ours.API_KEY
    assert tuple(ours.VERSIONS) == (theirs.versions.first, theirs.versions.last)
    for version in golden.versions(ours):
        assert (version in ours.FLEXIBLE) == (version in theirs.flexible)
        assert differences(ours, theirs.struct, theirs, version, name) == []


def test_error_codes_match_kafka() -> None:
    rows = (line.split("\t") for line in golden.ERRORS.read_text(encoding="ascii").splitlines())
    assert {int(code): (code.name, code.retriable) for code in ErrorCode} == {
        int(code): (name, retriable == "true") for code, name, retriable in rows
    }

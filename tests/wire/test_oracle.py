"""Every message declaration, compared with Kafka's definitions by field and version.

The definitions come from kafka-python 3, and from Apache Kafka for APIs that kafka-python lacks. They cover
the versions of Apache Kafka 4.3.1 for every declared API, so the comparison has no exceptions.
"""

from __future__ import annotations

import pytest

from kwire.wire.messages import consumer_protocol
from kwire.wire.registry import API_VERSIONS
from kwire.wire.schema import Field, Message, fields_of
from tests.wire import kafka_json
from tests.wire.kafka_json import Definition, Entry, Struct

MESSAGES: dict[str, type[Message]] = {
    one.__name__: one for api in API_VERSIONS.values() for one in (api.request_class, api.response_class)
} | {
    name: getattr(consumer_protocol, name)
    for name in ("ConsumerProtocolAssignment", "ConsumerProtocolSubscription")
}

CASES = [
    pytest.param(name, version, id=f"{name}-{version}")
    for name, message_class in MESSAGES.items()
    for version in range(message_class.VERSIONS[0], message_class.VERSIONS[1] + 1)
]


@pytest.mark.parametrize("name", MESSAGES)
def test_versions_and_flexibility_match_kafka(name: str) -> None:
    ours, theirs = MESSAGES[name], kafka_json.definition(name)
    assert tuple(ours.VERSIONS) == (theirs.versions.first, theirs.versions.last)
    for version in range(ours.VERSIONS[0], ours.VERSIONS[1] + 1):
        assert (version in ours.FLEXIBLE) == (version in theirs.flexible)


@pytest.mark.parametrize("key", API_VERSIONS)
def test_keys_and_names_match_kafka(key: int) -> None:
    api = API_VERSIONS[key]
    assert api.key == key
    for message_class, side in ((api.request_class, "Request"), (api.response_class, "Response")):
        assert message_class.__name__ == api.name + side
        assert message_class.API_KEY == key == kafka_json.definition(api.name + side).api_key


@pytest.mark.parametrize(("name", "version"), CASES)
def test_fields_match_kafka(name: str, version: int) -> None:
    definition = kafka_json.definition(name)
    assert differences(MESSAGES[name], definition.struct, definition, version, name) == []


def differences(
    ours: type[Message], theirs: Struct, definition: Definition, version: int, where: str
) -> list[str]:
    """Describe the differences between a definition and a declaration in one version."""
    mine = [field for field in fields_of(ours) if version in field.versions]
    entries = theirs.at(version)
    if [field.name for field in mine] != [entry.name for entry in entries]:
        return [f"{where}: {[field.name for field in mine]} for {[entry.name for entry in entries]}"]
    found: list[str] = []
    for field, entry in zip(mine, entries, strict=True):
        here = f"{where}.{entry.name}"
        assert entry.flexible is None, f"{here}: a field with flexible versions of its own"
        everywhere = all(
            each in entry.versions for each in range(definition.versions.first, definition.versions.last + 1)
        )
        expected = describe_entry(entry, version, everywhere)
        actual = describe_field(field, version, everywhere)
        if actual != expected:
            found.append(f"{here}: {actual} for {expected}")
        if entry.struct is not None and field.message is not None:
            found += differences(field.message, entry.struct, definition, version, here)
    return found


def describe_entry(entry: Entry, version: int, everywhere: bool) -> dict[str, object]:
    """Return the properties of a field in a version, without names of structures."""
    tagged = version in entry.tagged
    return {
        "type": kafka_json.WIDTHS.get(entry.element, "struct"),
        "list": entry.is_list,
        "nullable": version in entry.nullable,
        "tag": entry.tag if tagged else None,
        "ignorable": entry.ignorable or everywhere,
        "default": entry.default,
    }


def describe_field(field: Field, version: int, everywhere: bool) -> dict[str, object]:
    tagged = version in field.tagged
    return {
        "type": field.element if field.message is None else "struct",
        "list": field.is_list,
        "nullable": version in field.nullable,
        "tag": field.tag if tagged else None,
        "ignorable": field.ignorable or everywhere,
        "default": "struct" if isinstance(field.default, type) else field.default,
    }


@pytest.mark.parametrize("key", API_VERSIONS)
def test_request_and_response_have_the_same_versions(key: int) -> None:
    api = API_VERSIONS[key]
    assert api.request_class.VERSIONS == api.response_class.VERSIONS
    assert (api.min_version, api.max_version) == tuple(api.request_class.VERSIONS)


def test_no_field_is_unknown_to_kafka() -> None:
    """Every declared field is in Kafka's definition of the message."""
    for name, message_class in MESSAGES.items():
        known = names(kafka_json.definition(name).struct)
        assert declared_names(message_class) <= known


def names(struct: Struct) -> set[str]:
    own = {entry.name for entry in struct.entries}
    return own.union(*(names(entry.struct) for entry in struct.entries if entry.struct is not None))


def declared_names(message_class: type[Message]) -> set[str]:
    fields = fields_of(message_class)
    own = {field.name for field in fields}
    return own.union(*(declared_names(field.message) for field in fields if field.message is not None))

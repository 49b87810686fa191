"""Writer of the data that `test_java_bytes.py` reads; it needs Java and Maven.

Run `python -m tests.wire.golden`. For every message and version, the data has a value with every field set,
one with every allowed null and, for the oldest and newest version, a random one: as JSON and as the bytes
that Apache Kafka's generated classes write. It also has the definitions of Kafka's stored records and of
requests that kafka-python lacks, and Kafka's error codes.
"""

from __future__ import annotations

import json
import random
from base64 import b64encode
from typing import Any

from kwire.wire.messages import consumer_protocol, default_principal
from kwire.wire.records import (
    consumer_groups,
    groups,
    metadata,
    raft,
    share_groups,
    share_state,
    streams_groups,
    transactions,
)
from kwire.wire.registry import API_VERSIONS
from kwire.wire.schema import Message
from tests.wire import kafka_json
from tests.wire.interpreter import Maker, Value, representative
from tests.wire.kafka_json import Entry, Struct

DATA = kafka_json.DATA
MESSAGES = DATA / "kafka-4.3.1-messages.jsonl"
ERRORS = DATA / "kafka-4.3.1-errors.tsv"

STORED = (
    consumer_protocol,
    default_principal,
    groups,
    consumer_groups,
    share_groups,
    streams_groups,
    share_state,
    metadata,
    raft,
    transactions,
)
"""The modules with messages that are neither requests nor responses."""

RECORD_TYPES = {"metadata", "coordinator-key", "coordinator-value"}
"""The types of stored records in Kafka's definitions."""

GONE = {"ZkMigrationStateRecord"}
"""A record that Kafka 4 no longer has, but that logs from Kafka 3 contain."""


def stored_messages() -> dict[str, type[Message]]:
    """Return the messages in Kafka's logs and files that kwire declares."""
    found: dict[str, type[Message]] = {}
    # Structures inside messages and Message have no versions.
    for module in STORED:
        found |= {
            name: one
            for name, one in vars(module).items()
            if isinstance(one, type) and issubclass(one, Message) and one.VERSIONS is not Message.VERSIONS
        }
    return {name: found[name] for name in sorted(found.keys() - GONE)}


def declared_messages() -> dict[str, type[Message]]:
    """Return every message that both kwire and Kafka 4.3.1 have, by name."""
    found: dict[str, type[Message]] = {}
    for api in API_VERSIONS.values():
        for message_class in (api.request_class, api.response_class):
            found[message_class.__name__] = message_class
    return found | stored_messages()


def messages_missing_in_kafka_python() -> set[str]:
    """Return the requests and responses that kafka-python does not have."""
    return {
        name
        for name in declared_messages().keys() - stored_messages().keys()
        if not kafka_json.in_kafka_python(name)
    }


def versions(message_class: type[Message]) -> range:
    first, last = message_class.VERSIONS
    return range(first, last + 1)


def to_json(value: Value, shape: Struct, version: int) -> dict[str, Any]:
    """Convert a plain value to the JSON of Kafka's converters."""

    def one(entry: Entry, given: Any) -> Any:
        if given is None:
            return None
        if entry.struct is not None:
            return to_json(given, entry.struct, version)
        if entry.element == "uuid":
            # Kafka writes a Uuid in URL-safe base64 without padding.
            return b64encode(given, b"-_").decode().rstrip("=")
        if entry.element in ("bytes", "records"):
            return b64encode(given).decode()
        return given

    found: dict[str, Any] = {}
    for entry in shape.at(version):
        given = value[entry.name]
        if entry.is_list and given is not None:
            found[entry.json_name] = [one(entry, each) for each in given]
        else:
            found[entry.json_name] = one(entry, given)
    return found


def with_nulls(value: Value, shape: Struct, version: int) -> Value:
    """Return the value with null in every nullable field."""
    changed: Value = {}
    for entry in shape.at(version):
        given = value[entry.name]
        if entry.is_nullable(version):
            given = None
        elif entry.struct is not None:
            inner = entry.struct
            given = (
                [with_nulls(one, inner, version) for one in given]
                if entry.is_list
                else with_nulls(given, inner, version)
            )
        changed[entry.name] = given
    return changed


def without_descriptions(definition: Any) -> Any:
    """Return a definition without the descriptions of fields."""
    if isinstance(definition, dict):
        return {key: without_descriptions(one) for key, one in definition.items() if key != "about"}
    if isinstance(definition, list):
        return [without_descriptions(one) for one in definition]
    return definition


def main() -> None:
    from interop.kafka_messages import java_bytes, java_errors, kafka_messages

    messages = kafka_messages()
    cases: list[dict[str, Any]] = []
    for name, message_class in declared_messages().items():
        shape = kafka_json.parse(messages[name].definition).struct
        for version in versions(message_class):
            full = representative(shape, version)
            values = [full, with_nulls(full, shape, version)]
            if version in message_class.VERSIONS[:2]:
                values.append(Maker(version, random.Random(f"{name} {version}")).structure(shape))
            for value in values:
                case = {"name": name, "version": version, "value": to_json(value, shape, version)}
                if case not in cases[-2:]:
                    cases.append(case)
    questions = [
        (messages[case["name"]].class_name, case["version"], json.dumps(case["value"])) for case in cases
    ]
    for case, response in zip(cases, java_bytes(questions), strict=True):
        case["bytes"] = response
    DATA.mkdir(exist_ok=True)
    MESSAGES.write_text("".join(json.dumps(case) + "\n" for case in cases), encoding="ascii")
    definitions = {
        name: without_descriptions(json.loads(kafka_json.without_comments(message.definition)))
        for name, message in sorted(messages.items())
    }
    requests = {name: definitions[name] for name in sorted(messages_missing_in_kafka_python())}
    kafka_json.OTHERS.write_text(json.dumps(requests, indent=1) + "\n", encoding="ascii")
    # All of Kafka's records, to find those that kwire does not declare.
    definitions = {
        name: definition
        for name, definition in definitions.items()
        if name in stored_messages() or definition.get("type") in RECORD_TYPES
    }
    kafka_json.STORED.write_text(json.dumps(definitions, indent=1) + "\n", encoding="ascii")
    ERRORS.write_text("\n".join(java_errors()) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()

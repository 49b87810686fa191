"""Every message of kwire against the definitions and the generated classes of Apache Kafka itself.

Requests, responses, the consumer protocol, and everything that Kafka keeps in its own logs and files.
"""

from __future__ import annotations

import random

import pytest

from interop.kafka_messages import java_bytes, java_errors, kafka_messages
from kwire.codegen import decode, encode
from kwire.errors import ErrorCode
from kwire.messages import consumer_protocol
from kwire.registry import API_VERSIONS
from kwire.schema import Message
from kwire.stored import groups, metadata, raft, transactions
from tests.kwire.interpreter import Maker, Value, representative, to_message, to_value
from tests.kwire.test_oracle import differences

SEEDS = 10

GONE = {"ZkMigrationStateRecord"}
"""Kafka 4 has no such record any more; logs that began under Kafka 3 still hold it."""


def declared() -> dict[str, type[Message]]:
    """Every message that kwire declares, by name."""
    found: dict[str, type[Message]] = {}
    for api in API_VERSIONS.values():
        for message_class in (api.request_class, api.response_class):
            found[message_class.__name__] = message_class
    # Structures inside messages have no versions of their own, and Message itself is no message.
    for module in (consumer_protocol, groups, metadata, raft, transactions):
        found |= {
            name: one
            for name, one in vars(module).items()
            if isinstance(one, type) and issubclass(one, Message) and one.VERSIONS is not Message.VERSIONS
        }
    return found


DECLARED = declared()
COMPARED = sorted(DECLARED.keys() - GONE)


def versions(name: str) -> range:
    first, last = DECLARED[name].VERSIONS
    return range(first, last + 1)


def values(name: str, version: int) -> list[Value]:
    """Values that a version can carry: the defaults, everything filled, and random ones."""
    struct = kafka_messages()[name].definition.struct
    made = [representative(struct, version)]
    if all(version in entry.nullable or entry.default is not None for entry in struct.at(version)):
        made.append(to_value(DECLARED[name](), struct, version))
    seeds = (random.Random(f"{name} {version} {seed}") for seed in range(SEEDS))
    return made + [Maker(version, seed).structure(struct) for seed in seeds]


@pytest.fixture(scope="module")
def written() -> dict[tuple[str, int], list[tuple[Value, bytes | str]]]:
    """What Java writes for the values of every message and version, from one run of it."""
    keys = [(name, version) for name in COMPARED for version in versions(name)]
    made = {key: values(*key) for key in keys}
    questions = [
        (kafka_messages()[name], version, value) for name, version in keys for value in made[name, version]
    ]
    answers = iter(java_bytes(questions))
    return {key: [(value, next(answers)) for value in made[key]] for key in keys}


def test_every_message_is_kafkas() -> None:
    assert kafka_messages().keys() >= set(COMPARED)
    assert not GONE & kafka_messages().keys()


@pytest.mark.parametrize("name", COMPARED)
def test_declarations(name: str) -> None:
    """kwire's declarations say what the definitions in the jars say."""
    ours, theirs = DECLARED[name], kafka_messages()[name].definition
    assert theirs.api_key == ours.API_KEY
    assert tuple(ours.VERSIONS) == (theirs.versions.first, theirs.versions.last)
    for version in versions(name):
        assert (version in ours.FLEXIBLE) == (version in theirs.flexible)
        assert differences(ours, theirs.struct, theirs, version, name) == []


@pytest.mark.parametrize("name", COMPARED)
def test_bytes(name: str, written: dict[tuple[str, int], list[tuple[Value, bytes | str]]]) -> None:
    """kwire writes what Java writes, and reads it as the same value."""
    for version in versions(name):
        for value, data in written[name, version]:
            assert isinstance(data, bytes), data
            message = to_message(DECLARED[name], value)
            assert encode(message, version) == data
            assert decode(DECLARED[name], version, data) == (message, len(data))


def test_error_codes() -> None:
    assert {int(code): (code.name, code.retriable) for code in ErrorCode} == java_errors()

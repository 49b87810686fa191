"""Config changes in the controller: the records, the errors, and the order of the checks."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import (
    AlterOperation,
    ConfigChange,
    Fault,
    IncrementalAlterConfigs,
    LegacyAlterConfigs,
    ResourceChange,
)
from kwire.broker.controller.configs import split_list
from kwire.wire.errors import ErrorCode

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND, SUBTRACT = AlterOperation
Change = tuple[str, int, str | None]


@pytest.fixture
def cluster(cluster: Any) -> Any:
    cluster.create("t")
    return cluster


def alter(cluster: Any, kind: int, name: str, *changes: Change, check: bool = False) -> Fault | None:
    resource = ResourceChange(kind, name, [ConfigChange(*change) for change in changes])
    [fault] = cluster.run(IncrementalAlterConfigs([resource], check))
    assert fault is None or isinstance(fault, Fault)
    return fault


def replace(cluster: Any, kind: int, name: str, **values: str) -> None:
    changes = [ConfigChange(key.replace("_", "."), SET, value) for key, value in values.items()]
    assert cluster.run(LegacyAlterConfigs([ResourceChange(kind, name, changes)])) == [None]


def test_append_and_subtract_start_from_the_default_list(cluster: Any) -> None:
    for operation, value, after in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
    ):
        assert alter(cluster, TOPIC, "t", ("cleanup.policy", operation, value)) is None
        assert cluster.image.config(TOPIC, "t")["cleanup.policy"] == after
    assert alter(cluster, TOPIC, "t", ("cleanup.policy", DELETE, None)) is None
    assert not cluster.image.config(TOPIC, "t")


def test_an_unchanged_value_is_written_only_for_a_broker(cluster: Any) -> None:
    for kind, name, written in ((TOPIC, "t", 0), (BROKER, "1", 1)):
        assert alter(cluster, kind, name, ("retention.ms", SET, "5")) is None
        assert alter(cluster, kind, name, ("retention.ms", SET, "5")) is None
        assert len(cluster.records) == written


def test_validate_only_writes_no_records(cluster: Any) -> None:
    assert alter(cluster, TOPIC, "t", ("retention.ms", SET, "5"), check=True) is None
    assert cluster.records == []


def test_alter_configs_replaces_all_configs(cluster: Any) -> None:
    replace(cluster, TOPIC, "t", retention_ms="5", segment_ms="6")
    replace(cluster, TOPIC, "t", segment_ms="7")
    assert cluster.image.config(TOPIC, "t") == {"segment.ms": "7"}


def test_changing_min_insync_replicas_clears_the_elr(cluster: Any) -> None:
    assert alter(cluster, TOPIC, "t", ("min.insync.replicas", SET, "2")) is None
    assert [type(record).__name__ for record, _ in cluster.records] == ["ConfigRecord", "ClearElrRecord"]


@pytest.mark.parametrize(
    ("kind", "name", "change", "code", "text"),
    [
        (TOPIC, "t", ("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG, "Can't APPEND to key"),
        (TOPIC, "t", ("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
        (TOPIC, "t", ("retention.ms", SET, "x"), ErrorCode.INVALID_CONFIG, "Not a number of type LONG"),
        (TOPIC, "t", ("nonsense", SET, "1"), ErrorCode.INVALID_CONFIG, "Unknown topic config name"),
        (TOPIC, "", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST, "Default topic resources"),
        (TOPIC, "a b", ("retention.ms", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION, "is invalid"),
        (TOPIC, "u", ("retention.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not exist"),
        (TOPIC, "u", ("retention.ms", SET, "x"), ErrorCode.INVALID_CONFIG, "Not a number of type LONG"),
        (TOPIC, "t", ("retention.ms", SET, "1" * 40_000), ErrorCode.INVALID_CONFIG, "maximum value size"),
        (GROUP, "", ("consumer.session.timeout.ms", SET, "1"), ErrorCode.INVALID_REQUEST, "Default group"),
        (GROUP, "g", ("nonsense", SET, "1"), ErrorCode.INVALID_CONFIG, "Unknown group config name"),
        (CLIENT_METRICS, "", ("metrics", SET, "x"), ErrorCode.INVALID_REQUEST, "can't be empty"),
        (BROKER, "x", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST, "base 10 number"),
        (BROKER, "-1", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST, "negative broker ID"),
        (BROKER, "7", ("log.retention.ms", SET, "1"), ErrorCode.BROKER_ID_NOT_REGISTERED, "No node with id"),
        (BROKER, "1", ("min.insync.replicas", SET, "1"), ErrorCode.INVALID_CONFIG, "Broker-level min"),
        (BROKER, "", ("min.insync.replicas", DELETE, None), ErrorCode.INVALID_CONFIG, "cannot be removed"),
    ],
)
def test_an_invalid_change_is_refused(
    cluster: Any, kind: int, name: str, change: Change, code: ErrorCode, text: str
) -> None:
    fault = alter(cluster, kind, name, change)
    assert fault is not None
    assert fault.code == code
    assert text in (fault.message or "")
    assert cluster.records == []


@pytest.mark.parametrize(
    ("text", "parts"), [("", [""]), ("a", ["a"]), ("a,,b", ["a", "", "b"]), ("a,,", ["a"]), (",", [])]
)
def test_lists_are_split_as_in_java(text: str, parts: list[str]) -> None:
    assert split_list(text) == parts

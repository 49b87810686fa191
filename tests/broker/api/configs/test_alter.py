"""IncrementalAlterConfigs and AlterConfigs, with the errors of Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages import alter_configs as legacy_messages
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.node_harness import NodeHarness

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32

Resource = tuple[int, str, Sequence[tuple[str, int, str | None]]]
"""A resource type, a resource name, and changes: key, operation and value."""

SET, APPEND, UNKNOWN = 0, 2, 9

THROTTLED = "leader.replication.throttled.replicas"

CIPHERS = "ssl.cipher.suites"


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("t")
    return harness


def alter(harness: NodeHarness, *resources: Resource, check: bool = False) -> list[tuple[int, str | None]]:
    requested = [
        AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                AlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in changes
            ],
        )
        for kind, name, changes in resources
    ]
    response = harness.call(1, IncrementalAlterConfigsRequest(resources=requested, validate_only=check))
    return [(one.error_code, one.error_message) for one in response.responses]


FAILED = ErrorCode.UNKNOWN_SERVER_ERROR, None
TOO_LONG = "The configuration value cannot be added because it exceeds the maximum value size of 32767 bytes."


@pytest.mark.parametrize("check", [True, False])
def test_an_unknown_operation_fails_only_its_resource(harness: NodeHarness, *, check: bool) -> None:
    harness.create("u")
    outcome = alter(
        harness,
        (TOPIC, "t", [("retention.ms", SET, "1000")]),
        (TOPIC, "u", [("retention.ms", UNKNOWN, "1000")]),
        (TOPIC, "nope", []),
        (BROKER, "1", [("num.io.threads", APPEND, "1"), ("log.retention.ms", UNKNOWN, "1")]),
        (64, "x", []),
        check=check,
    )
    unknown = ErrorCode.INVALID_REQUEST, "Unknown operations type 9"
    assert outcome == [
        (ErrorCode.NONE, None),
        unknown,
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'nope' does not exist."),
        unknown,
        (ErrorCode.INVALID_REQUEST, "Unknown resource type 64"),
    ]
    assert bool(harness.node.image.config(TOPIC, "t")) != check


def test_append_cannot_exceed_the_maximum_value_size(harness: NodeHarness) -> None:
    long = ",".join(f"{partition}:1" for partition in range(10_000, 13_750))
    assert alter(harness, (TOPIC, "t", [(THROTTLED, SET, long)])) == [(0, None)]
    other = GROUP, "g", [("consumer.session.timeout.ms", SET, "50000")]
    most = "7" * (32767 - len(long) - 3) + ":1"
    for more, fault in ((most, None), ("7" + most, TOO_LONG)):
        outcome = alter(harness, (TOPIC, "t", [(THROTTLED, APPEND, more)]), other, check=True)
        assert [message for _, message in outcome][1:] == [None]
        assert (outcome[0][1] == TOO_LONG) == (fault == TOO_LONG)
    outcome = alter(harness, (TOPIC, "t", [(THROTTLED, APPEND, "7" + most)]), other)
    assert outcome == [(ErrorCode.INVALID_CONFIG, TOO_LONG), (0, None)]
    assert harness.node.image.config(TOPIC, "t") == {THROTTLED: long}


@pytest.mark.parametrize("check", [True, False])
def test_the_value_size_is_counted_in_bytes(harness: NodeHarness, *, check: bool) -> None:
    assert alter(harness, (BROKER, "1", [(CIPHERS, SET, "\u00e9" * 16_000)])) == [(0, None)]
    grown = BROKER, "1", [(CIPHERS, APPEND, "\u00fc" * 16_000)]
    other = GROUP, "g", [("consumer.session.timeout.ms", SET, "50000")]
    assert alter(harness, grown, other, check=check) == [(ErrorCode.INVALID_CONFIG, TOO_LONG), (0, None)]


@pytest.mark.parametrize("legacy", [False, True])
def test_a_request_with_too_many_records_is_refused(harness: NodeHarness, *, legacy: bool) -> None:
    most: list[Resource] = [
        (CLIENT_METRICS, f"s{number}", [("interval.ms", SET, "1000")]) for number in range(9_999)
    ]

    def outcomes(*more: Resource) -> set[tuple[int, str | None]]:
        if not legacy:
            return set(alter(harness, *most, *more, check=True))
        requested = [
            legacy_messages.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[legacy_messages.AlterableConfig(name=key, value=value) for key, _, value in changes],
            )
            for kind, name, changes in (*most, *more)
        ]
        response = harness.call(
            2, legacy_messages.AlterConfigsRequest(resources=requested, validate_only=True)
        )
        return {(one.error_code, one.error_message) for one in response.responses}

    one = CLIENT_METRICS, "last", [("interval.ms", SET, "1000")]
    unknown = (ErrorCode.INVALID_REQUEST, "Unknown resource type 64")
    assert outcomes(one, (64, "x", [])) == {(0, None), unknown}
    expected = ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
    # A change of a topic's min.insync.replicas takes two records: the second one clears the ELR.
    assert harness.node.image.elr_enabled
    for too_many in (
        [("min.insync.replicas", SET, "1")],
        [("retention.ms", SET, "1"), ("flush.ms", SET, "1")],
    ):
        assert outcomes((TOPIC, "t", too_many), (64, "x", [])) == {expected, unknown}


def replace(harness: NodeHarness, settings: dict[str, str]) -> tuple[int, str | None]:
    configs = [legacy_messages.AlterableConfig(name=name, value=value) for name, value in settings.items()]
    requested = legacy_messages.AlterConfigsResource(resource_type=BROKER, resource_name="", configs=configs)
    request = legacy_messages.AlterConfigsRequest(resources=[requested], validate_only=True)
    (response,) = harness.call(2, request).responses
    return response.error_code, response.error_message


def test_the_error_lists_the_keys_that_cannot_be_updated(harness: NodeHarness) -> None:
    for names in (("broker.id", "log.dirs"), ("log.dirs", "broker.id")):
        listed = ", ".join(names)
        expected = ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{listed}]"
        assert replace(harness, dict.fromkeys(names, "x")) == expected
        assert alter(harness, (BROKER, "1", [(name, SET, "x") for name in names])) == [expected]


def test_alter_configs_is_validated_without_the_replaced_values(harness: NodeHarness) -> None:
    per_ip, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    assert alter(harness, (BROKER, "", [(overrides, SET, "127.0.0.1:9")])) == [(0, None)]
    assert alter(harness, (BROKER, "", [(per_ip, SET, "0")])) == [(0, None)]
    code, expected = replace(harness, {per_ip: "0", "min.insync.replicas": "1"})
    assert code == ErrorCode.INVALID_REQUEST
    assert expected == f"requirement failed: {per_ip} can be set to zero only if {overrides} property is set."
    assert replace(harness, {per_ip: "0", overrides: "127.0.0.1:9", "min.insync.replicas": "1"}) == (0, None)


def test_changes_beyond_one_metadata_batch_are_not_applied(harness: NodeHarness) -> None:
    long: list[tuple[str, int, str | None]] = [("metrics", SET, "x" * 32_000)]
    several = [(CLIENT_METRICS, f"s{number}", long) for number in range(262)]
    before = harness.node.image.offset
    assert set(alter(harness, *several, check=True)) == {(0, None)}
    assert set(alter(harness, *several)) == {FAILED}
    assert harness.node.image.offset == before
    assert set(alter(harness, *several[:258])) == {(0, None)}
    assert harness.node.image.config(CLIENT_METRICS, "s257")


def test_producer_id_expiration_changes_dynamically(harness: NodeHarness) -> None:
    harness.create("a")
    change = AlterableConfig(name="producer.id.expiration.ms", config_operation=0, value="1000")
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
    response = harness.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
    assert response.error_code == 0
    log = harness.node.log_manager.get("a", 0)
    assert log is not None
    assert log.producers.expiration_ms == 1000

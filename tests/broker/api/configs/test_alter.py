"""Configurations that are altered, or refused to be: as by Apache Kafka 4.3.1."""

from __future__ import annotations

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

SET, APPEND, UNKNOWN = 0, 2, 9

THROTTLED = "leader.replication.throttled.replicas"

CIPHERS = "ssl.cipher.suites"


@pytest.fixture
def harness() -> NodeHarness:
    made = NodeHarness()
    made.create("t")
    return made


def alter(
    harness: NodeHarness, *resources: tuple[int, str, list[tuple[str, int, str | None]]], check: bool = False
) -> list[tuple[int, str | None]]:
    asked = [
        AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in changes
            ],
        )
        for kind, name, changes in resources
    ]
    answer = harness.call(1, IncrementalAlterConfigsRequest(resources=asked, validate_only=check))
    return [(one.error_code, one.error_message) for one in answer.responses]


FAILED = ErrorCode.UNKNOWN_SERVER_ERROR, None
TOO_LONG = "The configuration value cannot be added because it exceeds the maximum value size of 32767 bytes."


@pytest.mark.parametrize("check", [True, False])
def test_an_unknown_operation_refuses_what_it_is_asked_of(harness: NodeHarness, *, check: bool) -> None:
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


def test_a_list_does_not_outgrow_its_record(harness: NodeHarness) -> None:
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
def test_the_length_of_a_value_is_that_of_its_bytes(harness: NodeHarness, *, check: bool) -> None:
    assert alter(harness, (BROKER, "1", [(CIPHERS, SET, "\u00e9" * 16_000)])) == [(0, None)]
    grown = BROKER, "1", [(CIPHERS, APPEND, "\u00fc" * 16_000)]
    other = GROUP, "g", [("consumer.session.timeout.ms", SET, "50000")]
    assert alter(harness, grown, other, check=check) == [(ErrorCode.INVALID_CONFIG, TOO_LONG), (0, None)]


@pytest.mark.parametrize("legacy", [False, True])
def test_more_records_than_one_request_may_make(harness: NodeHarness, *, legacy: bool) -> None:
    most = [(CLIENT_METRICS, f"s{number}", [("interval.ms", SET, "1000")]) for number in range(9_999)]

    def outcomes(*more: tuple[int, str, list[tuple[str, int, str | None]]]) -> set[tuple[int, str | None]]:
        if not legacy:
            return set(alter(harness, *most, *more, check=True))
        asked = [
            legacy_messages.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[legacy_messages.AlterableConfig(name=key, value=value) for key, _, value in changes],
            )
            for kind, name, changes in (*most, *more)
        ]
        answer = harness.call(2, legacy_messages.AlterConfigsRequest(resources=asked, validate_only=True))
        return {(one.error_code, one.error_message) for one in answer.responses}

    one = CLIENT_METRICS, "last", [("interval.ms", SET, "1000")]
    unknown = (ErrorCode.INVALID_REQUEST, "Unknown resource type 64")
    assert outcomes(one, (64, "x", [])) == {(0, None), unknown}
    said = ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
    # A topic's min.insync.replicas takes two: the second one takes its eligible leaders back.
    assert harness.node.image.elr_enabled
    for too_many in (
        [("min.insync.replicas", SET, "1")],
        [("retention.ms", SET, "1"), ("flush.ms", SET, "1")],
    ):
        assert outcomes((TOPIC, "t", too_many), (64, "x", [])) == {said, unknown}


def replace(harness: NodeHarness, settings: dict[str, str]) -> tuple[int, str | None]:
    configs = [legacy_messages.AlterableConfig(name=name, value=value) for name, value in settings.items()]
    asked = legacy_messages.AlterConfigsResource(resource_type=BROKER, resource_name="", configs=configs)
    request = legacy_messages.AlterConfigsRequest(resources=[asked], validate_only=True)
    (answer,) = harness.call(2, request).responses
    return answer.error_code, answer.error_message


def test_a_broker_s_settings_that_cannot_be_updated_are_named(harness: NodeHarness) -> None:
    for names in (("broker.id", "log.dirs"), ("log.dirs", "broker.id")):
        listed = ", ".join(names)
        said = ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{listed}]"
        assert replace(harness, dict.fromkeys(names, "x")) == said
        assert alter(harness, (BROKER, "1", [(name, SET, "x") for name in names])) == [said]


def test_what_is_replaced_does_not_count_for_what_replaces_it(harness: NodeHarness) -> None:
    per_ip, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    assert alter(harness, (BROKER, "", [(overrides, SET, "127.0.0.1:9")])) == [(0, None)]
    assert alter(harness, (BROKER, "", [(per_ip, SET, "0")])) == [(0, None)]
    code, said = replace(harness, {per_ip: "0", "min.insync.replicas": "1"})
    assert code == ErrorCode.INVALID_REQUEST
    assert said == f"requirement failed: {per_ip} can be set to zero only if {overrides} property is set."
    assert replace(harness, {per_ip: "0", overrides: "127.0.0.1:9", "min.insync.replicas": "1"}) == (0, None)


def test_what_is_too_long_for_one_batch_of_the_metadata_is_not_done(harness: NodeHarness) -> None:
    long: list[tuple[str, int, str | None]] = [("metrics", SET, "x" * 32_000)]
    several = [(CLIENT_METRICS, f"s{number}", long) for number in range(262)]
    before = harness.node.image.offset
    assert set(alter(harness, *several, check=True)) == {(0, None)}
    assert set(alter(harness, *several)) == {FAILED}
    assert harness.node.image.offset == before
    assert set(alter(harness, *several[:258])) == {(0, None)}
    assert harness.node.image.config(CLIENT_METRICS, "s257")


def test_a_producer_s_expiry_changes_while_the_broker_runs(harness: NodeHarness) -> None:
    harness.create("a")
    change = AlterableConfig(name="producer.id.expiration.ms", config_operation=0, value="1000")
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
    answer = harness.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
    assert answer.error_code == 0
    log = harness.node.log_manager.get("a", 0)
    assert log is not None
    assert log.producers.expiration_ms == 1000

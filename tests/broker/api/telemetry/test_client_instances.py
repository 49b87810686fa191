"""Client instances: who is told what, whose push is taken, who is forgotten. Subscription ids are Kafka's."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.broker.api.telemetry.client_instances import (
    MAX_INSTANCES,
    ClientInstance,
    ClientInstances,
    ClientMetadata,
)
from kwire.broker.metadata.client_metrics import parse_subscription
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import ZERO_UUID, Uuid

ONE = Uuid(bytes(15) + b"\x01")
ID = Uuid(bytes(range(16)))
OTHER = Uuid(bytes(range(1, 17)))
MINUTE_MS = 60_000
DEFAULT_MS = 300_000

MANY = [f"org.apache.kafka.{kind}.{what}." for kind in ("producer", "consumer") for what in "abcdefghijk"]


def client(connection: int = 1) -> ClientMetadata:
    return ClientMetadata("me", "interop", "1.0", "127.0.0.1", 50_000, connection)


class TelemetryHarness:
    """Client instances, and a clock that starts at zero, as the host's may."""

    def __init__(self) -> None:
        self.machine = ClientInstances(random.Random(1))
        self.now_ms = 0

    def subscribe(self, name: str = "s", **settings: str) -> None:
        told = {key.replace("interval_ms", "interval.ms"): value for key, value in settings.items()}
        self.machine.subscribe(name, parse_subscription(told) if told else None)

    def get(self, instance_id: Uuid = ID, connection: int = 1) -> ClientInstance | ErrorCode:
        try:
            return self.machine.get(instance_id, client(connection), self.now_ms)
        except ApiError as error:
            return error.code

    def told(self, instance_id: Uuid = ID, connection: int = 1) -> ClientInstance:
        found = self.get(instance_id, connection)
        assert isinstance(found, ClientInstance)
        return found

    def push(self, instance_id: Uuid = ID, connection: int = 1, **fields: Any) -> ErrorCode:
        known = self.machine._instances.get(instance_id)
        told: dict[str, Any] = {
            "of_subscription": 0 if known is None else known.subscription_id,
            "terminating": False,
            "compression": 0,
            "is_too_large": False,
        }
        try:
            self.machine.push(instance_id, client(connection), self.now_ms, **{**told, **fields})
        except ApiError as error:
            return error.code
        return ErrorCode.NONE


@pytest.fixture
def harness() -> TelemetryHarness:
    return TelemetryHarness()


TOO_EARLY = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_an_id_is_made_for_who_has_none(harness: TelemetryHarness) -> None:
    first, second = harness.told(ZERO_UUID), harness.told(ZERO_UUID)
    assert first.id not in (second.id, ZERO_UUID)
    assert (first.metrics, first.interval_ms) == ([], DEFAULT_MS)
    assert harness.get(first.id) is TOO_EARLY


@pytest.mark.parametrize("instance_id", [ZERO_UUID, ONE])
def test_ids_that_push_nothing(harness: TelemetryHarness, instance_id: Uuid) -> None:
    assert harness.push(instance_id) is ErrorCode.INVALID_REQUEST
    assert len(harness.machine) == 0


@pytest.mark.parametrize(
    ("instance_id", "subscriptions", "expected"),
    [
        ("00000000000000000000000000000001", [], -725132321),
        ("4e4f5eb6ae7c51689421036e4a34367a", [], -354328300),
        (
            "f6c79d5fe81c5786ac78fd55050d8458",
            [{"metrics": "org.apache.kafka.producer.,a", "interval_ms": "1000"}],
            882505258,
        ),
        ("39552aeb99395fa98ed562d7ddba720d", [{"metrics": "b"}], -1754421933),
        ("9865df39ca80594482ed1668c6880adf", [{"metrics": "b", "interval_ms": "3600000"}], 1928223233),
        (
            "07ae50cfd5295053af5fc4baa4b923db",
            [{"metrics": ",".join(MANY[:12]), "interval_ms": "100"}],
            2067222402,
        ),
        (
            "bb001172da7a52b3b69d0a5d277b21d8",
            [{"metrics": ",".join(MANY[:13]), "interval_ms": "100"}],
            1310257489,
        ),
        ("19d9403a6aff580badc4aed222c06bdd", [{"metrics": ",".join(MANY), "interval_ms": "100"}], 1578921252),
        (
            "de6b8c52f71a5f50b2d712185031f115",
            [
                {"metrics": "a,b,\u00e9", "interval_ms": "5000"},
                {"metrics": "b,c,d", "interval_ms": "4000"},
                {"metrics": "d,e", "interval_ms": "400000"},
            ],
            916001482,
        ),
        (
            "231f24ff255a5f5081360bdd800d2426",
            [{"metrics": "a,b", "interval_ms": "5000"}, {"metrics": "*,x"}],
            1322768158,
        ),
    ],
)
def test_subscription_ids_are_apache_kafkas(
    harness: TelemetryHarness, instance_id: str, subscriptions: list[dict[str, str]], expected: int
) -> None:
    """As Apache Kafka 4.3.1 has answered."""
    for number, settings in enumerate(subscriptions):
        harness.subscribe(str(number), **settings)
    assert harness.told(Uuid(bytes.fromhex(instance_id))).subscription_id == expected


def test_subscriptions_are_united(harness: TelemetryHarness) -> None:
    harness.subscribe("a", metrics="x,y", interval_ms="5000", match="client_id=me")
    harness.subscribe("b", metrics="y,z", interval_ms="7000")
    harness.subscribe("c", metrics="w", interval_ms="100", match="client_id=you")
    told = harness.told()
    assert (set(told.metrics), told.interval_ms) == ({"x", "y", "z"}, 5_000)
    harness.subscribe("d", metrics="*")
    assert harness.told(OTHER).metrics == ["*"]


def test_a_change_is_told_at_once(harness: TelemetryHarness) -> None:
    before = harness.told()
    assert harness.get() is TOO_EARLY
    harness.subscribe(metrics="x")
    after = harness.told()
    assert after.metrics == ["x"]
    assert harness.push(of_subscription=before.subscription_id) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    harness.subscribe()
    assert harness.told().subscription_id == before.subscription_id


def test_what_was_not_there_and_goes_changes_nothing(harness: TelemetryHarness) -> None:
    harness.told()
    harness.machine.subscribe("nobody's", None)
    assert harness.get() is TOO_EARLY


def test_an_interval_passes_between_pushes_but_not_after_a_get(harness: TelemetryHarness) -> None:
    harness.subscribe(metrics="x", interval_ms="1000")
    harness.told()
    harness.now_ms += 10
    assert harness.push() is ErrorCode.NONE
    harness.now_ms += 999
    assert harness.push() is TOO_EARLY
    assert harness.get() is TOO_EARLY
    harness.now_ms += 1
    assert harness.push() is ErrorCode.NONE
    harness.now_ms += 1_000
    harness.told()
    assert harness.push() is ErrorCode.NONE


def test_a_last_push_is_never_too_early_and_the_last(harness: TelemetryHarness) -> None:
    harness.told()
    assert harness.push() is ErrorCode.NONE
    assert harness.push(terminating=True) is ErrorCode.NONE
    assert harness.push(terminating=True) is ErrorCode.INVALID_REQUEST
    assert harness.push() is ErrorCode.INVALID_REQUEST
    # As in Kafka, what counts is what the push before has said.
    assert harness.push() is TOO_EARLY


@pytest.mark.parametrize(
    ("fields", "code", "may_ask_at_once"),
    [
        ({"of_subscription": 7}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID, True),
        ({"compression": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, True),
        ({"compression": -1}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, True),
        ({"is_too_large": True}, ErrorCode.TELEMETRY_TOO_LARGE, False),
        (
            {"of_subscription": 7, "compression": 5, "is_too_large": True},
            ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
            True,
        ),
        ({"compression": 5, "is_too_large": True}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, True),
    ],
)
def test_what_is_refused(
    harness: TelemetryHarness, fields: dict[str, Any], code: ErrorCode, *, may_ask_at_once: bool
) -> None:
    harness.told()
    assert harness.push(**fields) is code
    assert isinstance(harness.get(), ClientInstance) is may_ask_at_once


def test_who_comes_from_another_broker_may_push_unasked(harness: TelemetryHarness) -> None:
    known = TelemetryHarness().told().subscription_id
    assert harness.push(of_subscription=known) is ErrorCode.NONE


def test_an_instance_goes_with_the_connection_that_it_came_by(harness: TelemetryHarness) -> None:
    harness.told(connection=1)
    assert harness.get(connection=2) is TOO_EARLY
    assert harness.machine.disconnected(2) is None
    assert harness.get(connection=3) is TOO_EARLY
    assert harness.machine.disconnected(1) == ID
    assert len(harness.machine) == 0
    harness.told(connection=3)


def test_who_is_silent_is_forgotten_after_a_minute_or_three_intervals(harness: TelemetryHarness) -> None:
    harness.told()
    harness.now_ms += 3 * DEFAULT_MS - 1
    harness.machine.expire(harness.now_ms)
    assert len(harness.machine) == 1
    harness.now_ms += 1
    harness.machine.expire(harness.now_ms)
    assert len(harness.machine) == 0
    harness.subscribe(metrics="x", interval_ms="1000")
    harness.told()
    harness.push(terminating=True)
    harness.now_ms += MINUTE_MS - 1
    assert harness.push() is ErrorCode.INVALID_REQUEST
    harness.now_ms += MINUTE_MS
    # Nobody has swept, and still it is another.
    assert harness.push(of_subscription=harness.told().subscription_id) is ErrorCode.NONE


def test_the_one_unused_for_longest_makes_room() -> None:
    harness = TelemetryHarness()
    first, second = harness.told(ID), harness.told(OTHER)
    for _ in range(MAX_INSTANCES - 2):
        harness.told(ZERO_UUID)
    assert harness.push(first.id) is ErrorCode.NONE
    harness.told(ZERO_UUID)
    assert len(harness.machine) == MAX_INSTANCES
    assert harness.get(first.id) is TOO_EARLY
    harness.told(second.id)

"""Client instances of KIP-714: subscriptions, throttling and expiration. Subscription ids are Kafka's."""

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
INSTANCE_ID = Uuid(bytes(range(16)))
OTHER = Uuid(bytes(range(1, 17)))
MINUTE_MS = 60_000
DEFAULT_MS = 300_000

MANY = [f"org.apache.kafka.{kind}.{what}." for kind in ("producer", "consumer") for what in "abcdefghijk"]


def client(connection: int = 1) -> ClientMetadata:
    return ClientMetadata("me", "interop", "1.0", "127.0.0.1", 50_000, connection)


class TelemetryHarness:
    """Client instances, and a clock that starts at zero, as a host's clock may."""

    def __init__(self) -> None:
        self.instances = ClientInstances(random.Random(1))
        self.now_ms = 0

    def subscribe(self, name: str = "s", **settings: str) -> None:
        get_instance = {key.replace("interval_ms", "interval.ms"): value for key, value in settings.items()}
        self.instances.subscribe(name, parse_subscription(get_instance) if get_instance else None)

    def get(self, instance_id: Uuid = INSTANCE_ID, connection: int = 1) -> ClientInstance | ErrorCode:
        try:
            return self.instances.get(instance_id, client(connection), self.now_ms)
        except ApiError as error:
            return error.code

    def get_instance(self, instance_id: Uuid = INSTANCE_ID, connection: int = 1) -> ClientInstance:
        found = self.get(instance_id, connection)
        assert isinstance(found, ClientInstance)
        return found

    def push(self, instance_id: Uuid = INSTANCE_ID, connection: int = 1, **fields: Any) -> ErrorCode:
        known = self.instances._instances.get(instance_id)
        get_instance: dict[str, Any] = {
            "of_subscription": 0 if known is None else known.subscription_id,
            "terminating": False,
            "compression": 0,
            "is_too_large": False,
        }
        try:
            self.instances.push(instance_id, client(connection), self.now_ms, **{**get_instance, **fields})
        except ApiError as error:
            return error.code
        return ErrorCode.NONE


@pytest.fixture
def harness() -> TelemetryHarness:
    return TelemetryHarness()


TOO_EARLY = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_an_instance_id_is_generated_for_a_client_without_one(harness: TelemetryHarness) -> None:
    first, second = harness.get_instance(ZERO_UUID), harness.get_instance(ZERO_UUID)
    assert first.id not in (second.id, ZERO_UUID)
    assert (first.metrics, first.interval_ms) == ([], DEFAULT_MS)
    assert harness.get(first.id) is TOO_EARLY


@pytest.mark.parametrize("instance_id", [ZERO_UUID, ONE])
def test_reserved_instance_ids_cannot_push(harness: TelemetryHarness, instance_id: Uuid) -> None:
    assert harness.push(instance_id) is ErrorCode.INVALID_REQUEST
    assert len(harness.instances) == 0


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
def test_subscription_ids_equal_kafkas(
    harness: TelemetryHarness, instance_id: str, subscriptions: list[dict[str, str]], expected: int
) -> None:
    """The ids that Apache Kafka 4.3.1 returned."""
    for number, settings in enumerate(subscriptions):
        harness.subscribe(str(number), **settings)
    assert harness.get_instance(Uuid(bytes.fromhex(instance_id))).subscription_id == expected


def test_matching_subscriptions_are_merged(harness: TelemetryHarness) -> None:
    harness.subscribe("a", metrics="x,y", interval_ms="5000", match="client_id=me")
    harness.subscribe("b", metrics="y,z", interval_ms="7000")
    harness.subscribe("c", metrics="w", interval_ms="100", match="client_id=you")
    get_instance = harness.get_instance()
    assert (set(get_instance.metrics), get_instance.interval_ms) == ({"x", "y", "z"}, 5_000)
    harness.subscribe("d", metrics="*")
    assert harness.get_instance(OTHER).metrics == ["*"]


def test_a_changed_subscription_is_returned_at_once(harness: TelemetryHarness) -> None:
    before = harness.get_instance()
    assert harness.get() is TOO_EARLY
    harness.subscribe(metrics="x")
    after = harness.get_instance()
    assert after.metrics == ["x"]
    assert harness.push(of_subscription=before.subscription_id) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    harness.subscribe()
    assert harness.get_instance().subscription_id == before.subscription_id


def test_removing_an_unknown_subscription_changes_nothing(harness: TelemetryHarness) -> None:
    harness.get_instance()
    harness.instances.subscribe("nobody's", None)
    assert harness.get() is TOO_EARLY


def test_pushes_are_throttled_to_the_interval(harness: TelemetryHarness) -> None:
    harness.subscribe(metrics="x", interval_ms="1000")
    harness.get_instance()
    harness.now_ms += 10
    assert harness.push() is ErrorCode.NONE
    harness.now_ms += 999
    assert harness.push() is TOO_EARLY
    assert harness.get() is TOO_EARLY
    harness.now_ms += 1
    assert harness.push() is ErrorCode.NONE
    harness.now_ms += 1_000
    harness.get_instance()
    assert harness.push() is ErrorCode.NONE


def test_a_terminating_push_is_never_throttled(harness: TelemetryHarness) -> None:
    harness.get_instance()
    assert harness.push() is ErrorCode.NONE
    assert harness.push(terminating=True) is ErrorCode.NONE
    assert harness.push(terminating=True) is ErrorCode.INVALID_REQUEST
    assert harness.push() is ErrorCode.INVALID_REQUEST
    # As in Kafka, only the previous push counts.
    assert harness.push() is TOO_EARLY


@pytest.mark.parametrize(
    ("fields", "code", "may_get_at_once"),
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
def test_an_invalid_push_is_refused(
    harness: TelemetryHarness, fields: dict[str, Any], code: ErrorCode, *, may_get_at_once: bool
) -> None:
    harness.get_instance()
    assert harness.push(**fields) is code
    assert isinstance(harness.get(), ClientInstance) is may_get_at_once


def test_a_client_of_another_broker_may_push_at_once(harness: TelemetryHarness) -> None:
    known = TelemetryHarness().get_instance().subscription_id
    assert harness.push(of_subscription=known) is ErrorCode.NONE


def test_an_instance_is_removed_with_its_connection(harness: TelemetryHarness) -> None:
    harness.get_instance(connection=1)
    assert harness.get(connection=2) is TOO_EARLY
    assert harness.instances.disconnected(2) is None
    assert harness.get(connection=3) is TOO_EARLY
    assert harness.instances.disconnected(1) == INSTANCE_ID
    assert len(harness.instances) == 0
    harness.get_instance(connection=3)


def test_an_instance_expires_after_a_minute_or_three_intervals(harness: TelemetryHarness) -> None:
    harness.get_instance()
    harness.now_ms += 3 * DEFAULT_MS - 1
    harness.instances.expire(harness.now_ms)
    assert len(harness.instances) == 1
    harness.now_ms += 1
    harness.instances.expire(harness.now_ms)
    assert len(harness.instances) == 0
    harness.subscribe(metrics="x", interval_ms="1000")
    harness.get_instance()
    harness.push(terminating=True)
    harness.now_ms += MINUTE_MS - 1
    assert harness.push() is ErrorCode.INVALID_REQUEST
    harness.now_ms += MINUTE_MS
    # The expired instance was not removed yet, but it is not reused.
    assert harness.push(of_subscription=harness.get_instance().subscription_id) is ErrorCode.NONE


def test_the_least_recently_used_instance_is_evicted() -> None:
    harness = TelemetryHarness()
    first, second = harness.get_instance(INSTANCE_ID), harness.get_instance(OTHER)
    for _ in range(MAX_INSTANCES - 2):
        harness.get_instance(ZERO_UUID)
    assert harness.push(first.id) is ErrorCode.NONE
    harness.get_instance(ZERO_UUID)
    assert len(harness.instances) == MAX_INSTANCES
    assert harness.get(first.id) is TOO_EARLY
    harness.get_instance(second.id)

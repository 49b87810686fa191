"""UpdateFeatures and UnregisterBroker on a single broker."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.unregister_broker import UnregisterBrokerRequest
from kwire.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.node_harness import NodeHarness

SAFE_DOWNGRADE = 2


@pytest.fixture
def harness() -> NodeHarness:
    return NodeHarness()


def update(harness: NodeHarness, *levels: tuple[str, int], version: int = 2, check: bool = False) -> Any:
    updates = [
        FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=SAFE_DOWNGRADE)
        for name, level in levels
    ]
    request = UpdateFeaturesRequest(feature_updates=updates, validate_only=check, timeout_ms=1_000)
    return harness.call(version, request)


def test_update_features_sets_a_level(harness: NodeHarness) -> None:
    assert update(harness, ("group.version", 0), check=True).error_code == 0
    assert harness.node.image.features["group.version"] == 1
    assert update(harness, ("group.version", 0)).error_code == 0
    assert not harness.node.image.features.get("group.version")


def test_a_feature_named_twice_gets_the_last_level(harness: NodeHarness) -> None:
    assert update(harness, ("group.version", 7), ("group.version", 0)).error_code == 0
    assert not harness.node.image.features.get("group.version")


@pytest.mark.parametrize("version", [1, 2])
def test_one_invalid_feature_stops_all_updates(harness: NodeHarness, version: int) -> None:
    response = update(harness, ("group.version", 0), ("nonsense", 1), version=version)
    assert response.error_code != 0
    assert "following feature had an error" in response.error_message
    assert response.results == []
    assert harness.node.image.features["group.version"] == 1


def test_before_v2_each_feature_has_a_result(harness: NodeHarness) -> None:
    assert [one.feature for one in update(harness, ("group.version", 0), version=1).results] == [
        "group.version"
    ]
    assert update(harness, ("group.version", 1)).results == []


def test_unregistering_an_unknown_broker_is_an_error(harness: NodeHarness) -> None:
    response = harness.call(0, UnregisterBrokerRequest(broker_id=77))
    assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert response.error_message == "Broker ID 77 is not currently registered"

"""Registration and heartbeats of other nodes on a controller, and allocation of producer ids."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.metadata.features import registered_features
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kwire.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from kwire.wire.messages.controller_registration import ControllerRegistrationRequest
from kwire.wire.messages.controller_registration import Listener as ControllerListener
from kwire.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kwire.wire.primitives import Uuid
from tests.node_harness import NodeHarness

INCARNATION = Uuid(b"a-life-of-node-2")
DIRECTORY = Uuid(b"directory-of-two")


class ControllerHarness(NodeHarness):
    """A controller, and the requests of node 2."""

    def call_controller(self, version: int, request: Any) -> Any:
        return self.connect(listener="CONTROLLER", role=ListenerRole.CONTROLLER).call(version, request)

    def register(self, version: int = 4, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "broker_id": 2,
            "cluster_id": self.node.cluster_id,
            "incarnation_id": INCARNATION,
            "listeners": [Listener(name="PLAINTEXT", host="two", port=9092)],
            "features": [
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in registered_features().items()
            ],
            "rack": "r2",
            "log_dirs": [DIRECTORY] if version >= 2 else [],
        }
        return self.call_controller(version, BrokerRegistrationRequest(**{**fields, **changes}))

    def heartbeat(self, version: int = 2, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "broker_id": 2,
            "broker_epoch": self.node.image.brokers[2].broker_epoch,
            "current_metadata_offset": self.node.image.offset,
        }
        return self.call_controller(version, BrokerHeartbeatRequest(**{**fields, **changes}))


UNSERVED = ("share.version", "streams.version")


@pytest.fixture
def controller() -> ControllerHarness:
    harness = ControllerHarness()
    updates = [FeatureUpdateKey(feature=name, max_version_level=0, upgrade_type=2) for name in UNSERVED]
    harness.call_controller(2, UpdateFeaturesRequest(feature_updates=updates, timeout_ms=1_000))
    return harness


def test_a_broker_that_joins_a_broker_with_fewer_features_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert ControllerHarness().register().error_code == ErrorCode.NONE
    [line] = [line for line in caplog.messages if "the new broker 2" in line]
    assert "run kafka-features downgrade --feature share.version=0 --feature streams.version=0" in line


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_broker_is_fenced_after_registration(controller: ControllerHarness, version: int) -> None:
    response = controller.register(version)
    broker = controller.node.image.brokers[2]
    assert (response.error_code, response.broker_epoch) == (ErrorCode.NONE, broker.broker_epoch)
    assert (broker.fenced, broker.rack, broker.log_dirs) == (True, "r2", (DIRECTORY,))
    assert [(one.name, one.host, one.port) for one in broker.endpoints.values()] == [
        ("PLAINTEXT", "two", 9092)
    ]


def test_a_broker_of_another_cluster_is_not_registered(controller: ControllerHarness) -> None:
    response = controller.register(cluster_id="elsewhere")
    assert (response.error_code, response.broker_epoch) == (ErrorCode.INCONSISTENT_CLUSTER_ID, -1)
    assert 2 not in controller.node.image.brokers


def test_a_second_incarnation_of_a_live_broker_is_not_registered(controller: ControllerHarness) -> None:
    controller.register()
    controller.heartbeat()
    response = controller.register(incarnation_id=Uuid(bytes(16)))
    assert response.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    own = controller.register(broker_id=controller.node.node_id)
    assert own.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_registration_without_directory_ids_is_refused(controller: ControllerHarness) -> None:
    assert controller.register(1).error_code == ErrorCode.INVALID_REGISTRATION


def test_a_broker_is_unfenced_and_shut_down_by_heartbeats(controller: ControllerHarness) -> None:
    controller.register()
    response = controller.heartbeat(want_fence=True)
    assert (response.error_code, response.is_caught_up, response.is_fenced) == (ErrorCode.NONE, True, True)
    response = controller.heartbeat(cordoned_log_dirs=[])
    assert (response.is_caught_up, response.is_fenced, response.should_shut_down) == (True, False, False)
    assert not controller.node.image.brokers[2].fenced
    response = controller.heartbeat(version=0, want_shut_down=True)
    assert (response.is_fenced, response.should_shut_down) == (True, True)


def test_an_old_broker_epoch_returns_stale_broker_epoch(controller: ControllerHarness) -> None:
    controller.register()
    for request in (BrokerHeartbeatRequest, AllocateProducerIdsRequest):
        version = 2 if request is BrokerHeartbeatRequest else 0
        response = controller.call_controller(version, request(broker_id=2, broker_epoch=7))
        assert response.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_producer_ids_are_allocated_in_blocks(controller: ControllerHarness) -> None:
    controller.register()
    epoch = controller.node.image.brokers[2].broker_epoch
    request = AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch)
    first, second = controller.call_controller(0, request), controller.call_controller(0, request)
    assert (first.error_code, first.producer_id_len) == (ErrorCode.NONE, 1000)
    assert second.producer_id_start == first.producer_id_start + 1000


def test_a_controller_registers(controller: ControllerHarness) -> None:
    listeners = [ControllerListener(name="CONTROLLER", host="three", port=9093)]
    request = ControllerRegistrationRequest(controller_id=3, incarnation_id=INCARNATION, listeners=listeners)
    assert controller.call_controller(0, request).error_code == ErrorCode.NONE
    assert controller.node.image.controllers[3].endpoints["CONTROLLER"].host == "three"

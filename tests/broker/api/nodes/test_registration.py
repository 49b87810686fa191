"""Other nodes come to a controller, live, and are given ids: what each is answered, with its refusals."""

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

LIFE = Uuid(b"a-life-of-node-2")
DIRECTORY = Uuid(b"directory-of-two")


class Controller(NodeHarness):
    """A node that is asked as a controller, and what node 2 asks of it."""

    def ask(self, version: int, request: Any) -> Any:
        return self.connect(listener="CONTROLLER", role=ListenerRole.CONTROLLER).call(version, request)

    def register(self, version: int = 4, **changes: Any) -> Any:
        given: dict[str, Any] = {
            "broker_id": 2,
            "cluster_id": self.node.cluster_id,
            "incarnation_id": LIFE,
            "listeners": [Listener(name="PLAINTEXT", host="two", port=9092)],
            "features": [
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in registered_features().items()
            ],
            "rack": "r2",
            "log_dirs": [DIRECTORY] if version >= 2 else [],
        }
        return self.ask(version, BrokerRegistrationRequest(**{**given, **changes}))

    def beat(self, version: int = 2, **changes: Any) -> Any:
        given: dict[str, Any] = {
            "broker_id": 2,
            "broker_epoch": self.node.image.brokers[2].broker_epoch,
            "current_metadata_offset": self.node.image.offset,
        }
        return self.ask(version, BrokerHeartbeatRequest(**{**given, **changes}))


UNSERVED = ("share.version", "streams.version")


@pytest.fixture
def controller() -> Controller:
    made = Controller()
    updates = [FeatureUpdateKey(feature=name, max_version_level=0, upgrade_type=2) for name in UNSERVED]
    made.ask(2, UpdateFeaturesRequest(feature_updates=updates, timeout_ms=1_000))
    return made


def test_a_broker_that_joins_one_that_serves_less_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    assert Controller().register().error_code == ErrorCode.NONE
    [line] = [line for line in caplog.messages if "broker 2 joins" in line]
    assert "run kafka-features downgrade --feature share.version=0 --feature streams.version=0" in line


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_broker_is_registered_fenced(controller: Controller, version: int) -> None:
    answer = controller.register(version)
    broker = controller.node.image.brokers[2]
    assert (answer.error_code, answer.broker_epoch) == (ErrorCode.NONE, broker.broker_epoch)
    assert (broker.fenced, broker.rack, broker.log_dirs) == (True, "r2", (DIRECTORY,))
    assert [(one.name, one.host, one.port) for one in broker.endpoints.values()] == [
        ("PLAINTEXT", "two", 9092)
    ]


def test_a_broker_of_another_cluster_is_not(controller: Controller) -> None:
    answer = controller.register(cluster_id="elsewhere")
    assert (answer.error_code, answer.broker_epoch) == (ErrorCode.INCONSISTENT_CLUSTER_ID, -1)
    assert 2 not in controller.node.image.brokers


def test_another_life_of_a_broker_that_lives_is_not(controller: Controller) -> None:
    controller.register()
    controller.beat()
    answer = controller.register(incarnation_id=Uuid(bytes(16)))
    assert answer.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    own = controller.register(broker_id=controller.node.node_id)
    assert own.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_who_registered_before_directories_had_ids_is_refused(controller: Controller) -> None:
    assert controller.register(1).error_code == ErrorCode.INVALID_REGISTRATION


def test_a_broker_lives_and_is_let_go(controller: Controller) -> None:
    controller.register()
    answer = controller.beat(want_fence=True)
    assert (answer.error_code, answer.is_caught_up, answer.is_fenced) == (ErrorCode.NONE, True, True)
    answer = controller.beat(cordoned_log_dirs=[])
    assert (answer.is_caught_up, answer.is_fenced, answer.should_shut_down) == (True, False, False)
    assert not controller.node.image.brokers[2].fenced
    answer = controller.beat(version=0, want_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)


def test_a_life_that_is_over_is_told_so(controller: Controller) -> None:
    controller.register()
    for request in (BrokerHeartbeatRequest, AllocateProducerIdsRequest):
        version = 2 if request is BrokerHeartbeatRequest else 0
        answer = controller.ask(version, request(broker_id=2, broker_epoch=7))
        assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_ids_for_producers_are_given_in_blocks(controller: Controller) -> None:
    controller.register()
    epoch = controller.node.image.brokers[2].broker_epoch
    request = AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch)
    first, second = controller.ask(0, request), controller.ask(0, request)
    assert (first.error_code, first.producer_id_len) == (ErrorCode.NONE, 1000)
    assert second.producer_id_start == first.producer_id_start + 1000


def test_another_controller_is_known_from_then_on(controller: Controller) -> None:
    listeners = [ControllerListener(name="CONTROLLER", host="three", port=9093)]
    request = ControllerRegistrationRequest(controller_id=3, incarnation_id=LIFE, listeners=listeners)
    assert controller.ask(0, request).error_code == ErrorCode.NONE
    assert controller.node.image.controllers[3].endpoints["CONTROLLER"].host == "three"

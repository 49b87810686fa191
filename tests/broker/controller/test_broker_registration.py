"""Broker registrations: which are accepted, with which epoch, and their effect on partitions."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import BrokerHeartbeat, RegisterBroker, UnregisterBroker
from kwire.broker.metadata.features import registered_features
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid
from tests.broker.controller.conftest import DIRECTORY, directory_of

FIRST_INCARNATION, NEXT_INCARNATION = Uuid(b"first-life-of-it"), Uuid(b"second-life-of-i")
RESERVED = Uuid(bytes(15) + b"\x63")
FEATURES = registered_features()


def registration(broker_id: int = 1, **changes: Any) -> RegisterBroker:
    command = RegisterBroker(broker_id, FIRST_INCARNATION, [], FEATURES, None, [directory_of(broker_id)])
    return command._replace(**changes)


@pytest.fixture
def cluster(bare_cluster: Any) -> Any:
    """Return a cluster without brokers."""
    cluster = bare_cluster()
    cluster.heartbeats.now_ms = 1_000
    return cluster


def heartbeat(cluster: Any, broker_id: int = 1) -> None:
    epoch = cluster.image.brokers[broker_id].broker_epoch
    cluster.run(BrokerHeartbeat(broker_id, epoch, cluster.image.offset, False, False))


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        (
            {"is_migrating": True},
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            "Controller does not support registering ZK brokers.",
        ),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION, "No directories specified in request"),
        ({"log_dirs": [RESERVED]}, ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request"),
        (
            {"log_dirs": [DIRECTORY, DIRECTORY]},
            ErrorCode.INVALID_REGISTRATION,
            "Duplicate directory ID in request",
        ),
        (
            {"features": {"group.version": (0, 1)}},
            ErrorCode.INVALID_REGISTRATION,
            "Request features do not contain 'metadata.version'",
        ),
        (
            {"features": {**FEATURES, "metadata.version": (7, 29)}},
            ErrorCode.UNSUPPORTED_VERSION,
            "Unable to register because the broker does not support finalized version 30 of "
            "metadata.version. "
            "The broker wants a version between 7 and 29, inclusive.",
        ),
        (
            {"features": {name: levels for name, levels in FEATURES.items() if name != "share.version"}},
            ErrorCode.UNSUPPORTED_VERSION,
            "Unable to register because the broker does not support finalized version 1 of share.version. "
            "The broker wants a version between 0 and 0, inclusive.",
        ),
        (
            {"kraft_version": 2},
            ErrorCode.UNSUPPORTED_VERSION,
            "Unable to register because the broker does not support finalized version 2 of kraft.version. "
            "The broker wants a version between 0 and 1, inclusive.",
        ),
    ],
)
def test_an_invalid_registration_is_refused(
    cluster: Any, changes: dict[str, Any], code: ErrorCode, text: str
) -> None:
    with pytest.raises(ApiError) as refused:
        cluster.decide(registration(**changes))
    assert (refused.value.code, refused.value.message) == (code, text)


def test_a_log_directory_id_belongs_to_one_broker(cluster: Any) -> None:
    cluster.run(registration(1))
    with pytest.raises(
        ApiError, match="Broker 1 is already registered with directory ZGlyZWN0b3J5LW9mLW9uZQ"
    ):
        cluster.decide(registration(2, log_dirs=[DIRECTORY]))
    cluster.run(registration(1, incarnation_id=NEXT_INCARNATION))


def test_a_new_incarnation_waits_for_the_session_timeout(cluster: Any) -> None:
    first = cluster.run(registration())
    assert cluster.run(registration(incarnation_id=NEXT_INCARNATION)) > first, (
        "the first sent no heartbeat yet"
    )
    heartbeat(cluster)
    with pytest.raises(ApiError) as refused:
        cluster.decide(registration())
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.heartbeats.now_ms += 9_000
    with pytest.raises(ApiError):
        cluster.decide(registration())
    cluster.heartbeats.now_ms += 1
    cluster.run(registration())


def test_the_same_incarnation_keeps_epoch_and_fencing(cluster: Any) -> None:
    epoch = cluster.run(registration())
    heartbeat(cluster)
    assert cluster.run(registration(rack="r")) == epoch
    broker = cluster.image.brokers[1]
    assert (broker.broker_epoch, broker.fenced, broker.rack) == (epoch, False, "r")


def test_after_controlled_shutdown_a_broker_registers_at_once(cluster: Any) -> None:
    epoch = cluster.run(registration())
    heartbeat(cluster)
    cluster.run(BrokerHeartbeat(1, epoch, cluster.image.offset, False, True))
    cluster.run(registration(incarnation_id=NEXT_INCARNATION, previous_broker_epoch=epoch))


def test_broker_epoch_is_the_offset_of_the_registration_record(cluster: Any) -> None:
    assert cluster.run(registration()) == cluster.image.offset
    heartbeat(cluster)
    cluster.create_on("t", [[1]])
    cluster.heartbeats.now_ms += 10_000
    before = cluster.image.offset
    epoch = cluster.run(registration(incarnation_id=NEXT_INCARNATION))
    assert epoch == before + 1 < cluster.image.offset
    # The broker is caught up at the registration record, not at an earlier offset.
    reply = cluster.run(BrokerHeartbeat(1, epoch, epoch, False, False))
    assert (reply.is_caught_up, reply.is_fenced) == (False, True)


def test_an_unregistered_broker_can_register_again(cluster: Any) -> None:
    cluster.run(registration())
    heartbeat(cluster)
    cluster.run(UnregisterBroker(1))
    assert cluster.image.brokers == {}
    cluster.run(registration(incarnation_id=NEXT_INCARNATION))

"""UpdateFeatures, with the errors of Apache Kafka 4.3.1."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import Fault, FeatureUpdate, RegisterController, UpdateFeatures
from kwire.broker.controller.controller import Controller
from kwire.broker.controller.topics import TopicDefaults
from kwire.broker.metadata.image import RESOURCE_BROKER
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import Uuid
from tests.broker.controller.conftest import StubConfigRules

UPGRADE, SAFE, UNSAFE = 1, 2, 3
DIRECTION = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
    "downgrade."
)
UNKNOWN_TYPE = "The controller does not support the given upgrade type."
LOSES = "Refusing to perform the requested downgrade because it might delete metadata information."
UNSAFE_LOSES = "Unsafe metadata downgrade is not supported in this version."


def invalid(level: int, name: str, reason: str) -> str:
    """Return the error message for an invalid level."""
    return f"Invalid update version {level} for feature {name}. {reason}"


REFUSED = [
    ("transaction.version", 1, 0, invalid(1, "transaction.version", UNKNOWN_TYPE)),
    ("transaction.version", 1, 4, invalid(1, "transaction.version", UNKNOWN_TYPE)),
    (
        "transaction.version",
        1,
        UPGRADE,
        invalid(1, "transaction.version", DIRECTION),
    ),
    (
        "group.version",
        2,
        UPGRADE,
        invalid(2, "group.version", "Local controller 1 only supports versions 0-1"),
    ),
    (
        "group.version",
        -1,
        UPGRADE,
        invalid(-1, "group.version", "A feature version cannot be less than 0."),
    ),
    (
        "nope.version",
        1,
        UPGRADE,
        invalid(1, "nope.version", "Local controller 1 does not support this feature."),
    ),
    (
        "nope.version",
        0,
        UPGRADE,
        invalid(0, "nope.version", "Feature nope.version not found."),
    ),
    (
        "metadata.version",
        6,
        SAFE,
        invalid(6, "metadata.version", "Local controller 1 only supports versions 7-30"),
    ),
    ("metadata.version", 29, SAFE, f"Unsupported metadata.version downgrade from 30 to 29. {LOSES}"),
    ("metadata.version", 7, UNSAFE, f"Unsupported metadata.version downgrade from 30 to 7. {UNSAFE_LOSES}"),
    (
        "kraft.version",
        1,
        SAFE,
        invalid(1, "kraft.version", "Can't downgrade to a newer version."),
    ),
]


def update(cluster: Any, *updates: tuple[str, int, int], **more: Any) -> Fault | None:
    levels = {name: FeatureUpdate(level, upgrade_type) for name, level, upgrade_type in updates}
    reply = cluster.run(UpdateFeatures(levels, **more))
    assert reply is None or isinstance(reply, Fault)
    return reply


@pytest.fixture
def cluster(bare_cluster: Any) -> Any:
    """Return a cluster whose only controller registered the features of this release."""
    return bare_cluster()


@pytest.mark.parametrize(("name", "level", "upgrade_type", "text"), REFUSED)
def test_an_invalid_update_is_refused(
    cluster: Any, name: str, level: int, upgrade_type: int, text: str
) -> None:
    for validate_only in (True, False):
        reply = update(cluster, (name, level, upgrade_type), validate_only=validate_only)
        assert reply == Fault(ErrorCode.INVALID_UPDATE_VERSION, text)
        assert cluster.records == []


def test_one_invalid_update_stops_all_updates(cluster: Any) -> None:
    before = cluster.image.features
    assert update(cluster, ("transaction.version", 0, SAFE), ("group.version", 2, UPGRADE)) is not None
    assert cluster.image.features == before


def test_levels_are_upgraded_and_downgraded(cluster: Any) -> None:
    down = (("transaction.version", 1, SAFE), ("group.version", 0, UNSAFE))
    assert update(cluster, *down, validate_only=True) is None
    assert cluster.records == []
    assert update(cluster, *down) is None
    assert cluster.image.features["transaction.version"] == 1
    assert "group.version" not in cluster.image.features
    assert update(cluster, ("transaction.version", 2, UPGRADE), ("group.version", 1, UPGRADE)) is None
    assert cluster.image.features["transaction.version"] == 2
    assert cluster.image.features["group.version"] == 1


def test_every_broker_must_support_a_level(bare_cluster: Any) -> None:
    cluster = bare_cluster((("metadata.version", 30),))
    cluster.register(1, features={"metadata.version": (7, 30)})
    reply = update(cluster, ("group.version", 1, UPGRADE))
    text = invalid(1, "group.version", "Broker 1 does not support this feature.")
    assert reply == Fault(ErrorCode.INVALID_UPDATE_VERSION, text)


def test_the_only_broker_may_enable_features_that_it_does_not_serve(
    bare_cluster: Any,
) -> None:
    cluster = bare_cluster((("metadata.version", 30),))
    cluster.heartbeats.own_broker_id = 1
    cluster.register(1)
    assert update(cluster, ("share.version", 1, UPGRADE)) is None
    assert update(cluster, ("share.version", 0, SAFE)) is None
    cluster.register(2)
    reply = update(cluster, ("share.version", 1, UPGRADE))
    text = invalid(1, "share.version", "Broker 1 does not support this feature.")
    assert reply == Fault(ErrorCode.INVALID_UPDATE_VERSION, text)


def register_controller(cluster: Any, controller_id: int, **features: tuple[int, int]) -> None:
    ranges = {name.replace("_", "."): levels for name, levels in features.items()}
    cluster.run(RegisterController(controller_id, Uuid(bytes(15) + b"c"), [], ranges))


def test_every_controller_must_have_registered_support_for_a_level(bare_cluster: Any) -> None:
    cluster = bare_cluster((("metadata.version", 29),))
    cluster.controller = Controller(1, StubConfigRules(), TopicDefaults(1, 1), (1, 2, 3))
    for controller_id, features, text in (
        (1, {}, "controller 2 has not registered, and may not support this feature"),
        (2, {"metadata_version": (7, 30)}, "Controller 2 does not support this feature."),
        (2, {"group_version": (0, 1)}, "controller 3 has not registered, and may not support this feature"),
        (3, {"group_version": (1, 1)}, None),
        # Controller 4 is not a voter, and the level is not the last.
        (4, {"group_version": (0, 0)}, "Controller 4 does not support this feature."),
    ):
        register_controller(cluster, controller_id, **features)
        reply = update(cluster, ("group.version", 1, UPGRADE), validate_only=True)
        reason = text and Fault(ErrorCode.INVALID_UPDATE_VERSION, invalid(1, "group.version", text))
        assert reply == reason
    reply = update(cluster, ("group.version", 0, SAFE))
    text = "Controller 3 only supports versions 1"
    assert reply == Fault(ErrorCode.INVALID_UPDATE_VERSION, invalid(0, "group.version", text))


def test_before_controller_registration_support_is_assumed(bare_cluster: Any) -> None:
    cluster = bare_cluster((("metadata.version", 14),))
    cluster.controller = Controller(1, StubConfigRules(), TopicDefaults(1, 1), (1, 2, 3))
    assert update(cluster, ("metadata.version", 15, UPGRADE)) is None
    text = "controller 2 has not registered, and may not support this feature"
    reply = update(cluster, ("metadata.version", 16, UPGRADE))
    assert reply == Fault(ErrorCode.INVALID_UPDATE_VERSION, invalid(16, "metadata.version", text))


def test_metadata_version_downgrades_if_no_record_changed(bare_cluster: Any) -> None:
    cluster = bare_cluster((("metadata.version", 29),))
    assert update(cluster, ("metadata.version", 23, SAFE)) is None
    assert cluster.image.metadata_version == 23
    text = f"Unsupported metadata.version downgrade from 23 to 22. {LOSES}"
    reply = update(cluster, ("metadata.version", 22, SAFE))
    assert reply == Fault(ErrorCode.INVALID_UPDATE_VERSION, text)
    assert update(cluster, ("metadata.version", 30, UPGRADE)) is None


def test_elr_needs_metadata_version_23_and_writes_min_insync_replicas(bare_cluster: Any) -> None:
    cluster = bare_cluster((("metadata.version", 22),))
    reply = update(cluster, ("eligible.leader.replicas.version", 1, UPGRADE))
    name = "eligible.leader.replicas.version"
    text = invalid(1, name, f"{name} could not be set to 1 because it depends on metadata.version level 23")
    assert reply == Fault(ErrorCode.INVALID_UPDATE_VERSION, text)
    both = (("metadata.version", 23, UPGRADE), ("eligible.leader.replicas.version", 1, UPGRADE))
    assert update(cluster, *both) is None
    assert cluster.image.elr_enabled
    assert cluster.image.config(RESOURCE_BROKER, "") == {"min.insync.replicas": "1"}


def test_kraft_version_is_not_downgraded(cluster: Any) -> None:
    assert update(cluster, ("kraft.version", 1, UPGRADE)) is None
    reply = update(cluster, ("kraft.version", 0, SAFE), kraft_version=1)
    text = invalid(0, "kraft.version", "Can't downgrade the version of this feature.")
    assert reply == Fault(ErrorCode.INVALID_UPDATE_VERSION, text)

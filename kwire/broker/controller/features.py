"""UpdateFeatures: upgrades and downgrades of feature levels. KIP-584, KIP-778, KIP-1022.

Each feature is checked for: the upgrade type, a negative level, support by every node, the direction, and the
feature's own requirements. If one feature fails a check, the complete request is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kwire.broker.controller.commands import (
    ControllerResult,
    Fault,
    FeatureUpdate,
    UpdateFeatures,
    UpgradeType,
)
from kwire.broker.controller.configs import MIN_INSYNC_REPLICAS
from kwire.broker.metadata.features import FEATURES, KRAFT_VERSION, broker_features
from kwire.broker.metadata.image import ELR_VERSION, METADATA_VERSION, RESOURCE_BROKER, MetadataImage
from kwire.broker.metadata.records import CONTROLLER_REGISTRATION_LEVEL, StoredRecord
from kwire.wire.errors import ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.records.metadata import ConfigRecord, FeatureLevelRecord, NoOpRecord

Ranges = Mapping[str, tuple[int, int]]

_METADATA_CHANGED_LEVELS: Final = frozenset({7, 8, 11, 13, 14, 15, 17, 23, 30})
"""The metadata.version levels that added records or fields which older releases cannot read."""


class QuorumFeatures(NamedTuple):
    """This controller's feature levels, and the voters that must have registered theirs."""

    node_id: int
    """The id of this controller."""
    local_features: Ranges
    """The lowest and highest level that this controller supports, by feature."""
    voter_ids: Collection[int] = ()
    """The ids in controller.quorum.voters. All these controllers must have registered."""


def update_features(
    command: UpdateFeatures, image: MetadataImage, quorum: QuorumFeatures, min_insync_replicas: int
) -> ControllerResult[Fault | None]:
    """Set all levels, or return the first error. The metadata quorum checks an upgrade of kraft.version.

    If ELR is enabled and the cluster does not set min.insync.replicas, `min_insync_replicas` is written.
    """
    records: list[StoredRecord] = []
    proposed = dict(image.features)
    proposed.update((name, update.level) for name, update in command.updates.items())
    for name, update in command.updates.items():
        current = command.kraft_version if name == KRAFT_VERSION else image.features.get(name, 0)
        text = _fault(name, update, current, image, quorum)
        if text is None:
            text = _feature_fault(name, update, current, proposed)
        if text is not None:
            return ControllerResult([], Fault(ErrorCode.INVALID_UPDATE_VERSION, text))
        if name != KRAFT_VERSION:
            records.append(StoredRecord(FeatureLevelRecord(name=name, feature_level=update.level)))
        elif update.upgrade_type == UpgradeType.UPGRADE:
            # KRaft stores kraft.version in control records. The NoOpRecord gives the response an offset to
            # wait for.
            records.append(StoredRecord(NoOpRecord()))
    if command.validate_only:
        return ControllerResult([], None)
    elr = command.updates.get(ELR_VERSION)
    if elr is not None and elr.level > 0:
        records = [*_min_isr_records(image, min_insync_replicas), *records]
    return ControllerResult(records, None)


def _fault(
    name: str, update: FeatureUpdate, current: int, image: MetadataImage, quorum: QuorumFeatures
) -> str | None:
    level, upgrade_type = update
    reason: str | None = None
    if upgrade_type not in UpgradeType.__members__.values():
        reason = "The controller does not support the given upgrade type."
    elif level < 0:
        reason = "A feature version cannot be less than 0."
    else:
        reason = _support_fault(name, level, image, quorum)
    if reason is None and level < current and upgrade_type == UpgradeType.UPGRADE:
        reason = (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    if reason is None and level > current and upgrade_type != UpgradeType.UPGRADE:
        reason = "Can't downgrade to a newer version."
    return None if reason is None else f"Invalid update version {level} for feature {name}. {reason}"


def _support_fault(name: str, level: int, image: MetadataImage, quorum: QuorumFeatures) -> str | None:
    """Return why a broker or controller does not support the level, or None if all nodes support it."""
    node_id = quorum.node_id
    nodes = [(f"Local controller {node_id}", quorum.local_features)]
    # The broker of a sole voter registers with all of Kafka's levels. If the cluster has other brokers, only
    # the levels that this node serves count.
    is_alone = not image.brokers.keys() - {node_id}
    nodes += [
        (f"Broker {broker_id}", broker.features if is_alone or broker_id != node_id else broker_features())
        for broker_id, broker in image.brokers.items()
    ]
    has_controller_registrations = image.metadata_version >= CONTROLLER_REGISTRATION_LEVEL
    if has_controller_registrations:
        nodes += [
            (f"Controller {controller.controller_id}", controller.features)
            for controller in image.controllers.values()
            if controller.controller_id != node_id
        ]
    for node, features in nodes:
        # A node that does not know the feature supports only level 0, which disables the feature.
        low, high = features.get(name, (0, 0))
        if not low <= level <= high:
            if high == 0:
                return f"{node} does not support this feature."
            return f"{node} only supports versions {low}" + (f"-{high}" if high != low else "")
    # Before KIP-919, controllers did not register. They are assumed to support the level.
    for voter_id in quorum.voter_ids if has_controller_registrations else ():
        if voter_id != node_id and voter_id not in image.controllers:
            return f"controller {voter_id} has not registered, and may not support this feature"
    return None


def _feature_fault(name: str, update: FeatureUpdate, current: int, proposed: Mapping[str, int]) -> str | None:
    """Return why the feature's own rules do not allow the level, or None if they allow it."""
    level = update.level
    if name == METADATA_VERSION:
        if level < current and any(
            since in _METADATA_CHANGED_LEVELS for since in range(level + 1, current + 1)
        ):
            reason = (
                "Refusing to perform the requested downgrade because it might delete metadata information."
            )
            if update.upgrade_type == UpgradeType.UNSAFE_DOWNGRADE:
                reason = "Unsafe metadata downgrade is not supported in this version."
            return f"Unsupported metadata.version downgrade from {current} to {level}. {reason}"
        return None
    prefix = f"Invalid update version {level} for feature {name}. "
    if name == KRAFT_VERSION:
        return prefix + "Can't downgrade the version of this feature." if level < current else None
    if name not in FEATURES:
        return prefix + f"Feature {name} not found."
    needed = FEATURES[name].needs.get(level, 0)
    if proposed.get(METADATA_VERSION, 0) < needed:
        return prefix + (
            f"{name} could not be set to {level} because it depends on {METADATA_VERSION} level {needed}"
        )
    return None


def _min_isr_records(image: MetadataImage, min_insync_replicas: int) -> list[StoredRecord]:
    """Return the records that make min.insync.replicas the same on all brokers, as ELR needs (KIP-966)."""
    found: list[tuple[str, str | None]] = []
    if MIN_INSYNC_REPLICAS not in image.config(RESOURCE_BROKER, ""):
        found.append(("", str(min_insync_replicas)))
    found += [
        (name, None)
        for (kind, name), values in image.configs.items()
        if kind == RESOURCE_BROKER and name and MIN_INSYNC_REPLICAS in values
    ]
    return [
        StoredRecord(
            ConfigRecord(
                resource_type=RESOURCE_BROKER, resource_name=name, name=MIN_INSYNC_REPLICAS, value=value
            )
        )
        for name, value in found
    ]

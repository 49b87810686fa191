"""The features of Apache Kafka 4.3, and their levels in a new cluster of each release. KIP-1022."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.metadata.image import ELR_VERSION, METADATA_VERSION
from kwire.broker.metadata.records import ELR_LEVEL, MAX_LEVEL, MIN_LEVEL
from kwire.wire.named_tuple import NamedTuple

KRAFT_VERSION: Final = "kraft.version"

RELEASES: Final = dict(
    enumerate(
        (
            "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2",
            "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0",
            "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0",
        ),
        MIN_LEVEL,
    )
)  # fmt: skip
"""The release names of the metadata.version levels."""


class Feature(NamedTuple):
    """A feature: its levels, and the metadata.version that each level requires."""

    min_level: int
    max_level: int
    is_served: bool
    """Whether kwire implements every level completely. Only such features are advertised to clients."""
    since: Mapping[int, int] = {}
    """For each level, the first metadata.version with which a new cluster gets the level by default."""
    needs: Mapping[int, int] = {}
    """For each level, the lowest metadata.version that allows it."""


FEATURES: Final[dict[str, Feature]] = {
    "group.version": Feature(0, 1, is_served=True, since={1: 22}),
    KRAFT_VERSION: Feature(0, 1, is_served=True),
    METADATA_VERSION: Feature(MIN_LEVEL, MAX_LEVEL, is_served=True),
    "share.version": Feature(0, 1, is_served=False, since={1: 28}),
    "streams.version": Feature(0, 1, is_served=False, since={1: 29}),
    "transaction.version": Feature(0, 2, is_served=True, since={1: MAX_LEVEL + 1, 2: 24}),
    ELR_VERSION: Feature(0, 1, is_served=True, since={1: 26}, needs={1: ELR_LEVEL}),
}
"""The features of Apache Kafka 4.3.1, in its registration order."""

OTHER_FEATURES: Final = sorted(FEATURES.keys() - {METADATA_VERSION, KRAFT_VERSION})
"""The features with FeatureLevelRecords, except metadata.version."""


def unserved_feature_levels() -> dict[str, int]:
    """Return level 0 for each feature that kwire does not serve. New clusters are formatted with it."""
    return {name: 0 for name, feature in FEATURES.items() if not feature.is_served}


def unserved_levels(levels: Mapping[str, int]) -> dict[str, int]:
    """Return the levels above 0 of features that kwire does not serve."""
    return {name: level for name, level in levels.items() if level and not FEATURES[name].is_served}


def registered_features() -> dict[str, tuple[int, int]]:
    """Return all of Kafka's levels, with which controllers, and the broker of a sole voter, register."""
    return {name: (feature.min_level, feature.max_level) for name, feature in FEATURES.items()}


def broker_features() -> dict[str, tuple[int, int]]:
    """Return the levels that a broker serves, with which it registers if there are voters on other nodes."""
    return {
        name: (feature.min_level, feature.max_level if feature.is_served else 0)
        for name, feature in FEATURES.items()
    }


def served_features() -> dict[str, tuple[int, int]]:
    """Return the levels that ApiVersions advertises to clients."""
    return {name: (known.min_level, known.max_level) for name, known in FEATURES.items() if known.is_served}


def check_levels(
    finalized: Mapping[str, int],
    owner: str = "the cluster",
    remedy: str = "start the newer release again, and downgrade the feature with kafka-features",
) -> None:
    """Check that this release supports all levels of `owner`. Raises CorruptMetadata if it does not."""
    for name, level in finalized.items():
        lowest, highest = FEATURES[name][:2] if name in FEATURES else (0, 0)
        if level and not lowest <= level <= highest:
            raise CorruptMetadata(
                f"{owner} has {name} at level {level}, and this release supports {lowest} to {highest}: "
                f"{remedy}"
            )


class UnknownLevel(Exception):
    """A feature, release or level that a new cluster cannot have. The message says what is possible."""


def level_of_release(text: str) -> int:
    """Return the metadata.version of a release: `4.3-IV0`, `4.3` or `4.3.1`. Raises UnknownLevel."""
    for level, name in RELEASES.items():
        if name == text:
            return level
    short = ".".join(text.split(".")[:2])
    found = [level for level, name in RELEASES.items() if name.partition("-")[0] == short]
    if not found or "-" in text:
        raise UnknownLevel(
            f"unknown release version {text!r}: expected one of {', '.join(RELEASES.values())}"
        )
    return found[-1]


def default_levels(metadata_version: int) -> dict[str, int]:
    """Return the default levels of OTHER_FEATURES in a new cluster with this metadata.version."""
    return {
        name: max(
            (level for level, since in FEATURES[name].since.items() if since <= metadata_version), default=0
        )
        for name in OTHER_FEATURES
    }


def default_features() -> list[tuple[str, int]]:
    """Return the levels that Apache Kafka 4.3.1 finalizes when it formats a log directory."""
    return effective_levels({}, None, dynamic_quorum=False)


def effective_levels(
    wanted: Mapping[str, int], release: str | None, *, dynamic_quorum: bool
) -> list[tuple[str, int]]:
    """Return the non-zero feature levels of a new cluster, metadata.version first.

    `wanted` overrides the default levels of `release`; None is the newest release. `kraft.version` is not in
    the result: the snapshot with the voters stores it. Raises UnknownLevel for invalid arguments.
    """
    level = MAX_LEVEL if release is None else level_of_release(release)
    if METADATA_VERSION in wanted:
        if release is not None:
            raise UnknownLevel(f"set either the release version or {METADATA_VERSION}, not both")
        level = wanted[METADATA_VERSION]
        if level not in RELEASES:
            raise UnknownLevel(f"{METADATA_VERSION} is {level}: expected {MIN_LEVEL} to {MAX_LEVEL}")
    levels = default_levels(level)
    for name, value in wanted.items():
        if name == METADATA_VERSION:
            continue
        if name == KRAFT_VERSION:
            if value != int(dynamic_quorum):
                raise UnknownLevel(
                    f"{KRAFT_VERSION} must be {int(dynamic_quorum)} here, not {value}: it is 0 with "
                    f"controller.quorum.voters, and 1 if the metadata log stores the voters"
                )
            continue
        feature = FEATURES.get(name)
        if feature is None:
            known = ", ".join([METADATA_VERSION, KRAFT_VERSION, *OTHER_FEATURES])
            raise UnknownLevel(f"unknown feature {name}: expected one of {known}")
        if not 0 <= value <= feature.max_level:
            raise UnknownLevel(f"{name} is {value}: expected 0 to {feature.max_level}")
        needed = feature.needs.get(value, 0)
        if level < needed:
            raise UnknownLevel(
                f"{name} {value} requires {METADATA_VERSION} {needed} ({RELEASES[needed]}) or newer, not "
                f"{level} ({RELEASES[level]})"
            )
        levels[name] = value
    return [(METADATA_VERSION, level), *((name, value) for name, value in levels.items() if value)]

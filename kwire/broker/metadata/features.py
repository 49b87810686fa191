"""The features of Apache Kafka 4.3, and the levels that a cluster of each release begins with (KIP-1022)."""

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
"""The names of the levels of metadata.version."""


class Feature(NamedTuple):
    """One feature of a cluster: its levels, and what they depend on."""

    min_level: int
    max_level: int
    is_served: bool
    """Whether the whole behaviour of every level is there, and may be advertised to clients."""
    since: Mapping[int, int] = {}
    """From which metadata.version on a new cluster begins with a level."""
    needs: Mapping[int, int] = {}
    """The metadata.version without which a level cannot be."""


FEATURES: Final[dict[str, Feature]] = {
    "group.version": Feature(0, 1, is_served=True, since={1: 22}),
    KRAFT_VERSION: Feature(0, 1, is_served=True),
    METADATA_VERSION: Feature(MIN_LEVEL, MAX_LEVEL, is_served=True),
    "share.version": Feature(0, 1, is_served=False, since={1: 28}),
    "streams.version": Feature(0, 1, is_served=False, since={1: 29}),
    "transaction.version": Feature(0, 2, is_served=True, since={1: MAX_LEVEL + 1, 2: 24}),
    ELR_VERSION: Feature(0, 1, is_served=True, since={1: 26}, needs={1: ELR_LEVEL}),
}
"""The features of Apache Kafka 4.3.1, in the order in which it registers them."""

OTHER_FEATURES: Final = sorted(FEATURES.keys() - {METADATA_VERSION, KRAFT_VERSION})
"""Those whose levels stand in the log beside that of metadata.version."""


def unserved_feature_levels() -> dict[str, int]:
    """What a cluster of kwire's own brokers begins without, though Kafka's releases begin with it."""
    return {name: 0 for name, feature in FEATURES.items() if not feature.is_served}


def registered_features() -> dict[str, tuple[int, int]]:
    """What a node registers with: it must claim all that its cluster finalizes to be let in."""
    return {name: (feature.min_level, feature.max_level) for name, feature in FEATURES.items()}


def broker_features() -> dict[str, tuple[int, int]]:
    """What a broker registers with where others keep the metadata: only the levels that it serves."""
    return {
        name: (feature.min_level, feature.max_level if feature.is_served else 0)
        for name, feature in FEATURES.items()
    }


def served_features() -> dict[str, tuple[int, int]]:
    """What clients are told: what is finalized beyond it is not."""
    return {name: (known.min_level, known.max_level) for name, known in FEATURES.items() if known.is_served}


def check_levels(finalized: Mapping[str, int]) -> None:
    """CorruptMetadata for a feature at a level that this release does not know."""
    for name, level in finalized.items():
        lowest, highest = FEATURES[name][:2] if name in FEATURES else (0, 0)
        if level and not lowest <= level <= highest:
            raise CorruptMetadata(
                f"the cluster has {name} at level {level}, and this release knows {lowest} to {highest}: "
                f"start the newer release that wrote it, and take the feature down with kafka-features first"
            )


class UnknownLevel(Exception):
    """There is no such feature, release or level. The text says which there are."""


def level_of_release(text: str) -> int:
    """The level that `4.3-IV0`, `4.3` or `4.3.1` stands for. UnknownLevel."""
    for level, name in RELEASES.items():
        if name == text:
            return level
    short = ".".join(text.split(".")[:2])
    found = [level for level, name in RELEASES.items() if name.partition("-")[0] == short]
    if not found or "-" in text:
        raise UnknownLevel(f"unknown release version {text!r}: there are {', '.join(RELEASES.values())}")
    return found[-1]


def default_levels(metadata_version: int) -> dict[str, int]:
    """What a new cluster of this metadata.version begins with, beside that."""
    return {
        name: max(
            (level for level, since in FEATURES[name].since.items() if since <= metadata_version), default=0
        )
        for name in OTHER_FEATURES
    }


def default_features() -> list[tuple[str, int]]:
    """What Apache Kafka 4.3.1 finalizes when it formats a directory."""
    return effective_levels({}, None, dynamic_quorum=False)


def effective_levels(
    wanted: Mapping[str, int], release: str | None, *, dynamic_quorum: bool
) -> list[tuple[str, int]]:
    """The levels that a new cluster begins with, but for those at 0; metadata.version first. UnknownLevel.

    `kraft.version` follows from whether the quorum is dynamic, and is none of them: the voters' snapshot
    has it.
    """
    level = MAX_LEVEL if release is None else level_of_release(release)
    if METADATA_VERSION in wanted:
        if release is not None:
            raise UnknownLevel(f"a release version says what {METADATA_VERSION} is: give only one of the two")
        level = wanted[METADATA_VERSION]
        if level not in RELEASES:
            raise UnknownLevel(f"{METADATA_VERSION} has the levels {MIN_LEVEL} to {MAX_LEVEL}, not {level}")
    levels = default_levels(level)
    for name, value in wanted.items():
        if name == METADATA_VERSION:
            continue
        if name == KRAFT_VERSION:
            if value != int(dynamic_quorum):
                raise UnknownLevel(
                    f"{KRAFT_VERSION} is {int(dynamic_quorum)} here, not {value}: it is 0 where "
                    f"controller.quorum.voters names the voters, and 1 where they are kept in the log"
                )
            continue
        feature = FEATURES.get(name)
        if feature is None:
            known = ", ".join([METADATA_VERSION, KRAFT_VERSION, *OTHER_FEATURES])
            raise UnknownLevel(f"unknown feature {name}: there are {known}")
        if not 0 <= value <= feature.max_level:
            raise UnknownLevel(f"{name} has the levels 0 to {feature.max_level}, not {value}")
        needed = feature.needs.get(value, 0)
        if level < needed:
            raise UnknownLevel(
                f"{name} cannot be {value} with {METADATA_VERSION} {level} ({RELEASES[level]}): it needs "
                f"{needed} ({RELEASES[needed]})"
            )
        levels[name] = value
    return [(METADATA_VERSION, level), *((name, value) for name, value in levels.items() if value)]

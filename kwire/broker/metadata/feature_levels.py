"""The features of Apache Kafka 4.3, and the levels that a cluster of each release begins with (KIP-1022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kwire.broker.metadata.image import ELR_VERSION, METADATA_VERSION
from kwire.broker.metadata.records import ELR_LEVEL, MAX_LEVEL, MIN_LEVEL

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

REGISTERED_FEATURES: Final = {
    "group.version": (0, 1),
    KRAFT_VERSION: (0, 1),
    METADATA_VERSION: (MIN_LEVEL, MAX_LEVEL),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
    ELR_VERSION: (0, 1),
}
"""As Apache Kafka 4.3.1 registers: a node must claim all that its cluster finalizes to be let in."""

FEATURES: Final[Mapping[str, Mapping[int, int]]] = {
    ELR_VERSION: {1: 26},
    "group.version": {1: 22},
    "share.version": {1: 28},
    "streams.version": {1: 29},
    "transaction.version": {1: MAX_LEVEL + 1, 2: 24},
}
"""The other features' levels beside 0, and from which metadata.version on each is the default."""

NEEDS: Final = {(ELR_VERSION, 1): ELR_LEVEL}
"""The level of metadata.version without which a level cannot be."""


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
        name: max((level for level, since in levels.items() if metadata_version >= since), default=0)
        for name, levels in FEATURES.items()
    }


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
        if name not in FEATURES:
            raise UnknownLevel(
                f"unknown feature {name}: there are {', '.join([METADATA_VERSION, KRAFT_VERSION, *FEATURES])}"
            )
        if value != 0 and value not in FEATURES[name]:
            raise UnknownLevel(f"{name} has the levels 0 to {max(FEATURES[name])}, not {value}")
        if level < NEEDS.get((name, value), 0):
            raise UnknownLevel(
                f"{name} cannot be {value} with {METADATA_VERSION} {level} ({RELEASES[level]}): it needs "
                f"{NEEDS[name, value]} ({RELEASES[NEEDS[name, value]]})"
            )
        levels[name] = value
    return [(METADATA_VERSION, level), *((name, value) for name, value in levels.items() if value)]

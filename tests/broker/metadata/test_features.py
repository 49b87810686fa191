"""The table of features: registration, ApiVersions, and the levels that a new cluster starts with."""

from __future__ import annotations

from itertools import pairwise

from kwire.broker.metadata.features import (
    FEATURES,
    RELEASES,
    default_features,
    default_levels,
    registered_features,
    served_features,
)
from kwire.broker.metadata.image import METADATA_VERSION


def test_a_node_registers_the_features_of_kafka_4_3() -> None:
    assert list(registered_features().items()) == [
        ("group.version", (0, 1)),
        ("kraft.version", (0, 1)),
        ("metadata.version", (7, 30)),
        ("share.version", (0, 1)),
        ("streams.version", (0, 1)),
        ("transaction.version", (0, 2)),
        ("eligible.leader.replicas.version", (0, 1)),
    ]


def test_only_implemented_features_are_advertised_to_clients() -> None:
    assert list(served_features().items()) == [
        ("group.version", (0, 1)),
        ("kraft.version", (0, 1)),
        ("metadata.version", (7, 30)),
        ("transaction.version", (0, 2)),
        ("eligible.leader.replicas.version", (0, 1)),
    ]


def test_a_new_cluster_has_the_levels_of_kafka_4_3() -> None:
    assert default_features() == [
        ("metadata.version", 30),
        ("eligible.leader.replicas.version", 1),
        ("group.version", 1),
        ("share.version", 1),
        ("streams.version", 1),
        ("transaction.version", 2),
    ]


def test_the_feature_table_is_consistent() -> None:
    levels = FEATURES[METADATA_VERSION]
    assert list(RELEASES) == list(range(levels.min_level, levels.max_level + 1))
    for name, feature in FEATURES.items():
        for level in (*feature.since, *feature.needs):
            assert feature.min_level <= level <= feature.max_level, name
        for level, needed in feature.needs.items():
            assert needed <= feature.since[level], (
                "no cluster starts with a level whose dependency is missing"
            )


def test_default_levels_grow_with_the_metadata_version() -> None:
    assert set(default_levels(7).values()) == {0}
    found = [default_levels(level) for level in RELEASES]
    for older, newer in pairwise(found):
        assert all(older[name] <= newer[name] for name in newer)

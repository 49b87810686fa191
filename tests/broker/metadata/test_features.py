"""The one table of features: what a node registers, what clients are told, and how clusters begin."""

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


def test_a_node_registers_as_apache_kafka_4_3_does() -> None:
    assert list(registered_features().items()) == [
        ("group.version", (0, 1)),
        ("kraft.version", (0, 1)),
        ("metadata.version", (7, 30)),
        ("share.version", (0, 1)),
        ("streams.version", (0, 1)),
        ("transaction.version", (0, 2)),
        ("eligible.leader.replicas.version", (0, 1)),
    ]


def test_clients_are_told_only_of_what_is_there() -> None:
    assert list(served_features().items()) == [
        ("group.version", (0, 1)),
        ("kraft.version", (0, 1)),
        ("metadata.version", (7, 30)),
        ("transaction.version", (0, 2)),
        ("eligible.leader.replicas.version", (0, 1)),
    ]


def test_a_cluster_begins_as_apache_kafka_4_3_formats_it() -> None:
    assert default_features() == [
        ("metadata.version", 30),
        ("eligible.leader.replicas.version", 1),
        ("group.version", 1),
        ("share.version", 1),
        ("streams.version", 1),
        ("transaction.version", 2),
    ]


def test_the_table_agrees_with_itself() -> None:
    levels = FEATURES[METADATA_VERSION]
    assert list(RELEASES) == list(range(levels.min_level, levels.max_level + 1))
    for name, feature in FEATURES.items():
        for level in (*feature.since, *feature.needs):
            assert feature.min_level <= level <= feature.max_level, name
        for level, needed in feature.needs.items():
            assert needed <= feature.since[level], "no cluster begins with what it cannot have"


def test_older_clusters_begin_with_less() -> None:
    assert set(default_levels(7).values()) == {0}
    found = [default_levels(level) for level in RELEASES]
    for older, newer in pairwise(found):
        assert all(older[name] <= newer[name] for name in newer)

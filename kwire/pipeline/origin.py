"""The origin of a topic's records: cluster id, topic name and topic id.

Another topic, or a topic of another cluster, can have the same name, but ids are unique.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

UNKNOWN: Final = "?"

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Internal topics. They are not copied, because their records describe the state of one cluster."""
METADATA: Final = "__cluster_metadata"
"""The name of the metadata log. No topic can have this name."""


def internal_topics(names: Iterable[str]) -> list[str]:
    """Return those of the names that belong to internal topics or to the metadata log, sorted."""
    return sorted((INTERNAL | {METADATA}).intersection(names))


class Origin(NamedTuple):
    """The cluster, name and id of the topic that records come from."""

    cluster: str
    topic: str
    topic_id: str

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def of(cls, text: str) -> Origin:
        """Parse the text of an origin, as `str` returns it. Missing parts become UNKNOWN."""
        cluster, topic, topic_id = ([*text.rsplit("/", 2), UNKNOWN, UNKNOWN])[:3]
        return cls(cluster, topic, topic_id)

    def is_same(self, other: Origin) -> bool:
        """Return whether the parts that are known in both origins are equal.

        An id can be unknown, for example because a copy of a data directory does not have it.
        """
        return all(one == two or UNKNOWN in (one, two) for one, two in zip(self, other, strict=True))

    def completed(self, other: Origin) -> Origin:
        """Return this origin with its unknown parts taken from the other origin."""
        return Origin(*(two if one == UNKNOWN else one for one, two in zip(self, other, strict=True)))


def of_log(directory: Path, topic: str) -> Origin:
    """Read an origin from a log's partition.metadata and its data directory's meta.properties.

    `directory` is the directory of the log. Ids that cannot be read become UNKNOWN.
    """
    return Origin(
        _property(directory.parent / "meta.properties", "cluster.id", "="),
        topic,
        _property(directory / "partition.metadata", "topic_id", ":"),
    )


def _property(path: Path, name: str, between: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return UNKNOWN
    for line in lines:
        key, _, value = line.partition(between)
        if key.strip() == name:
            return value.strip() or UNKNOWN
    return UNKNOWN

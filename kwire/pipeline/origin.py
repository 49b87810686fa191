"""Where the records of a topic come from: names are given again, ids of topics and clusters are not."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

UNKNOWN: Final = "?"

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics whose records speak of the cluster that they are in."""


class Origin(NamedTuple):
    """Where the records of a topic come from."""

    cluster: str
    topic: str
    topic_id: str

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def of(cls, text: str) -> Origin:
        """Of what is in a map; what is not there is not known."""
        cluster, topic, topic_id = ([*text.rsplit("/", 2), UNKNOWN, UNKNOWN])[:3]
        return cls(cluster, topic, topic_id)

    def is_same(self, other: Origin) -> bool:
        """As far as both are known: a copy of some directories does not tell all."""
        return all(one == two or UNKNOWN in (one, two) for one, two in zip(self, other, strict=True))

    def completed(self, other: Origin) -> Origin:
        """The same, with what is not known here taken from another one."""
        return Origin(*(two if one == UNKNOWN else one for one, two in zip(self, other, strict=True)))


def of_log(directory: Path, topic: str) -> Origin:
    """What the directory of a partition's log tells, and the data directory that it is in."""
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

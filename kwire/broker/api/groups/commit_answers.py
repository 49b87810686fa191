"""The order of topics in the answers to OffsetCommit and TxnOffsetCommit."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar


class _Topic(Protocol):
    partitions: list[Any]


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=_Topic)


def refused_first(refused: dict[K, T], asked: list[T], key: Callable[[T], K]) -> list[T]:
    """Apache Kafka's order: what was refused comes first, and then a topic has one place only."""
    if not refused:
        return asked
    for topic in asked:
        known = refused.setdefault(key(topic), topic)
        if known is not topic:
            known.partitions += topic.partitions
    return list(refused.values())

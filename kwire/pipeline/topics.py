"""Creation of the topics that a job writes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from kwire.pipeline.archive.manifest import ArchiveError
from kwire.pipeline.offset_map import TIMEOUT_SECONDS


def create(
    admin: Any,
    topics: Mapping[str, int],
    settings: Mapping[str, str] | None = None,
    least: Mapping[str, int] | None = None,
) -> None:
    """Create topics with the given numbers of partitions. Raises KafkaException.

    `least` has the number of partitions that an existing topic needs, if it differs from `topics`. Raises
    ArchiveError if an existing topic has fewer partitions.
    """
    if not topics:
        return
    new = [
        NewTopic(name, num_partitions=count, config=dict(settings or {})) for name, count in topics.items()
    ]
    for name, future in admin.create_topics(new).items():
        try:
            future.result(TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            there = len(admin.list_topics(name, TIMEOUT_SECONDS).topics[name].partitions)
            needed = topics[name] if least is None else least.get(name, 0)
            if there < needed:
                raise ArchiveError(
                    f"topic {name} has {there} partitions and needs {needed}: add partitions with "
                    f"kafka-topics --alter, or choose another suffix"
                ) from None

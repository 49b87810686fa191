"""Creation of the topics that a job writes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from kwire.pipeline.archive.manifest import ArchiveError
from kwire.pipeline.offset_map import TIMEOUT_SECONDS
from kwire.wire.plural import plural


def create(
    admin: Any,
    topics: Mapping[str, int],
    settings: Mapping[str, str] | None = None,
    least: Mapping[str, int] | None = None,
) -> None:
    """Create the topics that do not exist, with these numbers of partitions and these configs.

    An existing topic needs at least as many partitions, or as many as `least` has for the topic (0 if it is
    not in `least`). Raises ArchiveError if the topic has fewer, or KafkaException.
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
                    f"topic {name} has {plural(there, 'partition')} and needs {needed}: add partitions with "
                    f"kafka-topics --alter, or choose another suffix"
                ) from None

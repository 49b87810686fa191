"""The source of a mirror: its topics, their ids, configs and end offsets."""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,no-untyped-call"

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, OffsetSpec

from kwire.pipeline.config import ConfigError, Input
from kwire.pipeline.offset_map import RESULT_TIMEOUT_SECONDS, TIMEOUT_SECONDS, DeliveryError
from kwire.pipeline.origin import INTERNAL, Origin, of_log
from kwire.pipeline.segments.options import parse
from kwire.pipeline.sides import split_names


class SourceTopic(NamedTuple):
    """A topic to mirror."""

    origin: Origin
    partitions: int


class Source(Protocol):
    """The interface of a source: a cluster or its data directories."""

    def topics(self) -> dict[str, SourceTopic]:
        """Return the current topics to mirror, by name.

        Raises DeliveryError or SegmentsError if a topic does not exist, or KafkaException.
        """

    def settings(self, topic: str, names: Iterable[str]) -> dict[str, str]:
        """Return configs for the new target topic. `names` are the configs to copy. Raises KafkaException."""


class KafkaSource:
    """A cluster as the source, with the topics that Spark's options select."""

    def __init__(self, client: Mapping[str, str], options: Mapping[str, str]) -> None:
        self.client = dict(client)
        self._admin = AdminClient({"log_level": "5", **client})
        self._options = {name.lower(): value for name, value in options.items()}

    def _wanted(self, there: Iterable[str]) -> list[str]:
        options = self._options
        if "subscribe" in options:
            return [name.strip() for name in options["subscribe"].split(",")]
        if "subscribepattern" in options:
            pattern = re.compile(options["subscribepattern"])
            return sorted(name for name in there if name not in INTERNAL and pattern.fullmatch(name))
        if "assign" in options:
            return sorted(json.loads(options["assign"]))
        raise ConfigError("input.options must have subscribe, subscribePattern or assign")

    def topics(self) -> dict[str, SourceTopic]:
        """Return the current topics to mirror, by name.

        Raises DeliveryError if a topic does not exist or no topic matches, or KafkaException.
        """
        metadata = self._admin.list_topics(timeout=TIMEOUT_SECONDS)
        wanted = self._wanted(metadata.topics)
        missing = sorted(set(wanted) - set(metadata.topics))
        where = self.client["bootstrap.servers"]
        if missing or not wanted:
            visible = ", ".join(sorted(set(metadata.topics) - INTERNAL)) or "none"
            raise DeliveryError(
                f"{where} has no topic {', '.join(missing) or 'that matches'}; its topics: {visible}"
            )
        described = self._admin.describe_topics(TopicCollection(wanted), request_timeout=TIMEOUT_SECONDS)
        return {
            name: SourceTopic(
                Origin(str(metadata.cluster_id), name, _text(found.result(RESULT_TIMEOUT_SECONDS).topic_id)),
                len(metadata.topics[name].partitions),
            )
            for name, found in described.items()
        }

    def settings(self, topic: str, names: Iterable[str]) -> dict[str, str]:
        """Return the named configs that are set on the topic itself. Raises KafkaException."""
        wanted = set(names)
        [found] = self._admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        return {
            name: str(entry.value)
            for name, entry in found.result(RESULT_TIMEOUT_SECONDS).items()
            if name in wanted and entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        }


def _text(topic_id: Any) -> str:
    """Format a topic id as Kafka does."""
    mask = (1 << 64) - 1
    bits = (topic_id.get_most_significant_bits() & mask) << 64 | (
        topic_id.get_least_significant_bits() & mask
    )
    return base64.urlsafe_b64encode(bits.to_bytes(16, "big")).decode().rstrip("=")


class FileSource:
    """The data directories of a broker, or copies of them, as the source."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def topics(self) -> dict[str, SourceTopic]:
        """Return the topics to mirror, by name.

        Raises SegmentsError if a topic does not exist, or DeliveryError if no topic matches.
        """
        found: dict[str, SourceTopic] = {}
        for log in parse(self._options, streaming=True).partitions():
            known = found.get(log.topic)
            if known is None:
                known = SourceTopic(of_log(log.directory, log.topic), 0)
            found[log.topic] = known._replace(partitions=max(known.partitions, log.partition + 1))
        if not found:
            raise DeliveryError(
                f"{self._options.get('path', 'the data directory')} has no topic that matches"
            )
        return found

    def settings(self, topic: str, names: Iterable[str]) -> dict[str, str]:
        """Return unlimited retention whatever `names` are, because the records in files may be old."""
        return {"retention.ms": "-1"}


def named_topics(input_: Input) -> set[str]:
    """Return the topics that an input's options name. It is empty if they have a pattern."""
    options = {name.lower(): value for name, value in input_.options.items()}
    try:
        assigned = set(json.loads(options.get("assign", "{}")))
    except (ValueError, TypeError):
        assigned = set()  # Spark's source reports the error.
    return assigned | split_names(options.get("subscribe", ""))


def source_of(input_: Input, client: Mapping[str, str]) -> Source:
    """Create the source for an input. Raises ConfigError if the cluster's bootstrap servers are missing."""
    if input_.format == "kwire":
        return FileSource(input_.options)
    if "bootstrap.servers" not in client:
        raise ConfigError('input.options."kafka.bootstrap.servers" is missing: set it to the source cluster')
    return KafkaSource(client, input_.options)


def end_offsets(
    client: Mapping[str, str], partitions: Iterable[TopicPartition]
) -> dict[tuple[str, int], int]:
    """Return the last stable offsets of those partitions that exist. Raises KafkaException."""
    specs = {TopicPartition(one.topic, one.partition): OffsetSpec.latest() for one in partitions}
    if not specs:
        return {}
    # Keep a reference to the client, because it must live until the results arrive.
    admin = AdminClient({"log_level": "5", **client})
    futures = admin.list_offsets(
        specs, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_SECONDS
    )
    found = {}
    for partition, future in futures.items():
        try:
            found[partition.topic, partition.partition] = int(future.result(RESULT_TIMEOUT_SECONDS).offset)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return found

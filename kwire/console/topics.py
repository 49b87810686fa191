"""Topics and their partitions: who has them, how large they are, how fast they grow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kwire.cli.shared.cluster import Cluster
from kwire.client.cluster import by_topic
from kwire.client.failure import Lost
from kwire.console.asked import Page, PageAnswer, PageRequest
from kwire.wire.errors import ApiError
from kwire.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from kwire.wire.messages.list_offsets import (
    EARLIEST,
    LATEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kwire.wire.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from kwire.wire.primitives import TopicPartition

AT_ONCE: Final = 100
"""Topics, or partitions, of a page."""

Sizes = Mapping[tuple[str, int, int], int]
"""Bytes by topic, partition and broker."""


def topics_page(asked: PageRequest) -> PageAnswer:
    """Topics by name, those that brokers keep for themselves where they are asked for."""
    pattern, internal = asked.text("q"), bool(asked.text("internal"))
    topics = [
        topic
        for topic in sorted(asked.cluster.metadata(None).topics, key=lambda topic: topic.name or "")
        if (internal or not topic.is_internal) and pattern.lower() in (topic.name or "").lower()
    ]
    part = asked.part_of(topics, AT_ONCE)
    chosen = part["rows"]
    firsts, ends = offsets(asked.cluster, chosen)
    sizes, silent = replica_sizes(asked.cluster, chosen)
    rates = asked.rates.seen(ends)
    return Page(
        "topics.html",
        {
            **part,
            "rows": [_topic_row(topic, firsts, ends, sizes, rates) for topic in chosen],
            "q": pattern,
            "internal": internal,
            "silent": silent,
        },
    )


def topic_page(asked: PageRequest) -> PageAnswer:
    """The partitions of a topic, and a form to write into it. Failure."""
    (topic,) = asked.cluster.topics([asked.topic])
    part = asked.part_of(sorted(topic.partitions, key=lambda one: one.partition_index), AT_ONCE)
    topic.partitions = part["rows"]
    firsts, ends = offsets(asked.cluster, [topic])
    sizes, silent = replica_sizes(asked.cluster, [topic])
    rates = asked.rates.seen(ends)
    rows = [
        {
            "partition": one.partition_index,
            "leader": one.leader_id,
            "epoch": one.leader_epoch,
            "replicas": [
                (broker, broker in one.isr_nodes, sizes.get((asked.topic, one.partition_index, broker)))
                for broker in one.replica_nodes
            ],
            "lacks": lacks(one),
            "first": firsts.get((asked.topic, one.partition_index)),
            "end": ends.get((asked.topic, one.partition_index)),
            "rate": rates.get((asked.topic, one.partition_index)),
            "size": sizes.get((asked.topic, one.partition_index, one.leader_id)),
        }
        for one in topic.partitions
    ]
    return Page(
        "topic.html",
        {
            "topic": asked.topic,
            "is_internal": topic.is_internal,
            **part,
            "rows": rows,
            "silent": silent,
        },
    )


def lacks(partition: MetadataResponsePartition) -> bool:
    """Whether a partition lacks replicas that are in sync, or a leader."""
    return partition.leader_id < 0 or len(partition.isr_nodes) < len(partition.replica_nodes)


def offsets(
    cluster: Cluster, topics: Iterable[MetadataResponseTopic]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """First offsets and ends of partitions, of those whose leaders say them now: nobody is waited for."""
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic in topics:
        for one in topic.partitions:
            if one.leader_id >= 0:
                led[one.leader_id].append((topic.name or "", one.partition_index))
    firsts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for found, timestamp in ((firsts, EARLIEST), (ends, LATEST)):
        for leader, partitions in led.items():
            request = ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(
                        name=name,
                        partitions=[
                            ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                            for index in indexes
                        ],
                    )
                    for name, indexes in by_topic(partitions)
                ],
            )
            try:
                answer = cluster.ask_node(leader, request, ListOffsetsResponse)
            except (ApiError, Lost):
                continue
            for told in answer.topics:
                for each in told.partitions:
                    if not each.error_code:
                        found[told.name, each.partition_index] = each.offset
    return firsts, ends


def replica_sizes(cluster: Cluster, topics: Sequence[MetadataResponseTopic]) -> tuple[Sizes, list[int]]:
    """How large replicas are, and which brokers do not say."""
    asked: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for topic in topics:
        for one in topic.partitions:
            for broker in one.replica_nodes:
                asked[broker][topic.name or ""].append(one.partition_index)
    sizes: dict[tuple[str, int, int], int] = {}
    silent = []
    for broker, named in sorted(asked.items()):
        request = DescribeLogDirsRequest(
            topics=[DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in named.items()]
        )
        try:
            answer = cluster.ask_node(broker, request, DescribeLogDirsResponse)
        except (ApiError, Lost):
            silent.append(broker)
            continue
        for directory in answer.results:
            for found in directory.topics:
                for each in found.partitions:
                    if not each.is_future_key:
                        sizes[found.name, each.partition_index, broker] = each.partition_size
    return sizes, silent


def _topic_row(
    topic: MetadataResponseTopic,
    firsts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    sizes: Sizes,
    rates: Mapping[TopicPartition, float],
) -> dict[str, Any]:
    name = topic.name or ""
    known = [(name, one.partition_index) for one in topic.partitions]
    grown = [rates[one] for one in known if one in rates]
    return {
        "name": name,
        "is_internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replicas": max((len(one.replica_nodes) for one in topic.partitions), default=0),
        "lacking": sum(map(lacks, topic.partitions)),
        "unknown": sum(one not in ends for one in known),
        "messages": sum(ends[one] - firsts.get(one, 0) for one in known if one in ends),
        "size": sum(sizes.get((name, one.partition_index, one.leader_id), 0) for one in topic.partitions),
        "rate": sum(grown) if grown else None,
    }

"""Pages with topics and partitions: replicas, sizes and message rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kwire.cli.admin.topics import is_under_replicated
from kwire.cli.shared.command_client import CommandClient
from kwire.client.errors import Disconnected
from kwire.client.offsets import list_offsets_request
from kwire.console.page import Page, PageRequest, PageResult
from kwire.wire.errors import ApiError
from kwire.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from kwire.wire.messages.list_offsets import EARLIEST, LATEST, ListOffsetsResponse
from kwire.wire.messages.metadata import MetadataResponseTopic
from kwire.wire.primitives import TopicPartition

PAGE_SIZE: Final = 100
"""Topics, or partitions, per page."""

Sizes = Mapping[tuple[str, int, int], int]
"""Sizes in bytes by topic, partition and broker."""


def topics_page(request: PageRequest) -> PageResult:
    """Return the page of topics, sorted by name; internal topics only if the field `internal` is set."""
    pattern, internal = request.text("q"), bool(request.text("internal"))
    topics = [
        topic
        for topic in sorted(request.cluster.metadata(None).topics, key=lambda topic: topic.name or "")
        if (internal or not topic.is_internal) and pattern.lower() in (topic.name or "").lower()
    ]
    part = request.paginate(topics, PAGE_SIZE)
    chosen = part["rows"]
    firsts, ends = offsets(request.cluster, chosen)
    sizes, silent = replica_sizes(request, chosen)
    rates = request.rates.update(ends)
    return Page(
        "topics.html",
        {
            **part,
            "rows": [_topic_row(topic, firsts, ends, sizes, rates) for topic in chosen],
            "q": pattern,
            "internal": internal,
            "silent": silent,
            "has_sizes": sizes is not None,
        },
    )


def topic_page(request: PageRequest) -> PageResult:
    """Return the page of a topic: its partitions, and the form that produces a message.

    Raises CommandError if the topic does not exist.
    """
    (topic,) = request.cluster.topics([request.topic])
    part = request.paginate(sorted(topic.partitions, key=lambda one: one.partition_index), PAGE_SIZE)
    topic.partitions = part["rows"]
    firsts, ends = offsets(request.cluster, [topic])
    sizes, silent = replica_sizes(request, [topic])
    known = sizes or {}
    rates = request.rates.update(ends)
    rows = [
        {
            "partition": one.partition_index,
            "leader": one.leader_id,
            "epoch": one.leader_epoch,
            "replicas": [
                (broker, broker in one.isr_nodes, known.get((request.topic, one.partition_index, broker)))
                for broker in one.replica_nodes
            ],
            "under_replicated": is_under_replicated(one),
            "first": firsts.get((request.topic, one.partition_index)),
            "end": ends.get((request.topic, one.partition_index)),
            "rate": rates.get((request.topic, one.partition_index)),
            "size": known.get((request.topic, one.partition_index, one.leader_id)),
        }
        for one in topic.partitions
    ]
    return Page(
        "topic.html",
        {
            "topic": request.topic,
            "is_internal": topic.is_internal,
            **part,
            "rows": rows,
            "silent": silent,
            "has_sizes": sizes is not None,
        },
    )


def offsets(
    cluster: CommandClient, topics: Iterable[MetadataResponseTopic]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return first offsets and end offsets of partitions whose leaders respond. Failures are not retried."""
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic in topics:
        for one in topic.partitions:
            if one.leader_id >= 0:
                led[one.leader_id].append((topic.name or "", one.partition_index))
    firsts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for found, timestamp in ((firsts, EARLIEST), (ends, LATEST)):
        for leader, partitions in led.items():
            request = list_offsets_request(dict.fromkeys(partitions, timestamp))
            try:
                response = cluster.send_to_node(leader, request, ListOffsetsResponse)
            except (ApiError, Disconnected):
                continue
            for topic_response in response.topics:
                for each in topic_response.partitions:
                    if not each.error_code:
                        found[topic_response.name, each.partition_index] = each.offset
    return firsts, ends


def replica_sizes(
    request: PageRequest, topics: Sequence[MetadataResponseTopic]
) -> tuple[Sizes | None, list[int]]:
    """Return the sizes of replicas, and the ids of brokers that do not respond.

    The sizes are None if the user may not describe the cluster.
    """
    if not request.may_describe_cluster():
        return None, []
    by_broker: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for topic in topics:
        for one in topic.partitions:
            for broker in one.replica_nodes:
                by_broker[broker][topic.name or ""].append(one.partition_index)
    sizes: dict[tuple[str, int, int], int] = {}
    silent = []
    for broker, named in sorted(by_broker.items()):
        describe = DescribeLogDirsRequest(
            topics=[DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in named.items()]
        )
        try:
            response = request.cluster.send_to_node(broker, describe, DescribeLogDirsResponse)
        except (ApiError, Disconnected):
            silent.append(broker)
            continue
        for directory in response.results:
            for found in directory.topics:
                for each in found.partitions:
                    if not each.is_future_key:
                        sizes[found.name, each.partition_index, broker] = each.partition_size
    return sizes, silent


def _topic_row(
    topic: MetadataResponseTopic,
    firsts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    sizes: Sizes | None,
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
        "under_replicated": sum(map(is_under_replicated, topic.partitions)),
        "unknown": sum(one not in ends for one in known),
        "messages": sum(ends[one] - firsts.get(one, 0) for one in known if one in ends),
        "size": None
        if sizes is None
        else sum(sizes.get((name, one.partition_index, one.leader_id), 0) for one in topic.partitions),
        "rate": sum(grown) if grown else None,
    }

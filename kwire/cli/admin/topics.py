"""`kwire topics`: list, describe, create, alter, delete and trim topics."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from kwire.broker.metadata.image import RESOURCE_TOPIC
from kwire.cli.admin.configs import alter_configs, describe_configs
from kwire.cli.shared.actions import Actions
from kwire.cli.shared.client_settings import pairs
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import unknown_topic
from kwire.cli.shared.options import add_repeatable_option, command_parser
from kwire.cli.shared.output import RED, YELLOW, Output, Row
from kwire.client.errors import UnknownPartition, raise_for_code
from kwire.client.offsets import find_offsets
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from kwire.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from kwire.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from kwire.wire.messages.list_offsets import EARLIEST, LATEST
from kwire.wire.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from kwire.wire.plural import plural
from kwire.wire.primitives import TopicPartition, uuid_to_text

END: Final = "end"


def parser(name: str) -> ArgumentParser:
    parser = command_parser(name, "List, describe, create, alter, delete and trim topics.")
    actions = Actions(parser)
    list_ = actions.add("list", _list, "List topics.", "kwire topics list 'orders-*'")
    list_.add_argument("patterns", nargs="*", metavar="PATTERN", help="names or patterns with * and ?")
    list_.add_argument("--names", action="store_true", help="print names only, one per line")
    list_.add_argument("--internal", action="store_true", help="include internal topics")
    describe = actions.add(
        "describe",
        _describe,
        "Show leader, replicas and in-sync replicas of partitions.",
        "kwire topics describe orders --offsets",
    )
    describe.add_argument("patterns", nargs="*", metavar="TOPIC", help="names or patterns with * and ?")
    describe.add_argument("--offsets", action="store_true", help="include first and end offsets")
    describe.add_argument("--configs", action="store_true", help="show topic configurations instead")
    describe.add_argument(
        "--under-replicated",
        action="store_true",
        help="only partitions with an incomplete ISR, or without a leader",
    )
    create = actions.add(
        "create",
        _create,
        "Create a topic.",
        "kwire topics create orders --partitions 12 --replication-factor 3 --config cleanup.policy=compact",
    )
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument(
        "--partitions",
        type=int,
        metavar="N",
        help="number of partitions (default: the broker's num.partitions)",
    )
    create.add_argument(
        "--replication-factor", type=int, metavar="N", help="replicas per partition (default: the broker's)"
    )
    create.add_argument(
        "--replica-assignment",
        metavar="ID:ID,...",
        help="replicas of each partition, preferred leader first, instead of the two options above",
    )
    add_repeatable_option(create, "--config", "KEY=VALUE", "a topic setting")
    create.add_argument("--if-not-exists", action="store_true", help="succeed if the topic exists")
    create.add_argument("--dry-run", action="store_true", help="only validate the request")
    alter = actions.add(
        "alter",
        _alter,
        "Add partitions to a topic, or change its configuration.",
        "kwire topics alter orders --partitions 24 --config retention.ms=86400000",
    )
    alter.add_argument("topic", metavar="TOPIC")
    alter.add_argument("--partitions", type=int, metavar="N", help="the new number of partitions")
    add_repeatable_option(alter, "--config", "KEY=VALUE", "set a topic setting")
    add_repeatable_option(alter, "--delete-config", "KEY", "reset a topic setting to its default")
    alter.add_argument("--dry-run", action="store_true", help="only validate the change")
    delete = actions.add("delete", _delete, "Delete topics and their records.", "kwire topics delete orders")
    delete.add_argument("topics", nargs="+", metavar="TOPIC")
    delete.add_argument("--if-exists", action="store_true", help="succeed if a topic does not exist")
    trim = actions.add(
        "trim",
        _trim,
        "Delete the records before an offset.",
        "kwire topics trim orders --partition 0 --before 1000",
    )
    trim.add_argument("topic", metavar="TOPIC")
    trim.add_argument("--partition", type=int, metavar="N", help="only this partition (default: all)")
    trim.add_argument("--before", required=True, metavar="OFFSET", help="the new log start offset, or 'end'")
    return parser


def _list(cluster: CommandClient, options: Namespace, output: Output) -> None:
    rows = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replicas": max((len(one.replica_nodes) for one in topic.partitions), default=0),
            "under_replicated": sum(map(is_under_replicated, topic.partitions)),
        }
        for topic in _find_topics(cluster, options.patterns)
        if options.internal or not topic.is_internal or options.patterns
    ]
    if options.names:
        output.names(row["topic"] for row in rows)
    else:
        output.show(rows, empty="there are no topics", color=_color)


def _describe(cluster: CommandClient, options: Namespace, output: Output) -> None:
    topics = _find_topics(cluster, options.patterns)
    if not options.patterns:
        topics = [topic for topic in topics if not topic.is_internal]
    if options.configs:
        names = [topic.name or "" for topic in topics]
        rows = [
            {"topic": name, **row}
            for name in names
            for row in describe_configs(cluster, RESOURCE_TOPIC, name, changed_only=True)
        ]
        output.show(rows, empty="these topics have no configuration of their own")
        return
    chosen = [
        (topic, one)
        for topic in topics
        for one in sorted(topic.partitions, key=lambda one: one.partition_index)
        if not options.under_replicated or is_under_replicated(one)
    ]
    starts, ends = _offsets(cluster, chosen) if options.offsets else ({}, {})
    rows = []
    for topic, one in chosen:
        row: dict[str, object] = {
            "topic": topic.name,
            "partition": one.partition_index,
            "leader": one.leader_id if one.leader_id >= 0 else None,
            "replicas": one.replica_nodes,
            "in_sync": one.isr_nodes,
            "under_replicated": is_under_replicated(one),
        }
        if options.offsets:
            key = topic.name or "", one.partition_index
            row |= {"first": starts.get(key), "end": ends.get(key)}
        if output.as_json:
            row["topic_id"] = uuid_to_text(topic.topic_id)
        rows.append(row)
    none = "no partition is under-replicated" if options.under_replicated else "there are no topics"
    output.show(rows, empty=none, color=_color)


def _offsets(
    cluster: CommandClient, chosen: Iterable[tuple[MetadataResponseTopic, MetadataResponsePartition]]
) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
    led = [(topic.name or "", one.partition_index) for topic, one in chosen if one.leader_id >= 0]
    return find_offsets(cluster, dict.fromkeys(led, EARLIEST)), find_offsets(
        cluster, dict.fromkeys(led, LATEST)
    )


def _create(cluster: CommandClient, options: Namespace, output: Output) -> None:
    if options.replica_assignment and (options.partitions or options.replication_factor):
        raise UsageError("--replica-assignment cannot be used with --partitions or --replication-factor")
    for option, value in (
        ("partitions", options.partitions),
        ("replication-factor", options.replication_factor),
    ):
        if value is not None and value < 1:
            raise UsageError(f"--{option} {value}: expected 1 or more")
    topic = CreatableTopic(
        name=options.topic,
        num_partitions=options.partitions or -1,
        replication_factor=options.replication_factor or -1,
        assignments=_assignments(options.replica_assignment),
        configs=[
            CreatableTopicConfig(name=key, value=value)
            for key, value in pairs(options.config, "--config").items()
        ],
    )
    request = CreateTopicsRequest(
        topics=[topic], timeout_ms=cluster.request_timeout_ms, validate_only=options.dry_run
    )

    def attempt() -> CreatableTopicResult | None:
        result = cluster.send_to_controller(request, CreateTopicsResponse).topics[0]
        if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and options.if_not_exists:
            return None
        raise_for_code(result.error_code, result.error_message, f"topic {options.topic}")
        return result

    made = cluster.retry(attempt)
    if not options.dry_run:
        cluster.wait_for_topic(options.topic, _has_leaders)
    created = "can be created" if options.dry_run else "created"
    output.report(
        f"topic {options.topic} already exists"
        if made is None
        else f"topic {options.topic} {created}{_summary(made.num_partitions, made.replication_factor)}",
        topic=options.topic,
        created=made is not None and not options.dry_run,
        dry_run=options.dry_run,
    )


def _has_leaders(topic: MetadataResponseTopic) -> bool:
    return not topic.error_code and all(one.leader_id >= 0 for one in topic.partitions)


def _summary(partitions: int, replicas: int) -> str:
    """Return the counts of a created topic as text; empty if the broker did not return them (KIP-525)."""
    if partitions < 0:
        return ""
    return f" with {plural(partitions, 'partition')}, {plural(replicas, 'replica')} each"


def _assignments(text: str | None) -> list[CreatableReplicaAssignment]:
    if text is None:
        return []
    try:
        return [
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(map(int, part.split(":"))))
            for index, part in enumerate(text.split(","))
        ]
    except ValueError:
        raise UsageError(
            f"--replica-assignment {text}: expected broker ids, like 1:2,2:3 for two partitions"
        ) from None


def _alter(cluster: CommandClient, options: Namespace, output: Output) -> None:
    set_ = pairs(options.config, "--config")
    settings = {**set_, **dict.fromkeys(options.delete_config)}
    if options.partitions is None and not settings:
        raise UsageError("nothing to change: use --partitions, --config or --delete-config")
    if len(settings) < len(set_) + len(set(options.delete_config)):
        raise UsageError("a key is given twice: change it in one way only")
    cluster.topics([options.topic])
    changed, has = ("would change", "would have") if options.dry_run else ("changed", "has")
    if settings:
        alter_configs(cluster, RESOURCE_TOPIC, options.topic, settings, dry_run=options.dry_run)
        output.report(
            f"{changed} {plural(len(settings), 'key')} of topic {options.topic}",
            topic=options.topic,
            keys=list(settings),
            dry_run=options.dry_run,
        )
    if options.partitions is not None:
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=options.topic, count=options.partitions, assignments=None)],
            timeout_ms=cluster.request_timeout_ms,
            validate_only=options.dry_run,
        )

        def attempt() -> None:
            for result in cluster.send_to_controller(request, CreatePartitionsResponse).results:
                raise_for_code(result.error_code, result.error_message, f"topic {options.topic}")

        cluster.retry(attempt)
        if not options.dry_run:
            cluster.wait_for_topic(options.topic, lambda topic: len(topic.partitions) >= options.partitions)
        output.report(
            f"topic {options.topic} {has} {plural(options.partitions, 'partition')}",
            topic=options.topic,
            partitions=options.partitions,
            dry_run=options.dry_run,
        )


def _delete(cluster: CommandClient, options: Namespace, output: Output) -> None:
    existing = {topic.name for topic in cluster.metadata(None).topics}
    missing = [name for name in options.topics if name not in existing]
    if missing and not options.if_exists:
        raise CommandError(f"{unknown_topic(missing[0], filter(None, existing))}; no topic was deleted")
    for name in (name for name in options.topics if name in existing):
        request = DeleteTopicsRequest(topic_names=[name], topics=[], timeout_ms=cluster.request_timeout_ms)

        def attempt(name: str = name, request: DeleteTopicsRequest = request) -> None:
            for result in cluster.send_to_controller(request, DeleteTopicsResponse).responses:
                raise_for_code(result.error_code, result.error_message, f"topic {name}")

        cluster.retry(attempt)
        cluster.wait_for_topic(name, lambda topic: topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        output.report(f"topic {name} deleted", topic=name, deleted=True)
    for name in missing:
        output.report(
            f"there is no topic {name}, or this user may not describe it", topic=name, deleted=False
        )


def _trim(cluster: CommandClient, options: Namespace, output: Output) -> None:
    topic = cluster.topics([options.topic])[0]
    existing = sorted(one.partition_index for one in topic.partitions)
    if options.partition is not None and options.partition not in existing:
        raise UnknownPartition(options.topic, options.partition, len(existing))
    offset = -1
    if options.before != END:
        if not options.before.isdecimal():
            raise UsageError(f"--before {options.before}: expected an offset, or '{END}'")
        offset = int(options.before)
    rows = []
    for partition in existing if options.partition is None else [options.partition]:
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=options.topic,
                    partitions=[DeleteRecordsPartition(partition_index=partition, offset=offset)],
                )
            ],
            timeout_ms=cluster.request_timeout_ms,
        )

        def attempt(partition: int = partition, request: DeleteRecordsRequest = request) -> int:
            leader = cluster.leader(options.topic, partition)
            response = cluster.send_to_node(leader, request, DeleteRecordsResponse)
            found = response.topics[0].partitions[0]
            if found.error_code == ErrorCode.POLICY_VIOLATION:
                raise CommandError(
                    f"{options.topic} is compacted, so its records cannot be deleted by offset: add delete "
                    f"to its cleanup.policy with 'kwire configs alter topic {options.topic} --append "
                    f"cleanup.policy=delete'"
                )
            raise_for_code(found.error_code, None, f"{options.topic}-{partition}")
            return found.low_watermark

        rows.append({"topic": options.topic, "partition": partition, "first": cluster.retry(attempt)})
    output.show(rows, empty="")


def _find_topics(cluster: CommandClient, patterns: Sequence[str]) -> list[MetadataResponseTopic]:
    """Return the topics that match a pattern; without patterns, all topics.

    Raises CommandError for a pattern without a match, or ApiError for a topic with an error.
    """
    topics = sorted(cluster.metadata(None).topics, key=lambda topic: topic.name or "")
    for topic in topics:
        raise_for_code(topic.error_code, None, f"topic {topic.name}")
    names = [topic.name or "" for topic in topics]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise unknown_topic(pattern, names)
    return [
        topic
        for topic in topics
        if not patterns or any(fnmatchcase(topic.name or "", pattern) for pattern in patterns)
    ]


def is_under_replicated(partition: MetadataResponsePartition) -> bool:
    """Return whether a partition has no leader, or an incomplete ISR."""
    return partition.leader_id < 0 or len(partition.isr_nodes) < len(partition.replica_nodes)


def _color(row: Row) -> str | None:
    if "leader" in row and row["leader"] is None:
        return RED
    return YELLOW if row["under_replicated"] else None

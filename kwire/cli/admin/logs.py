"""`kwire logs`: describe the log directories of brokers, move replicas between them, verify their logs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from fnmatch import fnmatchcase

from kwire.cli.files.verify import verify_logs
from kwire.cli.shared.actions import Actions
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.errors import unknown_topic
from kwire.cli.shared.options import command_parser
from kwire.cli.shared.output import RED, YELLOW, Output, Row, format_size
from kwire.client.errors import raise_for_code
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from kwire.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)


def parser(name: str) -> ArgumentParser:
    parser = command_parser(
        name, "Describe the log directories of brokers, move replicas between them, and verify logs."
    )
    actions = Actions(parser)
    list_ = actions.add("list", _list, "List log directories.", "kwire logs list --broker 1")
    describe = actions.add(
        "describe",
        _describe,
        "Show the log directory and size of each replica.",
        "kwire logs describe orders",
    )
    describe.add_argument("patterns", nargs="*", metavar="TOPIC", help="names or patterns with * and ?")
    for action in (list_, describe):
        action.add_argument(
            "--broker",
            type=int,
            action="append",
            metavar="ID",
            help="a broker id; can be repeated (default: all)",
        )
    move = actions.add(
        "move",
        _move,
        "Start moving a replica to another log directory of its broker.",
        "kwire logs move orders --partition 0 --broker 1 --to /mnt/disk2",
    )
    move.add_argument("topic", metavar="TOPIC")
    move.add_argument("--partition", type=int, required=True, metavar="N", help="the partition")
    move.add_argument("--broker", type=int, required=True, metavar="ID", help="the broker with the replica")
    move.add_argument("--to", required=True, metavar="DIR", help="the directory, as in the broker's log.dirs")
    verify = actions.add_offline(
        "verify",
        verify_logs,
        "Find batches that Kafka's clients or Apache Kafka cannot read, without a broker.",
        "kwire logs verify kwire-data",
    )
    verify.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a data directory, a partition's directory or a segment (.log)",
    )
    return parser


def _list(cluster: CommandClient, options: Namespace, output: Output) -> None:
    def size(size_bytes: int) -> object:
        if size_bytes < 0:
            return None
        return size_bytes if output.as_json else format_size(size_bytes)

    rows = [
        {
            "broker": node_id,
            "directory": one.log_dir,
            "state": _state(one),
            "partitions": sum(len(topic.partitions) for topic in one.topics),
            "size": size(sum(each.partition_size for topic in one.topics for each in topic.partitions)),
            "free": size(one.usable_bytes),
            "disk": size(one.total_bytes),
        }
        for node_id, one in _directories(cluster, options.broker)
    ]
    output.show(
        rows,
        empty="there are no log directories",
        color=lambda row: RED if row["state"] != "online" else None,
    )


def _state(found: DescribeLogDirsResult) -> str:
    if found.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
        return "offline"
    raise_for_code(found.error_code, None, f"directory {found.log_dir}")
    return "cordoned" if found.is_cordoned else "online"


def _describe(cluster: CommandClient, options: Namespace, output: Output) -> None:
    found = _directories(cluster, options.broker)
    if options.patterns:
        names = {topic.name for _, one in found for topic in one.topics}
        names |= {topic.name or "" for topic in cluster.metadata(None).topics}
        for pattern in options.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise unknown_topic(pattern, names)
    rows: list[Row] = [
        {
            "topic": topic.name,
            "partition": each.partition_index,
            "broker": node_id,
            "directory": one.log_dir,
            "size": each.partition_size if output.as_json else format_size(each.partition_size),
            "lag": each.offset_lag,
            "moving_here": each.is_future_key,
        }
        for node_id, one in found
        for topic in one.topics
        for each in topic.partitions
        if not options.patterns or any(fnmatchcase(topic.name, pattern) for pattern in options.patterns)
    ]
    rows.sort(key=lambda row: (row["topic"], row["partition"], row["broker"]))
    output.show(
        rows,
        empty="there are no such replicas",
        color=lambda row: YELLOW if row["lag"] or row["moving_here"] else None,
    )


def _directories(
    cluster: CommandClient, brokers: Sequence[int] | None
) -> list[tuple[int, DescribeLogDirsResult]]:
    chosen = [cluster.broker(node_id) for node_id in brokers or sorted(cluster.brokers())]
    found = []
    for node_id in chosen:

        def attempt(node_id: int = node_id) -> list[DescribeLogDirsResult]:
            response = cluster.send_to_node(
                node_id, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse
            )
            raise_for_code(response.error_code, None, f"the log directories of broker {node_id}")
            return response.results

        found += [(node_id, one) for one in cluster.retry(attempt)]
    return found


def _move(cluster: CommandClient, options: Namespace, output: Output) -> None:
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=options.to,
                topics=[AlterReplicaLogDirTopic(name=options.topic, partitions=[options.partition])],
            )
        ]
    )
    name = f"{options.topic}-{options.partition}"

    def locations() -> list[tuple[str, bool]]:
        """Return the directories with this replica, and whether each is the target of a running move."""
        return [
            (one.log_dir, each.is_future_key)
            for _, one in _directories(cluster, [options.broker])
            for topic in one.topics
            for each in topic.partitions
            if (topic.name, each.partition_index) == (options.topic, options.partition)
        ]

    def attempt() -> None:
        response = cluster.send_to_node(options.broker, request, AlterReplicaLogDirsResponse)
        code = response.results[0].partitions[0].error_code
        if code in (ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise CommandError(f"broker {options.broker} has no replica of {name}: see 'kwire logs describe'")
        raise_for_code(code, None, f"{name} to {options.to}")

    before = locations()
    cluster.retry(attempt)
    after = locations()
    # Paths can be written in several ways, so compare what the broker reports before and after.
    is_there = [is_future for _, is_future in after] == [False] and set(after) <= set(before)
    output.report(
        f"{name} is already in {options.to}"
        if is_there
        else f"moving {name} to {options.to}: 'kwire logs describe {options.topic}' shows the progress",
        topic=options.topic,
        partition=options.partition,
        broker=options.broker,
        to=options.to,
        moving=not is_there,
    )

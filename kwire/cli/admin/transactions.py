"""`kwire transactions`: list and describe transactions and producers, and abort hanging transactions."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kwire.cli.records.positions import parse_timestamp
from kwire.cli.shared.actions import Actions
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.options import add_repeatable_option, command_parser
from kwire.cli.shared.output import RED, YELLOW, Output, Row, format_time
from kwire.client.cluster_client import group_by_topic
from kwire.client.errors import raise_for_code
from kwire.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from kwire.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from kwire.wire.messages.find_coordinator import TRANSACTION
from kwire.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kwire.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from kwire.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kwire.wire.primitives import TopicPartition

NO_START: Final = -1


class PartitionProducer(NamedTuple):
    """The state of a producer in one partition."""

    partition: TopicPartition
    state: ProducerState

    @property
    def txn_start_offset(self) -> int | None:
        """The first offset of the producer's open transaction in this partition, or None without one."""
        at = self.state.current_txn_start_offset
        return None if at == NO_START else at


def parser(name: str) -> ArgumentParser:
    parser = command_parser(name, "List and describe transactions and producers, and abort transactions.")
    actions = Actions(parser)
    list_ = actions.add("list", _list, "List transactional ids.", "kwire transactions list --state Ongoing")
    add_repeatable_option(list_, "--state", "STATE", "only this state")
    list_.add_argument("--older-than", metavar="10m", help="only transactions that are open for longer")
    describe = actions.add(
        "describe",
        _describe,
        "Show the state and partitions of transactional ids.",
        "kwire transactions describe pay",
    )
    describe.add_argument("ids", nargs="+", metavar="ID")
    producers = actions.add(
        "producers",
        _producers,
        "Show the active producers of partitions.",
        "kwire transactions producers orders",
    )
    producers.add_argument("topics", nargs="+", metavar="TOPIC")
    producers.add_argument("--partition", type=int, metavar="N", help="only this partition (default: all)")
    hanging = actions.add(
        "find-hanging",
        _find_hanging,
        "Find transactions that are open in a partition, but unknown to every coordinator.",
        "kwire transactions find-hanging orders",
    )
    hanging.add_argument("topics", nargs="*", metavar="TOPIC", help="a topic (default: all topics)")
    hanging.add_argument(
        "--older-than", default="15m", metavar="15m", help="only if the last write is older (default: 15m)"
    )
    abort = actions.add(
        "abort",
        _abort,
        "Show the open transaction at an offset, and abort it with --execute.",
        "kwire transactions abort orders --partition 0 --start-offset 17 --execute",
    )
    abort.add_argument("topic", metavar="TOPIC")
    abort.add_argument("--partition", type=int, required=True, metavar="N", help="the partition")
    abort.add_argument(
        "--start-offset",
        type=int,
        required=True,
        metavar="OFFSET",
        help="the transaction's first offset, as shown by 'producers' and 'find-hanging'",
    )
    abort.add_argument("--execute", action="store_true", help="abort the transaction")
    end = actions.add(
        "terminate",
        _terminate,
        "Abort the open transaction of a transactional id, and fence its producer.",
        "kwire transactions terminate pay",
    )
    end.add_argument("id", metavar="ID")
    return parser


def _list(cluster: CommandClient, options: Namespace, output: Output) -> None:
    now_ms = _now_ms()
    age_ms = (
        -1
        if options.older_than is None
        else now_ms - parse_timestamp(options.older_than, now_ms, "--older-than")
    )
    output.show(
        list_transactions(cluster, options.state, age_ms),
        empty="there are no such transactional ids that this user may describe",
    )


def list_transactions(cluster: CommandClient, states: Sequence[str] = (), age_ms: int = -1) -> list[Row]:
    """Return the transactional ids of all coordinators. Raises UsageError, ApiError, Disconnected.

    `age_ms` selects transactions that are open for longer; -1 selects all. Without states, all are selected.
    """
    rows: list[Row] = []
    for node_id in sorted(cluster.brokers()):
        request = ListTransactionsRequest(
            state_filters=list(states), producer_id_filters=[], duration_filter=age_ms
        )

        def attempt(
            node_id: int = node_id, request: ListTransactionsRequest = request
        ) -> ListTransactionsResponse:
            response = cluster.send_to_node(node_id, request, ListTransactionsResponse)
            raise_for_code(response.error_code, None, f"the transactions of broker {node_id}")
            return response

        response = cluster.retry(attempt)
        if response.unknown_state_filters:
            raise UsageError(
                f"--state {response.unknown_state_filters[0]} is not a state: expected Ongoing, "
                f"PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort or Empty"
            )
        rows += [
            {
                "transactional_id": one.transactional_id,
                "state": one.transaction_state,
                "producer_id": one.producer_id,
                "coordinator": node_id,
            }
            for one in response.transaction_states
        ]
    rows.sort(key=lambda row: str(row["transactional_id"]))
    return rows


def _describe(cluster: CommandClient, options: Namespace, output: Output) -> None:
    rows = []
    for name in options.ids:
        one = describe_transaction(cluster, name)
        began = one.transaction_start_time_ms
        rows.append(
            {
                "transactional_id": name,
                "state": one.transaction_state,
                "producer_id": one.producer_id,
                "epoch": one.producer_epoch,
                "start_time": format_time(began),
                "timeout_ms": one.transaction_timeout_ms,
                "partitions": [
                    f"{topic.topic}-{index}" for topic in one.topics for index in topic.partitions
                ],
            }
        )
    output.show(rows, empty="")


def describe_transaction(cluster: CommandClient, name: str) -> TransactionState:
    """Return the transaction state of a transactional id from its coordinator.

    Raises ApiError or Disconnected.
    """
    request = DescribeTransactionsRequest(transactional_ids=[name])

    def attempt() -> TransactionState:
        response = cluster.send_to_coordinator(name, request, DescribeTransactionsResponse, TRANSACTION)
        raise_for_code(response.transaction_states[0].error_code, None, f"transactional id {name}")
        return response.transaction_states[0]

    return cluster.retry(attempt)


def _producers(cluster: CommandClient, options: Namespace, output: Output) -> None:
    partitions = [
        (topic.name or "", index)
        for topic in cluster.topics(options.topics)
        for index in (
            [one.partition_index for one in topic.partitions]
            if options.partition is None
            else [options.partition]
        )
    ]
    rows = [
        {
            "topic": producer.partition[0],
            "partition": producer.partition[1],
            "producer_id": producer.state.producer_id,
            "epoch": producer.state.producer_epoch,
            "last_sequence": producer.state.last_sequence,
            "last_timestamp": format_time(producer.state.last_timestamp),
            "coordinator_epoch": producer.state.coordinator_epoch,
            "txn_start_offset": producer.txn_start_offset,
        }
        for producer in describe_producers(cluster, partitions)
    ]
    output.show(
        rows,
        empty="there are no active producers",
        color=lambda row: None if row["txn_start_offset"] is None else YELLOW,
    )


def describe_producers(
    cluster: CommandClient, partitions: Sequence[TopicPartition]
) -> Iterator[PartitionProducer]:
    """Yield the active producers of partitions, in the order of leaders, then of partitions.

    Raises CommandError, UnknownPartition, ApiError or Disconnected.
    """
    for leader, led in sorted(cluster.leaders(sorted(partitions)).items()):
        request = DescribeProducersRequest(
            topics=[
                TopicRequest(name=topic, partition_indexes=indexes) for topic, indexes in group_by_topic(led)
            ]
        )
        response = cluster.send_to_node(leader, request, DescribeProducersResponse)
        for topic in response.topics:
            for one in topic.partitions:
                raise_for_code(one.error_code, one.error_message, f"{topic.name}-{one.partition_index}")
                for state in sorted(one.active_producers, key=lambda state: state.producer_id):
                    yield PartitionProducer((topic.name, one.partition_index), state)


def _find_hanging(cluster: CommandClient, options: Namespace, output: Output) -> None:
    before_ms = parse_timestamp(options.older_than, _now_ms(), "--older-than")
    names = options.topics or sorted(topic.name or "" for topic in cluster.metadata(None).topics)
    partitions = [
        (topic.name or "", one.partition_index)
        for topic in cluster.topics(names)
        for one in topic.partitions
        if one.leader_id >= 0
    ]
    rows = []
    with output.progress("producers checked") as progress:
        producers = cluster.retry(lambda: list(describe_producers(cluster, partitions)))
        for number, producer in enumerate(producers):
            progress.update(number, len(producers))
            if producer.txn_start_offset is None or producer.state.last_timestamp > before_ms:
                continue
            if not _is_known(cluster, producer):
                rows.append(
                    {
                        "topic": producer.partition[0],
                        "partition": producer.partition[1],
                        "start_offset": producer.txn_start_offset,
                        "producer_id": producer.state.producer_id,
                        "epoch": producer.state.producer_epoch,
                        "last_timestamp": format_time(producer.state.last_timestamp),
                    }
                )
    output.show(rows, empty="there are no hanging transactions", color=lambda row: RED)
    if rows:
        output.note("'kwire transactions abort' ends one, so that read_committed consumers can continue")


def _is_known(cluster: CommandClient, producer: PartitionProducer) -> bool:
    """Return whether a coordinator knows the transaction, and so will complete it."""
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[producer.state.producer_id])
    for node_id in sorted(cluster.brokers()):
        for one in cluster.send_to_node(node_id, request, ListTransactionsResponse).transaction_states:
            state = describe_transaction(cluster, one.transactional_id)
            if any(
                producer.partition == (topic.topic, index)
                for topic in state.topics
                for index in topic.partitions
            ):
                return True
    return False


def _abort(cluster: CommandClient, options: Namespace, output: Output) -> None:
    partition = options.topic, options.partition
    open_ = [
        one
        for one in cluster.retry(lambda: list(describe_producers(cluster, [partition])))
        if one.txn_start_offset is not None
    ]
    found = next((one for one in open_ if one.txn_start_offset == options.start_offset), None)
    if found is None:
        known = (
            f"open transactions start at offsets {', '.join(str(one.txn_start_offset) for one in open_)}"
            if open_
            else "the partition has no open transaction"
        )
        raise CommandError(
            f"no open transaction of {options.topic}-{options.partition} starts at offset "
            f"{options.start_offset}: {known}"
        )
    if options.execute:
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=found.state.producer_id,
                    producer_epoch=found.state.producer_epoch,
                    transaction_result=False,
                    # The coordinator epoch is -1 until the first marker.
                    coordinator_epoch=max(0, found.state.coordinator_epoch),
                    topics=[
                        WritableTxnMarkerTopic(name=options.topic, partition_indexes=[options.partition])
                    ],
                )
            ]
        )

        def attempt() -> None:
            leader = cluster.leader(*partition)
            response = cluster.send_to_node(leader, request, WriteTxnMarkersResponse)
            raise_for_code(response.markers[0].topics[0].partitions[0].error_code, None, "the marker")

        cluster.retry(attempt)
    output.report(
        f"the transaction of producer {found.state.producer_id} that starts at offset "
        f"{found.txn_start_offset} "
        + ("was aborted" if options.execute else "would be aborted: use --execute to abort it"),
        topic=options.topic,
        partition=options.partition,
        start_offset=found.txn_start_offset,
        producer_id=found.state.producer_id,
        aborted=options.execute,
    )


def _terminate(cluster: CommandClient, options: Namespace, output: Output) -> None:
    state = describe_transaction(cluster, options.id)
    request = InitProducerIdRequest(
        transactional_id=options.id, transaction_timeout_ms=max(1, state.transaction_timeout_ms)
    )

    def attempt() -> None:
        response = cluster.send_to_coordinator(options.id, request, InitProducerIdResponse, TRANSACTION)
        raise_for_code(response.error_code, None, f"transactional id {options.id}")

    cluster.retry(attempt)
    output.report(
        f"the open transaction of transactional id {options.id} was aborted, if there was one, and its "
        f"producer was fenced",
        transactional_id=options.id,
        terminated=True,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

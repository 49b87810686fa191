"""InitProducerId v0–5, AddPartitionsToTxn v0–5, AddOffsetsToTxn v0–4, EndTxn v0–5.

InitProducerId (KIP-98, KIP-360, KIP-588): without a transactional id, each request gets a new producer id
with epoch 0, even if the producer already has an id.

AddPartitionsToTxn (KIP-98, KIP-890): clients send v0–3 with one transaction, and brokers send v4–5 with
several. Either all partitions of a transaction are added or none. If a partition does not exist, the other
partitions get OPERATION_NOT_ATTEMPTED. AddOffsetsToTxn adds a group's partition of the offsets topic.

EndTxn (KIP-98, KIP-890) commits or aborts. From v5 on, the response has the next transaction's
producer id and epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.api.request.gate import SLICE_ITEMS
from kwire.broker.api.request.slices import complete_delayed, handle_in_slices, slices_of
from kwire.broker.metadata.topic_names import GROUP_METADATA_TOPIC, is_internal
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch
from kwire.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kwire.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from kwire.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from kwire.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kwire.wire.primitives import TopicPartition

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole

FIRST_INIT_WITH_FENCED = 4
FIRST_VERSION_OF_BROKERS = 4
FIRST_VERSION_WITH_FENCED = 2
CLIENT_VERSION, BROKER_VERSION = 0, 2
"""The transaction versions of clients that send AddPartitionsToTxn, and of those whose broker sends it."""
OnTopicResults = Callable[[list[AddPartitionsToTxnTopicResult]], None]
FIRST_VERSION_THAT_RAISES_EPOCHS = 5


def init_producer_id(
    node: BrokerRole, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Delayed:
    """Return a producer id and epoch. With a transactional id, the transaction coordinator assigns them.

    Raises ApiError INVALID_REQUEST if the request has only one of producer id and epoch, or
    COORDINATOR_LOAD_IN_PROGRESS until the controller has allocated a block of producer ids.
    """
    _require_producer_id(node, context, request.transactional_id)
    knows_id = request.producer_id != NO_PRODUCER_ID
    knows_epoch = request.producer_epoch != NO_PRODUCER_EPOCH
    if knows_id != knows_epoch:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch) if knows_id else None

        def done(result: ProducerIdAndEpoch | ApiError) -> None:
            if isinstance(result, ApiError):
                code = error_for_version(result.code, context.api_version, FIRST_INIT_WITH_FENCED)
                context.refuse(ApiError(code))
            else:
                context.complete(
                    InitProducerIdResponse(producer_id=result.producer_id, producer_epoch=result.epoch)
                )

        node.transactions.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, expected, done
        )
        return DELAYED
    return InitProducerIdResponse(producer_id=node.producer_ids.next(), producer_epoch=0)


def _require_producer_id(node: BrokerRole, context: RequestContext, transactional_id: str | None) -> None:
    """Raise ApiError unless the client may get a producer id."""
    gate = node.gate
    if transactional_id is not None:
        gate.require(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    elif not (
        gate.allows(context, Operation.IDEMPOTENT_WRITE, is_asked=False)
        or gate.allows_any(context, Operation.WRITE, ResourceType.TOPIC)
    ):
        gate.report_denied(context, Operation.IDEMPOTENT_WRITE)
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def add_partitions_to_txn(
    node: BrokerRole, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Delayed:
    """Add or verify partitions. Respond after every addition is committed to the log or is rejected."""
    if context.api_version < FIRST_VERSION_OF_BROKERS:
        return handle_in_slices(context, _add_of_client(node, context, request))
    node.gate.require(context, Operation.CLUSTER_ACTION)
    response = AddPartitionsToTxnResponse()
    left = len(request.transactions)
    if not left:
        context.complete(response)
    for transaction in request.transactions:
        topics = transaction.topics
        result = AddPartitionsToTxnResult(transactional_id=transaction.transactional_id)
        response.results_by_transaction.append(result)

        def on_results(
            results: list[AddPartitionsToTxnTopicResult], result: AddPartitionsToTxnResult = result
        ) -> None:
            nonlocal left
            result.topic_results = results
            left -= 1
            if not left:
                context.complete(response)

        producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
        codes = _checked(node, _partitions(topics))
        if _is_refused(codes):
            on_results(_by_topic(codes))
        elif transaction.verify_only:
            _verify(node, transaction.transactional_id, producer, topics, on_results)
        else:
            _add(node, context, transaction.transactional_id, producer, topics, on_results)
    return DELAYED


def _add_of_client(
    node: BrokerRole, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Generator[None, None, AddPartitionsToTxnResponse | Delayed]:
    """Handle the request of a client, which has one transaction. Each denied topic may take a log line."""
    transactional_id = request.v3_and_below_transactional_id
    topics = request.v3_and_below_topics
    node.gate.require(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    partitions = _partitions(topics)
    references = Counter(name for name, _ in partitions)
    may_write = Operation.WRITE, ResourceType.TOPIC
    denied = set()
    for number, (name, count) in enumerate(references.items(), 1):
        if is_internal(name) or not node.gate.allows(context, *may_write, name, references=count):
            denied.add(name)
        if not number % SLICE_ITEMS:
            yield
    codes: dict[TopicPartition, ErrorCode] = {}
    for some in slices_of(partitions):
        codes.update(_checked(node, some, denied))
        yield
    if _is_refused(codes):
        by_topic: dict[str, AddPartitionsToTxnTopicResult] = {}
        for results in slices_of(list(codes.items())):
            _add_results(by_topic, results)
            yield
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=list(by_topic.values()))

    def respond(results: list[AddPartitionsToTxnTopicResult]) -> None:
        complete_delayed(
            node.host, context, AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
        )

    producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    _add(node, context, transactional_id, producer, topics, respond)
    return DELAYED


def _add(
    node: BrokerRole,
    context: RequestContext,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topics: Sequence[AddPartitionsToTxnTopic],
    on_results: OnTopicResults,
) -> None:
    version = context.api_version

    def done(code: ErrorCode) -> None:
        on_results(_all_with(topics, error_for_version(code, version)))

    client_version = CLIENT_VERSION if version < FIRST_VERSION_OF_BROKERS else BROKER_VERSION
    node.transactions.add_partitions(transactional_id, producer, _partitions(topics), client_version, done)


def _verify(
    node: BrokerRole,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topics: Sequence[AddPartitionsToTxnTopic],
    on_results: OnTopicResults,
) -> None:
    partitions = _partitions(topics)

    def done(codes: Mapping[TopicPartition, ErrorCode] | ApiError) -> None:
        if isinstance(codes, ApiError):
            codes = dict.fromkeys(partitions, ErrorCode(codes.code))
        on_results(_by_topic(codes))

    node.transactions.verify_partitions(transactional_id, producer, partitions, done)


def _checked(
    node: BrokerRole, partitions: Sequence[TopicPartition], denied: Collection[str] = ()
) -> dict[TopicPartition, ErrorCode]:
    """Return the error of each partition that cannot be added, and OPERATION_NOT_ATTEMPTED for the others.

    A partition cannot be added if it does not exist. A client cannot add a partition of an internal topic, or
    of a topic to which it may not write: those of the topics in `denied`.
    """
    codes = dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED)
    for name, index in codes:
        if name in denied:
            codes[name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not node.partition_exists(name, index):
            codes[name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes


def _is_refused(codes: Mapping[TopicPartition, ErrorCode]) -> bool:
    """Return whether a partition cannot be added. Then no partition of the transaction is added."""
    return any(code != ErrorCode.OPERATION_NOT_ATTEMPTED for code in codes.values())


def _partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _all_with(
    topics: Sequence[AddPartitionsToTxnTopic], code: ErrorCode
) -> list[AddPartitionsToTxnTopicResult]:
    """Return the same code for all partitions, in the order of the request."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _by_topic(codes: Mapping[TopicPartition, ErrorCode]) -> list[AddPartitionsToTxnTopicResult]:
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    _add_results(topics, codes.items())
    return list(topics.values())


def _add_results(
    topics: dict[str, AddPartitionsToTxnTopicResult], codes: Iterable[tuple[TopicPartition, ErrorCode]]
) -> None:
    for (name, index), code in codes:
        topic = topics.setdefault(name, AddPartitionsToTxnTopicResult(name=name))
        topic.results_by_partition.append(
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
        )


def error_for_version(code: ErrorCode, version: int, since: int = FIRST_VERSION_WITH_FENCED) -> ErrorCode:
    """Return INVALID_PRODUCER_EPOCH in place of PRODUCER_FENCED for versions below `since`. KIP-588."""
    if code == ErrorCode.PRODUCER_FENCED and version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def add_offsets_to_txn(node: BrokerRole, context: RequestContext, request: AddOffsetsToTxnRequest) -> Delayed:
    def done(code: ErrorCode) -> None:
        context.complete(AddOffsetsToTxnResponse(error_code=error_for_version(code, context.api_version)))

    node.transactions.add_partitions(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        [(GROUP_METADATA_TOPIC, node.groups.offsets_partition(request.group_id))],
        CLIENT_VERSION,
        done,
    )
    return DELAYED


def end_txn(node: BrokerRole, context: RequestContext, request: EndTxnRequest) -> Delayed:
    """Respond when the decision to commit or abort is in the log. The markers are written after that."""
    version = context.api_version

    def done(result: ProducerIdAndEpoch | ApiError) -> None:
        if isinstance(result, ApiError):
            context.complete(EndTxnResponse(error_code=error_for_version(result.code, version)))
        elif version < FIRST_VERSION_THAT_RAISES_EPOCHS:
            context.complete(EndTxnResponse())
        else:
            context.complete(EndTxnResponse(producer_id=result.producer_id, producer_epoch=result.epoch))

    node.transactions.end(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        commit=request.committed,
        client_version=2 if version >= FIRST_VERSION_THAT_RAISES_EPOCHS else 0,
        done=done,
    )
    return DELAYED

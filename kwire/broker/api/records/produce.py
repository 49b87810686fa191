"""Produce v3–13 (v0–2 are advertised but rejected, KAFKA-18659). KIP-98, KIP-467 (record errors), KIP-516.

Order of checks per partition: topic id and existence, a single batch of magic 2, acks, internal topic,
leader; then the log checks size, CRC, records and sequence. The response waits until every append meets
`acks` or has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.api.request.error_responses import error_response
from kwire.broker.api.request.slices import (
    LARGE_PRODUCE_BYTES,
    SLICE_PARTITIONS,
    InSlices,
    Steps,
    complete_in_slices,
    respond_with,
    slices_of,
)
from kwire.broker.api.transactions.verification import ErrorWithMessage, verify_transaction
from kwire.broker.metadata.topic_names import is_internal
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.storage.log.validator import RecordErrors, check_produced, leading_header
from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import BatchHeader
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kwire.wire.primitives import ZERO_UUID, Uuid

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole
    from kwire.broker.replication.partition import Partition

ACKS_ALL = -1
FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_THAT_ADDS_TO_TRANSACTIONS = 12
FIRST_VERSION_WITH_ABORTABLE = 11
FIRST_VERSION_WITH_CURRENT_LEADER = 10
LARGE_PRODUCE: Final = 1024
"""The number of partitions above which a Produce is handled in slices."""
NAMED_TWICE: Final = "A partition is named more than once."
ADMIN_CLIENT_ID = "__admin_client"
"""Requests with this client id may write to internal topics, as in Kafka."""


def handle(node: BrokerRole, context: RequestContext, request: ProduceRequest) -> ProduceResponse | Delayed:
    """Append to each partition. Respond after every append meets `acks` or has failed."""
    if context.size_bytes > LARGE_PRODUCE_BYTES:
        return InSlices(_Produce(node, context, request).in_slices())
    produce = _Produce(node, context, request)
    try:
        # These checks come first. If one fails, the whole request fails.
        headers: list[BatchHeader | None] = []
        in_transaction = False
        for topic in request.topic_data:
            for data in topic.partition_data:
                records = data.records
                assert records is None or isinstance(records, memoryview)  # the decoder returns no other type
                header = leading_header(records)
                headers.append(header)
                if header is not None and header.is_transactional:
                    in_transaction = True
        if len(headers) > 1:
            if len(headers) > LARGE_PRODUCE:
                return InSlices(produce.in_slices())
            _check_named_once(request, len(headers))
        if in_transaction or produce.is_denied_in_transaction():
            produce.require_transactional_id()
    except ApiError as error:
        return InSlices(produce.fail_request(error))
    produce.append_all(request.topic_data, headers)
    produce.all_sent = True
    produce.maybe_finish()
    return DELAYED


def _check_named_once(request: ProduceRequest, count: int) -> None:
    """Check that no partition occurs twice. Raises ApiError INVALID_REQUEST."""
    named = {
        (topic.name, topic.topic_id, data.index)
        for topic in request.topic_data
        for data in topic.partition_data
    }
    if len(named) < count:
        raise ApiError(ErrorCode.INVALID_REQUEST, NAMED_TWICE)


class _Produce:
    """One Produce request: the response so far, and the number of pending appends."""

    __slots__ = (
        "_context",
        "_is_large",
        "_node",
        "_request",
        "_response",
        "_version",
        "_waiting",
        "all_sent",
    )

    def __init__(self, node: BrokerRole, context: RequestContext, request: ProduceRequest) -> None:
        self._node = node
        self._context = context
        self._request = request
        self._version = context.api_version
        self._response = ProduceResponse(responses=[])
        self._waiting = 0
        self.all_sent = False
        """Whether every batch was appended or was rejected."""
        self._is_large = False

    def append_all(self, topics: Sequence[TopicProduceData], headers: Sequence[BatchHeader | None]) -> None:
        """Append the batches of these partitions: all of the request, or a slice of one topic.

        `headers` has the header of each batch in this order; None for an incomplete batch.
        """
        node = self._node
        read = iter(headers)
        for topic in topics:
            topic_id: Uuid = ZERO_UUID
            name: str | None = topic.name
            if self._version >= FIRST_VERSION_WITH_TOPIC_IDS:
                topic_id = topic.topic_id
                name = node.image.name_of(topic_id)
            topic_response = TopicProduceResponse(name=name or "", topic_id=topic_id, partition_responses=[])
            self._response.responses.append(topic_response)
            for data in topic.partition_data:
                partition_response = PartitionProduceResponse(index=data.index, base_offset=-1)
                topic_response.partition_responses.append(partition_response)
                header = next(read)
                try:
                    if name is None:
                        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
                    partition: Partition | ApiError | None = node.partition(name, data.index)
                    if partition is None:
                        partition = node.missing_partition_error(name, data.index)
                        if partition.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                            raise partition
                    self._append(name, partition, data, header, partition_response)
                except ApiError as error:
                    self._fail_partition(name or "", partition_response, error)

    def in_slices(self) -> Steps:
        """Handle a Produce for many partitions like `handle`, in slices of the partitions."""
        self._is_large = True
        request = self._request
        headers: list[BatchHeader | None] = []
        named: set[tuple[str, Uuid, int]] = set()
        in_transaction = False
        try:
            for topic in request.topic_data:
                for data in topic.partition_data:
                    records = data.records
                    assert records is None or isinstance(records, memoryview)
                    header = leading_header(records)
                    headers.append(header)
                    in_transaction |= header is not None and header.is_transactional
                    named.add((topic.name, topic.topic_id, data.index))
                    if not len(headers) % SLICE_PARTITIONS:
                        yield None
            if len(named) < len(headers):
                raise ApiError(ErrorCode.INVALID_REQUEST, NAMED_TWICE)
            if in_transaction or self.is_denied_in_transaction():
                self.require_transactional_id()
        except ApiError as error:
            return (yield from self.fail_request(error))
        appended = in_slice = 0
        for part in self._parts(request):
            count = len(part.partition_data)
            self.append_all([part], headers[appended : appended + count])
            appended += count
            in_slice += 1 + count
            if in_slice > SLICE_PARTITIONS:
                in_slice = 0
                yield None
        self.all_sent = True
        if not self._waiting and request.acks != 0:
            return self._response
        self.maybe_finish()
        return DELAYED

    def _parts(self, request: ProduceRequest) -> Iterator[TopicProduceData]:
        """Yield the topics of a request in slices. The caller adds what it responds to each slice."""
        responses = self._response.responses
        for topic in request.topic_data:
            for some in list(slices_of(topic.partition_data)) or [[]]:
                yield TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=list(some))
                if some and some[0] is not topic.partition_data[0]:
                    rest = responses.pop()
                    responses[-1].partition_responses += rest.partition_responses

    def is_denied_in_transaction(self) -> bool:
        """Return whether the request had a transactional batch for a topic to which the client may not write.

        The error of the transactional id comes before the errors of topics.
        """
        if self._context.results is None:
            return False
        request = self._context.request
        assert isinstance(request, ProduceRequest)
        for topic in request.topic_data:
            for data in topic.partition_data:
                assert data.records is None or isinstance(data.records, memoryview)
                header = leading_header(data.records)
                if header is not None and header.is_transactional:
                    return True
        return False

    def require_transactional_id(self) -> None:
        """Check that a request with a transactional batch may use its transactional id. Raises ApiError."""
        transactional_id, need = self._request.transactional_id, ResourceType.TRANSACTIONAL_ID
        if transactional_id is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        self._node.gate.require(self._context, Operation.WRITE, need, transactional_id)

    def fail_request(self, error: ApiError) -> Steps:
        """Return a response with the error for every partition. With acks=0, close the connection instead."""
        context, request = self._context, self._context.request
        assert isinstance(request, ProduceRequest)
        context.record_error(error.code, sum(len(topic.partition_data) for topic in request.topic_data))
        if request.acks == 0:
            context.close_connection()
            return DELAYED
        context.results = None  # denied topics get the error, too
        in_slice = 0
        for part in self._parts(request):
            requested = ProduceRequest(acks=request.acks, topic_data=[part])
            failed = error_response(ApiKey.PRODUCE, self._version, requested, error)
            assert isinstance(failed, ProduceResponse)
            self._response.responses += failed.responses
            in_slice += 1 + len(part.partition_data)
            if in_slice > SLICE_PARTITIONS:
                in_slice = 0
                yield None
        return self._response

    def _append(
        self,
        topic: str,
        partition: Partition | ApiError,
        data: PartitionProduceData,
        header: BatchHeader | None,
        response: PartitionProduceResponse,
    ) -> None:
        """Append the batch of one partition, after verifying its transaction. Raises ApiError.

        If `partition` is an error, raise it after the checks that come before it.
        """
        records = data.records
        assert records is None or isinstance(records, memoryview)
        records = check_produced(records, header, self._version)
        assert header is not None
        if self._request.acks not in (ACKS_ALL, 0, 1):
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
        if is_internal(topic) and self._context.header.client_id != ADMIN_CLIENT_ID:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                "Clients may not append to the internal topic " + topic + ".",
            )
        if isinstance(partition, ApiError):
            raise partition
        if not header.is_transactional or not header.has_producer_id:
            # A batch without a producer id is in no transaction, even if its attributes say so.
            self._append_to_log(topic, partition, records, header, response)
            return
        self._waiting += 1
        topic_id = partition.topic_id

        def checked(error: ApiError | None) -> None:
            try:
                if error is not None:
                    raise error
                led = self._node.led_partition(topic, response.index)
                if led.topic_id != topic_id:
                    # The topic was deleted and created again in the meantime. The new topic is not verified.
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
                self._append_to_log(topic, led, records, header, response)
            except ApiError as refused:
                self._fail_partition(topic, response, refused)
            self._waiting -= 1
            self.maybe_finish()

        verify_transaction(
            self._node,
            self._request.transactional_id or "",
            ProducerIdAndEpoch(header.producer_id, header.producer_epoch),
            (topic, data.index),
            adds=self._version >= FIRST_VERSION_THAT_ADDS_TO_TRANSACTIONS,
            supports_abortable=self._version >= FIRST_VERSION_WITH_ABORTABLE,
            done=checked,
            header=header,
        )

    def _append_to_log(
        self,
        topic: str,
        partition: Partition,
        records: memoryview,
        header: BatchHeader,
        response: PartitionProduceResponse,
    ) -> None:
        """Append one batch that has passed the checks of this handler. Raises ApiError."""

        def done(error: ApiError | None) -> None:
            if error is not None:
                appended_at = response.base_offset, response.log_append_time_ms
                self._fail_partition(topic, response, error)
                if error.code in _AFTER_APPEND:
                    response.base_offset, response.log_append_time_ms = appended_at
            self._waiting -= 1
            self.maybe_finish()

        to_all = self._request.acks == ACKS_ALL
        self._waiting += 1
        try:
            appended = partition.append(
                records,
                now_ms=self._context.arrived_ms,
                on_written=None if to_all else done,
                on_replicated=done if to_all else None,
                timeout_ms=self._request.timeout_ms,
                header=header,
            )
        except ApiError as error:
            self._waiting -= 1
            if error.code not in _WITHOUT_LOG_START:
                response.log_start_offset = partition.log.log_start_offset
            raise
        response.base_offset = appended.first_offset
        response.log_append_time_ms = appended.log_append_time_ms
        response.log_start_offset = appended.log_start_offset

    def _fail_partition(self, topic: str, response: PartitionProduceResponse, error: ApiError) -> None:
        if self._request.acks == 0:
            # The connection will be closed because of this request, so handle no later request.
            self._context.channel.ending = True
        self._context.record_error(error.code)
        response.error_code = error.code
        response.base_offset = -1
        response.log_append_time_ms = -1
        if isinstance(error, ErrorWithMessage):
            response.error_message = error.message
        if isinstance(error, RecordErrors):
            # As in Kafka, other errors have a message only if they are about single records (KIP-467).
            response.error_message = error.message
            response.record_errors = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in error.records
            ]
        if (
            error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            and self._version >= FIRST_VERSION_WITH_CURRENT_LEADER
        ):
            leader_id, leader_epoch = self._node.current_leader(topic, response.index)
            response.current_leader = LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
            self._add_node_endpoint(leader_id)

    def _add_node_endpoint(self, leader_id: int) -> None:
        """Add the leader's address to the response, unless the response already has it. KIP-951."""
        endpoints = self._response.node_endpoints
        if all(endpoint.node_id != leader_id for endpoint in endpoints):
            endpoints += [
                NodeEndpoint(
                    node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack
                )
                for endpoint in self._node.endpoints({leader_id}, self._context.listener)
            ]

    def maybe_finish(self) -> None:
        """Respond if every append has met `acks` or has failed."""
        if self._waiting or not self.all_sent:
            return
        if self._request.acks != 0:
            if self._is_large:
                complete_in_slices(self._node.host, self._context, respond_with(self._response))
            else:
                self._context.complete(self._response)
            return
        if self._context.results is not None:
            self._context.results.add_to(self._response)
        failed = [
            f"{topic.name}-{response.index} {ErrorCode(response.error_code).name}"
            for topic in self._response.responses
            for response in topic.partition_responses
            if response.error_code
        ]
        if failed:
            # With acks=0 there is no response for the error. Closing the connection makes the producer
            # refresh its metadata.
            self._node.host.logger("kwire.produce").info(
                "Closing connection to %s: Produce with acks=0 failed: %s",
                self._context.peer_host,
                ", ".join(failed),
            )
            self._context.close_connection()
        else:
            self._context.complete_without_reply()


_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors for which the response has log start offset -1, as in Kafka."""

_AFTER_APPEND = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors while an append waits for followers. The response still has the batch's offset."""

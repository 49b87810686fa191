"""The observations that recorded requests show, for `History.of`, which describes the rules.

The requests of all brokers are read in the order in which they arrived. A response counts from the time when
it was complete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kwire.client.consumer import AbortedTransactions
from kwire.host.system_time import libc_time_ns, monotonic, sleep
from kwire.testing.anomalies import missing_records
from kwire.testing.event_loop import blocks_event_loop
from kwire.testing.green_threads import green_sleep
from kwire.testing.observations import (
    UNKNOWN_OFFSET,
    Commit,
    Delivery,
    FinalRecord,
    Observations,
    Outcome,
    Partition,
    Sent,
    Transaction,
)
from kwire.testing.recorded_transactions import Transactions
from kwire.testing.recorder import RESPONSE_SHARE
from kwire.wire.batch import CorruptBatch, batches, records
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kwire.testing.exchange import Exchange
    from kwire.testing.kafka import Kafka
    from kwire.testing.recorder import Recorder
    from kwire.wire.primitives import Buffer

INTERNAL_TOPICS: Final = "__consumer_offsets", "__transaction_state"
ISOLATION_LEVELS: Final = "a read_uncommitted consumer", "a read_committed consumer"
SETTLE_SECONDS: Final = 2.0
"""The longest wait until readers can get all acknowledged records, after failovers and transactions."""
POLL_SECONDS: Final = 0.02
NOT_WRITTEN: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)
"""Errors of a Produce that a broker returns only if it has not written the batch."""
OBSERVED_APIS: Final = {"Produce", "Fetch", "OffsetCommit", "TxnOffsetCommit", "EndTxn", "InitProducerId"}
"""APIs whose responses are part of the history."""
GROUP_APIS: Final = {"JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat", "OffsetCommit"}
"""APIs whose requests name the group of a consumer."""


class Connection(NamedTuple):
    """A connection to one of the brokers."""

    broker: int
    number: int


@dataclass(slots=True, eq=False)
class _Attempt:
    """The latest attempt to send a record, which has not succeeded."""

    sent: Sent
    connection: Connection
    failed_at_s: float
    """When the response with the error was complete. If there was no response, when the request arrived."""
    has_response: bool

    def allows_retry(self, connection: Connection, at_s: float) -> bool:
        """Return whether a request can be a retry: after an error, or on another connection."""
        is_known = bool(
            self.connection.number and connection.number
        )  # a response is lost with its connection
        is_possible = self.has_response or not is_known or connection != self.connection
        return is_possible and self.failed_at_s <= at_s


class _Content(NamedTuple):
    """The properties that a retry without idempotence shares with the record that it repeats."""

    client_id: str
    partition: Partition
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class _Identity(NamedTuple):
    """The properties that a retry of an idempotent producer shares with the record that it repeats."""

    producer_id: int
    producer_epoch: int
    partition: Partition
    sequence: int


def observe(recorders: Sequence[Recorder]) -> Observations:
    """Return the observations that the requests show. Raises ValueError if some were dropped."""
    exchanges = sorted(
        ((one, broker) for broker, recorder in enumerate(recorders) for one in recorder.since_test_began()),
        key=lambda pair: pair[0].received_at_s,
    )
    started_s = exchanges[0][0].received_at_s if exchanges else libc_time_ns() / 1e9
    seen = Observations(lambda: libc_time_ns() / 1e9, started_s)
    seen.has_all_sends = False
    observer = _Observer(seen)
    for exchange, broker in exchanges:
        try:
            observer.observe(exchange, broker)
        except (WireError, CorruptBatch):
            pass  # clients may send invalid requests and batches, which the broker refuses
    observer.finish()
    return seen


class _Observer:
    """The state while the requests are read in order."""

    def __init__(self, seen: Observations) -> None:
        self._seen = seen
        self._transactions = Transactions(seen)
        self._by_identity: dict[_Identity, Sent] = {}
        self._failed: dict[_Content, list[_Attempt]] = defaultdict(list)
        self._connections = _Producers()
        self._first_connection: list[tuple[Sent, Connection]] = []
        """The records without idempotence, whose producers are known after the last request."""
        self._sessions: dict[tuple[int, int], dict[Partition, int]] = {}
        """The fetch offsets of each fetch session, by broker and session id.

        KIP-227: a request names only those that have changed.
        """
        self._positions: dict[str, dict[Partition, int]] = defaultdict(dict)
        self._managed_groups: set[str] = set()
        """The groups that have had members. Commits without a generation succeed if such a group is empty."""

    def observe(self, exchange: Exchange, broker: int) -> None:
        """Add what one request shows."""
        request: Any = exchange.request_message
        response: Any = None
        if exchange.outcome == "":
            response = exchange.response_message
            if response is None and exchange.api in OBSERVED_APIS:
                raise ValueError(
                    f"a response to {exchange.api} of {exchange.client_id or 'a client'} was not recorded, "
                    f"because it has {exchange.response_bytes} bytes: pass max_recorded_bytes="
                    f"{exchange.response_bytes * RESPONSE_SHARE} or more to the broker or cluster"
                )
        connection = Connection(broker, exchange.connection)
        api = exchange.api
        if api in ("OffsetCommit", "TxnOffsetCommit"):
            for topic in request.topics:
                name = _topic(exchange, topic.name, getattr(topic, "topic_id", ZERO_UUID))
                for one in topic.partitions:
                    self._seen.first_offsets[request.group_id].setdefault((name, one.partition_index), 0)
        if api == "Produce":
            self._observe_produce(exchange, connection, request, response)
        elif api == "Fetch":
            self._observe_fetch(exchange, connection, request, response)
        elif api in GROUP_APIS:
            self._seen.members[request.group_id].add(exchange.client_id)
            if api != "OffsetCommit":
                self._managed_groups.add(request.group_id)
            elif response is not None:
                self._observe_commit(exchange, request, response)
        elif api == "OffsetFetch":
            for group in request.groups or [request]:
                self._seen.members[group.group_id].add(exchange.client_id)
            if response is not None:
                self._observe_committed(exchange, request, response)
        elif api == "DeleteTopics":
            self._seen.unchecked_topics.update(request.topic_names)
            self._seen.unchecked_topics.update(
                one.name or exchange.topic_names.get(one.topic_id, "") for one in request.topics
            )
        else:
            self._transactions.observe(exchange, request, response)

    def finish(self) -> None:
        """Set the producers of records without idempotence, and the number of each record."""
        for sent, connection in self._first_connection:
            sent.sequence = self._connections.first_of(connection)
            sent.number = self._seen.next_number(sent.sequence)
        producers: dict[str, list[object]] = defaultdict(list)
        for sent in self._seen.sent:
            same, found = producers[sent.producer], _producer_of(sent.sequence)
            if found not in same:
                same.append(found)
        for sent in self._seen.sent:
            same = producers[sent.producer]
            if len(same) > 1:
                sent.producer += f" (producer {same.index(_producer_of(sent.sequence)) + 1})"

    def _time(self, at_s: float) -> float:
        return at_s - self._seen.started_s

    def _responded_s(self, exchange: Exchange) -> float:
        responded_at_s = exchange.responded_at_s
        assert responded_at_s is not None
        return self._time(responded_at_s)

    # --- Produce

    def _observe_produce(
        self, exchange: Exchange, connection: Connection, request: Any, response: Any
    ) -> None:
        results = {
            (_topic(exchange, topic.name, topic.topic_id), one.index): one
            for topic in (response.responses if response is not None else ())
            for one in topic.partition_responses
        }
        for topic in request.topic_data:
            name = _topic(exchange, topic.name, topic.topic_id)
            for one in topic.partition_data:
                partition = name, one.index
                self._observe_batches(
                    exchange, connection, request, partition, one.records or b"", results.get(partition)
                )

    def _observe_batches(
        self,
        exchange: Exchange,
        connection: Connection,
        request: Any,
        partition: Partition,
        data: Buffer,
        result: Any,
    ) -> None:
        at_s = self._time(exchange.received_at_s)
        code = None if result is None else result.error_code
        used: set[Sent] = set()
        transaction: Transaction | None = None
        offset = -1 if result is None else result.base_offset
        for position, header in batches(data):
            if header.is_transactional and request.transactional_id:
                transaction = self._transactions.current(request.transactional_id)
            has_sequence = header.has_producer_id and header.base_sequence >= 0
            for number, record in enumerate(records(data, position, header)):
                identity = None
                if has_sequence:
                    sequence = header.base_sequence + number & 0x7FFFFFFF
                    identity = _Identity(header.producer_id, header.producer_epoch, partition, sequence)
                content = _Content(
                    exchange.client_id,
                    partition,
                    record.timestamp,
                    record.key,
                    record.value,
                    tuple(record.headers),
                )
                sent = self._retried(identity, content, connection, at_s, used, transaction)
                if sent is None:
                    sent = self._new_send(exchange, connection, identity, content, at_s, transaction)
                    sent.acks = request.acks
                    sent.timestamp_ms = None if header.has_log_append_time else record.timestamp
                else:
                    sent.attempts += 1
                    if identity is None:
                        self._connections.join(sent, connection)
                if identity is not None:
                    self._by_identity[identity] = sent
                used.add(sent)
                if request.acks:  # without acknowledgments, the client does not retry
                    self._set_result(exchange, connection, sent, content, code, offset)
                offset += offset >= 0

    def _retried(
        self,
        identity: _Identity | None,
        content: _Content,
        connection: Connection,
        at_s: float,
        used: set[Sent],
        transaction: Transaction | None,
    ) -> Sent | None:
        """Return the send that a record repeats, if it repeats one.

        A client does not repeat a record after the end of its transaction. If a program does, this is a
        new send, perhaps with the same sequence number if the broker has refused the first one.
        """
        known = None if identity is None else self._by_identity.get(identity)
        if known is not None and known.transaction is transaction:
            return known if (known.key, known.value) == (content.key, content.value or b"") else None
        for attempt in self._failed.get(content, ()):
            sent = attempt.sent
            if (
                sent in used
                or sent.transaction is not transaction
                or sent.outcome is Outcome.ACKNOWLEDGED
                or not attempt.allows_retry(connection, at_s)
            ):
                continue
            if identity is not None:  # KIP-360: with a new epoch, the broker cannot recognize the retry
                sent.is_idempotent = False
            return sent
        return None

    def _new_send(
        self,
        exchange: Exchange,
        connection: Connection,
        identity: _Identity | None,
        content: _Content,
        at_s: float,
        transaction: Transaction | None,
    ) -> Sent:
        sent = Sent(
            content.value or b"",
            exchange.client_id or "a producer",
            content.partition,
            0 if identity is None else identity.sequence + 1,
            identity is not None,
            at_s,
            transaction,
            content.key,
            is_key_known=True,
            attempts=1,
            sequence=None if identity is None else (identity.producer_id, identity.producer_epoch),
        )
        if identity is None:
            self._connections.add(sent, connection)
            self._first_connection.append((sent, connection))
        return self._seen.add_send(sent)

    def _set_result(
        self,
        exchange: Exchange,
        connection: Connection,
        sent: Sent,
        content: _Content,
        code: int | None,
        offset: int,
    ) -> None:
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            if sent.outcome is not Outcome.ACKNOWLEDGED:
                sent.acknowledge(
                    offset if code == ErrorCode.NONE else UNKNOWN_OFFSET, self._responded_s(exchange)
                )
            return
        failed_s = self._time(exchange.received_at_s) if code is None else self._responded_s(exchange)
        attempts = self._failed[content]
        if not any(one.sent is sent for one in attempts):
            attempts.append(_Attempt(sent, connection, failed_s, has_response=code is not None))
            was_written = False
        else:
            was_written = sent.outcome is Outcome.UNKNOWN
        if code is None or code not in NOT_WRITTEN:
            if sent.outcome is Outcome.REJECTED:
                sent.outcome = Outcome.UNKNOWN
        elif not was_written and sent.outcome is Outcome.UNKNOWN:
            sent.outcome = Outcome.REJECTED

    # --- Fetch

    def _observe_fetch(self, exchange: Exchange, connection: Connection, request: Any, response: Any) -> None:
        session = self._sessions.get((connection.broker, request.session_id))
        if request.session_epoch in (-1, 0) or session is None:  # a full fetch
            session = {}
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                session.pop((_topic(exchange, topic.topic, topic.topic_id), index), None)
        for topic in request.topics:
            name = _topic(exchange, topic.topic, topic.topic_id)
            session.update({(name, one.partition): one.fetch_offset for one in topic.partitions})
        if response is None:
            return
        if response.session_id:
            self._sessions[connection.broker, response.session_id] = session
        at_s = self._responded_s(exchange)
        level = ISOLATION_LEVELS[request.isolation_level]
        reader = exchange.client_id or "a consumer"
        for topic in response.responses:
            name = _topic(exchange, topic.topic, topic.topic_id)
            for one in topic.partitions:
                partition = name, one.partition_index
                if one.error_code != ErrorCode.NONE or name in INTERNAL_TOPICS:
                    continue
                offset = session.get(partition)
                aborted = one.aborted_transactions if request.isolation_level else None
                self._observe_fetched(reader, partition, offset, one.records or b"", aborted, at_s, level)

    def _observe_fetched(
        self,
        reader: str,
        partition: Partition,
        offset: int | None,
        data: Buffer,
        aborted: Any,
        at_s: float,
        level: str,
    ) -> None:
        if offset is None:  # the session began before the first recorded request
            first = next(batches(data, allow_partial=True), None)
            if first is None:
                return
            offset = first[1].base_offset
        deliveries = self._seen.deliveries[reader]
        positions = self._positions[reader]
        if positions.get(partition) != offset:
            deliveries.append(Delivery(partition, offset, None, at_s))
        end = offset
        removed = None if aborted is None else AbortedTransactions(aborted)
        for position, header in batches(data, allow_partial=True):
            end = max(end, header.next_offset)
            if removed is not None and removed.covers(header, data, position):
                continue
            if not header.is_control:
                deliveries += [
                    Delivery(partition, one.offset, one.value or b"", at_s, level)
                    for one in records(data, position, header, from_offset=offset)
                ]
        positions[partition] = end

    # --- OffsetCommit

    def _observe_commit(self, exchange: Exchange, request: Any, response: Any) -> None:
        accepted = {
            (_topic(exchange, topic.name, topic.topic_id), one.partition_index)
            for topic in response.topics
            for one in topic.partitions
            if one.error_code == ErrorCode.NONE
        }
        # An administrator sets offsets without a generation, and reads nothing. Its client id may be the
        # default of its library, which consumers have, too.
        is_reset = request.generation_id_or_member_epoch < 0 and (
            exchange.client_id not in self._positions or request.group_id in self._managed_groups
        )
        for topic in request.topics:
            name = _topic(exchange, topic.name, topic.topic_id)
            self._seen.commits[request.group_id] += [
                Commit(
                    (name, one.partition_index),
                    one.committed_offset,
                    is_reset,
                    self._time(exchange.received_at_s),
                )
                for one in topic.partitions
                if (name, one.partition_index) in accepted
            ]

    def _observe_committed(self, exchange: Exchange, request: Any, response: Any) -> None:
        # Up to version 7, a request is for one group.
        groups = [(group.group_id, group.topics) for group in response.groups]
        for group_id, topics in groups or [(request.group_id, response.topics)]:
            first_offsets = self._seen.first_offsets[group_id]
            for topic in topics:
                name = _topic(exchange, topic.name, getattr(topic, "topic_id", ZERO_UUID))
                for one in topic.partitions:
                    if one.error_code == ErrorCode.NONE:
                        partition = name, one.partition_index
                        first_offsets.setdefault(partition, max(0, one.committed_offset))


class _Producers:
    """The connections of each producer without idempotence. A retry shows that two connections are of one."""

    def __init__(self) -> None:
        self._parents: dict[Connection, Connection] = {}
        self._of: dict[Sent, Connection] = {}

    def add(self, sent: Sent, connection: Connection) -> None:
        """Note the connection of the first attempt to send a record."""
        self._of[sent] = connection

    def join(self, sent: Sent, connection: Connection) -> None:
        """Note that a record was sent again on another connection."""
        first = self._find(self._of.get(sent, connection))
        self._parents[first] = self._find(connection)

    def first_of(self, connection: Connection) -> Connection:
        """Return a connection that stands for all connections of its producer."""
        return self._find(connection)

    def _find(self, connection: Connection) -> Connection:
        while (parent := self._parents.get(connection, connection)) != connection:
            connection = parent
        return connection


def read_final_records(seen: Observations, kafka: Kafka) -> None:
    """Read all records of the topics of the history, until all acknowledged records are there.

    Waits for them for `SETTLE_SECONDS` at most. Raises RuntimeError where this would block an event loop.
    """
    if blocks_event_loop():
        raise RuntimeError(
            "reading the final records would block the running event loop: use `await broker.aio.history()`"
        )
    until = monotonic() + SETTLE_SECONDS
    while True:
        for topic in seen.topics():
            if topic not in seen.unchecked_topics and topic not in INTERNAL_TOPICS:
                _read_topic(seen, kafka, topic)
        if not missing_records(seen) or monotonic() >= until:
            return
        (green_sleep() or sleep)(POLL_SECONDS)


def _read_topic(seen: Observations, kafka: Kafka, topic: str) -> None:
    try:
        found = kafka._call(lambda client: client.topic_contents(topic))
    except ApiError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        seen.unchecked_topics.add(topic)  # the topic was deleted
        return
    with seen.lock:
        if found.is_compacted:
            seen.unchecked_topics.add(topic)
        for partition, start in found.log_starts.items():
            seen.log_starts[partition] = start
            seen.final.pop(partition, None)
        for one in found.records:
            seen.final[one.topic, one.partition][one.offset] = FinalRecord(
                one.value or b"",
                one.key,
                is_key_known=True,
                timestamp_ms=one.timestamp_ms if found.has_create_time else None,
            )


def _producer_of(sequence: object) -> object:
    """Return what identifies a producer: its first connection, or its producer id in every epoch."""
    return sequence if isinstance(sequence, Connection) or not isinstance(sequence, tuple) else sequence[0]


def _topic(exchange: Exchange, name: str, topic_id: Any) -> str:
    """Return the name of a topic that a message names by its name or its id."""
    return name or exchange.topic_names.get(topic_id, "")

"""The wrappers of producers. They record sends, acknowledgments and transactions."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

from kwire.testing.observations import (
    UNKNOWN_OFFSET,
    UNKNOWN_PARTITION,
    UNKNOWN_VALUE,
    Observations,
    Outcome,
    Partition,
    Sent,
    Transaction,
)
from kwire.testing.wrapped_client import WrappedClient, class_of, unique_name
from kwire.wire.errors import ErrorCode

FINAL_ERRORS: Final = {
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
}
"""Errors that no client retries. After other errors, an earlier attempt may have written the record."""


class WrappedProducer(WrappedClient):
    """The base of the wrappers of all producers."""

    def __init__(self, seen: Observations, inner: Any, name: str) -> None:
        super().__init__(seen, inner, name)
        self._kwire_transaction: Transaction | None = None
        self._kwire_offsets: list[tuple[str, Partition, int]] = []
        """The offset commits in the transaction: group, partition and offset."""

    def _kwire_is_idempotent(self) -> bool:
        return False

    def _kwire_send(self, topic: str, value: object, key: object) -> Sent:
        """Record that a record is about to be sent."""
        value_bytes, key_bytes = _sent_bytes(value), _sent_bytes(key)
        # The order of records that several threads send is not defined.
        thread = threading.get_ident()
        producer = self._kwire_name
        sent = Sent(
            b"" if value_bytes is None else value_bytes,
            producer,
            (topic, UNKNOWN_PARTITION),
            self._kwire_seen.next_number(("order of", producer, thread)),
            self._kwire_is_idempotent(),
            self._kwire_seen.now_s(),
            self._kwire_transaction,
            key_bytes,
            is_key_known=key_bytes is not UNKNOWN_VALUE,
            sequence=thread,
        )
        return self._kwire_seen.add_send(sent)

    def _kwire_ack(self, sent: Sent, partition: int, offset: int | None) -> None:
        with self._kwire_seen.lock:
            sent.partition = sent.partition[0], partition
            if self._kwire_has_acknowledgments(offset):
                known = UNKNOWN_OFFSET if offset is None or offset < 0 else offset
                sent.acknowledge(known, self._kwire_seen.now_s())

    def _kwire_has_acknowledgments(self, offset: int | None) -> bool:
        """Return whether the broker has acknowledged a successful send. `offset` is the result."""
        return True

    def _kwire_fail(self, sent: Sent, code: object) -> None:
        """Record an error. Only some errors mean that the record is not in the log."""
        with self._kwire_seen.lock:
            if code in FINAL_ERRORS:
                sent.outcome = Outcome.REJECTED

    # --- transactions

    def _kwire_begin(self) -> None:
        number = self._kwire_seen.next_number(("transactions of", self._kwire_name))
        self._kwire_transaction = self._kwire_seen.new_transaction(
            f"transaction {number} of {self._kwire_name}"
        )
        self._kwire_offsets = []

    def _kwire_request_end(self) -> None:
        transaction = self._kwire_transaction
        if transaction is not None and transaction.end_requested_s < 0:
            transaction.end_requested_s = self._kwire_seen.now_s()

    def _kwire_end(self, outcome: Outcome) -> None:
        transaction, self._kwire_transaction = self._kwire_transaction, None
        if transaction is None:
            return
        with self._kwire_seen.lock:
            transaction.end(outcome, self._kwire_seen.now_s())
            if outcome is Outcome.ACKNOWLEDGED:
                for group, partition, offset in self._kwire_offsets:
                    self._kwire_seen.add_commit(group, partition, offset)


class _BlockingTransactions(WrappedProducer):
    """The transactions of kafka-python and confluent-kafka."""

    def begin_transaction(self, *args: Any, **kwargs: Any) -> Any:
        """Begin a transaction."""
        result = self._kwire_inner.begin_transaction(*args, **kwargs)
        self._kwire_begin()
        return result

    def commit_transaction(self, *args: Any, **kwargs: Any) -> Any:
        """Commit the transaction."""
        self._kwire_request_end()
        result = self._kwire_inner.commit_transaction(*args, **kwargs)
        self._kwire_end(Outcome.ACKNOWLEDGED)
        return result

    def abort_transaction(self, *args: Any, **kwargs: Any) -> Any:
        """Abort the transaction."""
        self._kwire_request_end()
        result = self._kwire_inner.abort_transaction(*args, **kwargs)
        self._kwire_end(Outcome.REJECTED)
        return result


class KafkaPythonProducer(_BlockingTransactions):
    """The wrapper of `kafka.KafkaProducer`."""

    def _kwire_is_idempotent(self) -> bool:
        return bool(self._kwire_inner.config.get("enable_idempotence"))

    def _kwire_has_acknowledgments(self, offset: int | None) -> bool:
        return bool(self._kwire_inner.config.get("acks") != 0)  # with acks=0, kafka-python returns offset 0

    def send(self, topic: str, value: Any = None, key: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Send a record."""
        config = self._kwire_inner.config
        sent = self._kwire_send(
            topic,
            _serialize(value, config.get("value_serializer"), topic),
            _serialize(key, config.get("key_serializer"), topic),
        )
        try:
            future = self._kwire_inner.send(topic, value, key, *args, **kwargs)
        except BaseException:
            self._kwire_seen.remove_send(sent)
            raise
        future.add_callback(lambda found: self._kwire_ack(sent, found.partition, found.offset))
        future.add_errback(lambda error: self._kwire_fail(sent, getattr(error, "errno", None)))
        return future

    def send_offsets_to_transaction(self, offsets: Any, group_metadata: Any) -> Any:
        """Commit offsets in the transaction."""
        result = self._kwire_inner.send_offsets_to_transaction(offsets, group_metadata)
        group = getattr(group_metadata, "group_id", group_metadata)
        self._kwire_offsets += [(group, (*one,)[:2], each.offset) for one, each in offsets.items()]
        return result


class ConfluentProducer(_BlockingTransactions):
    """The wrapper of `confluent_kafka.Producer`."""

    def __len__(self) -> int:
        return len(self._kwire_inner)

    def __bool__(self) -> bool:
        return True

    def _kwire_has_acknowledgments(self, offset: int | None) -> bool:
        # A producer of confluent-kafka has no attribute with its acks. With acks=0, its delivery reports have
        # no offset; few other reports have none.
        return offset is not None and offset >= 0

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Send a record."""
        sent = self._kwire_send(topic, value, key)
        options = {"partition": partition, "timestamp": timestamp, "headers": headers, **kwargs}
        return self._kwire_produce(sent, on_delivery, topic, value=value, key=key, **options)

    def _kwire_produce(self, sent: Sent, on_delivery: Any, topic: str, **kwargs: Any) -> Any:
        callback = on_delivery or kwargs.pop("callback", None)
        kwargs.pop("callback", None)

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self._kwire_ack(sent, message.partition(), message.offset())
            else:
                self._kwire_fail(sent, error.code())
            if callback is not None:
                callback(error, message)

        try:
            return self._kwire_inner.produce(topic, on_delivery=delivered, **kwargs)
        except BaseException:
            self._kwire_seen.remove_send(sent)
            raise


class ConfluentSerializingProducer(ConfluentProducer):
    """The wrapper of `confluent_kafka.SerializingProducer`."""

    def produce(  # type: ignore[override]  # the key comes before the value
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        partition: int = -1,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> Any:
        """Send a record."""
        sent = self._kwire_send(
            topic,
            self._kwire_serialized("value", value, topic, headers),
            self._kwire_serialized("key", key, topic, headers),
        )
        options = {"partition": partition, "timestamp": timestamp, "headers": headers}
        return self._kwire_produce(sent, on_delivery, topic, value=value, key=key, **options)

    def _kwire_serialized(self, field: str, value: object, topic: str, headers: Any) -> object:
        serializer = getattr(self._kwire_inner, f"_{field}_serializer", None)
        if serializer is None:
            return value
        module = sys.modules["confluent_kafka.serialization"]
        # A serializer may add headers, and the client calls it again.
        own_headers = headers if headers is None else headers.copy()
        context = module.SerializationContext(topic, module.MessageField(field), own_headers)
        return _serialize(value, lambda one: serializer(one, context), topic)


class AiokafkaProducer(WrappedProducer):
    """The wrapper of `aiokafka.AIOKafkaProducer`."""

    def _kwire_is_idempotent(self) -> bool:
        return getattr(self._kwire_inner, "_txn_manager", None) is not None

    async def send(self, topic: str, value: Any = None, key: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Send a record, and return a future of its acknowledgment."""
        inner = self._kwire_inner
        sent = self._kwire_send(
            topic,
            _serialize(value, getattr(inner, "_value_serializer", None), topic),
            _serialize(key, getattr(inner, "_key_serializer", None), topic),
        )
        try:
            future = await inner.send(topic, value, key, *args, **kwargs)
        except BaseException:
            self._kwire_seen.remove_send(sent)
            raise
        # The records have the order in which the calls return.
        sent.number = self._kwire_seen.next_number(("order of", self._kwire_name, sent.sequence, "returned"))
        future.add_done_callback(lambda done: self._kwire_on_done(sent, done))
        return future

    def _kwire_on_done(self, sent: Sent, done: Any) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._kwire_fail(sent, getattr(error, "errno", None))
        elif (found := done.result()) is not None:  # None with acks=0
            self._kwire_ack(sent, found.partition, found.offset)

    async def send_and_wait(self, *args: Any, **kwargs: Any) -> Any:
        """Send a record, and wait for its acknowledgment."""
        return await (await self.send(*args, **kwargs))

    async def begin_transaction(self) -> None:
        """Begin a transaction."""
        await self._kwire_inner.begin_transaction()
        self._kwire_begin()

    async def commit_transaction(self) -> None:
        """Commit the transaction."""
        self._kwire_request_end()
        await self._kwire_inner.commit_transaction()
        self._kwire_end(Outcome.ACKNOWLEDGED)

    async def abort_transaction(self) -> None:
        """Abort the transaction."""
        self._kwire_request_end()
        await self._kwire_inner.abort_transaction()
        self._kwire_end(Outcome.REJECTED)

    def transaction(self) -> Any:
        """Return a context manager that begins a transaction, and commits or aborts it."""
        return type(self._kwire_inner.transaction())(self)

    async def send_offsets_to_transaction(self, offsets: Any, group_id: str) -> None:
        """Commit offsets in the transaction."""
        await self._kwire_inner.send_offsets_to_transaction(offsets, group_id)
        for one, each in offsets.items():
            offset = each if isinstance(each, int) else each[0]
            self._kwire_offsets.append((group_id, (one.topic, one.partition), offset))


CLASSES: Final[dict[tuple[str, str], type[WrappedClient]]] = {
    ("kafka", "KafkaProducer"): KafkaPythonProducer,
    ("aiokafka", "AIOKafkaProducer"): AiokafkaProducer,
    ("cimpl", "Producer"): ConfluentProducer,
    ("confluent_kafka", "SerializingProducer"): ConfluentSerializingProducer,
}
"""The wrappers, by package and class of the producer. confluent-kafka's classes are from the module cimpl."""


def wrap_producer(seen: Observations, producer: Any, name: str | None) -> Any:
    """Return the wrapper of a producer. Raises TypeError if the class of the producer is not supported."""
    kind = class_of(producer, CLASSES)
    return kind(seen, producer, unique_name(seen, name, producer, "producer"))


def _serialize(value: object, serializer: Any, topic: str) -> object:
    """Return a key or value as the client sends it, or `UNKNOWN_VALUE` if this fails."""
    if serializer is None:
        return value
    try:
        if hasattr(serializer, "serialize"):  # of kafka-python
            return serializer.serialize(topic, [], value)
        return serializer(value)
    except Exception:  # the client then raises it to the program
        return UNKNOWN_VALUE


def _sent_bytes(value: object) -> bytes | None:
    """Return a key or value as the client sends it."""
    if value is None or value is UNKNOWN_VALUE:
        return value
    if isinstance(value, str):
        return value.encode()  # as confluent-kafka does
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else UNKNOWN_VALUE

"""A checker of what producers and consumers have observed, modeled on Jepsen's Kafka workload.

With the recorded requests of a broker, the check is one line after the test, with unmodified programs:

    broker.history().check()                                    # raises AssertionError if there are anomalies

`History.of` describes what the requests show. A program can also be given wrapped clients, which record what
the program itself sees, with any Kafka cluster:

    history = History()
    producer = history.producer(KafkaProducer(...))             # has the interface of KafkaProducer
    consumer = history.consumer(KafkaConsumer(...))
    ...
    history.read_final_records(kafka)                           # after the test, all records that exist
    history.check()

Or a test reports the events itself:

    history.on_send("producer 1", ("orders", 0), b"1")          # before each send, in the order of the sends
    history.on_ack(b"1", 17)                                    # or on_reject(b"1"); neither after a timeout
    history.on_seek("group", ("orders", 0), 17)                 # where a reader starts: assignment or seek
    history.on_poll("group", [(("orders", 0), 17, b"1")])       # records in the order in which they were read
    history.expect_all_read("group")                            # a group, or several readers together
    history.on_commit("group", ("orders", 0), 18)               # each acknowledged offset commit
    history.on_assign("group", "member 1", [("orders", 0)])     # and on_revoke, from a rebalance listener
    history.set_final_records(kafka.records("orders"))          # after the test, all records that exist
    history.check()

In the last form, each value must be sent only once, because the value identifies its record. In the other
two, the acknowledged offset identifies it, or the key and the value if there was no acknowledgment.

The checker compares what readers got with the *final records*: all records that one read_committed reader
finds after the test, when no fault is active. The methods can be called from several threads.

The anomalies:

- *lost*: acknowledged, or part of a committed transaction, but not among the final records
- *duplicated*: stored at two offsets, although the program sent it once
- *reordered*: stored before a record that its producer sent to the same partition earlier
- *wrong offset*: stored at another offset than the acknowledged one
- *wrong partition*: stored in another partition than the one that it was sent to
- *never sent*: a final record that no producer sent
- *stored although rejected*: stored, although the producer got an error that excludes this
- *partial transaction*: some records of a transaction are final records, and others are not
- *read before commit*: read before the end of its transaction was requested
- *read after abort*: read, although its transaction had been aborted
- *lost after read*: read, but not among the final records
- *changed*: read with another value than the final record at this offset
- *read again*: a reader got an offset again or a lower one without a seek
- *skipped*: a reader got an offset, but not the final records between its position and this offset
- *unread*: a final record that none of the expected readers got
- *committed before read*: a group committed an offset above the highest position of its readers
- *commit moved back*: a group committed a lower offset than before, without a seek or `may_go_back`
- *two owners*: a partition was assigned to a member of a group while another member owned it

Producers without idempotence may duplicate and reorder records when they retry. `check` reports that, unless
`at_least_once` is set. A consumer with isolation level read_uncommitted, the default of Java, kafka-python
and aiokafka, can read records before their transaction ends. `check` reports that, unless `allow` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from kwire.host.system_time import monotonic
from kwire.testing.anomalies import KINDS, Anomaly, AnomalyKind, find_anomalies
from kwire.testing.arguments import check_number
from kwire.testing.observations import (
    ANY_OFFSET,
    UNKNOWN_OFFSET,
    FinalRecord,
    Observations,
    Outcome,
    Partition,
    ReadRecord,
    Sent,
    Transaction,
    format_value,
)
from kwire.testing.results import Record

if TYPE_CHECKING:
    from kwire.testing.kafka import Kafka
    from kwire.testing.recorder import Recorder

__all__ = [
    "ANY_OFFSET",
    "UNKNOWN_OFFSET",
    "Anomaly",
    "History",
    "AnomalyKind",
    "Outcome",
    "Partition",
    "ReadRecord",
]

P = TypeVar("P")
"""The class of a wrapped client."""
MAX_ANOMALIES_SHOWN = 50
"""The maximum number of anomalies that a failure shows."""


class History:
    """The observations of clients. Times in anomalies are seconds since this object was created."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._seen = Observations(clock)
        self._sent: dict[bytes, Sent] = {}
        """The records of `on_send`, by value."""
        self._transactions: dict[str, Transaction] = {}
        """The transactions of `on_send` and `on_transaction_end`, by name."""
        self._has_final_records = True

    @classmethod
    def of(cls, *requests: Recorder, kafka: Kafka | None = None) -> History:
        """Return the history that recorded requests show, with the final records of their topics.

        `requests` are those of one broker, or of each broker of a cluster. The final records are read from
        `kafka`, by default from the broker or cluster of `requests`; it must be running, and no fault should
        be active. Only requests since `Recorder.clear`, or since the start of a test with kwire's fixtures,
        are part of the history. Times in anomalies are seconds since the first request.

        What the requests show, and what they do not:

        - A record that its client sent again is one send. An idempotent producer repeats the producer id,
          the producer epoch and the sequence number. Without them, or after a new epoch, a record is a retry
          if the same client id sent a record with the same partition, timestamp, key, value and headers
          before, and got an error or no response. A program that sends the same record again after such a
          failure, with the same timestamp, counts as retrying. If a response left the broker and the client
          did not get it in time, the retry counts as a new record.
        - A send, commit or end of a transaction is acknowledged if the response left the broker. A response
          that a fault dropped or truncated is no acknowledgment.
        - Reads are what Fetch responses delivered, without the records that a client of that isolation level
          removes. The requests do not show whether the program got or processed these records. A reader has
          the name of its client id, so give each client its own.
        - A fetch offset that differs from the end of the last response is a seek. So a reader that starts
          again at an older offset is no anomaly.
        - The readers of a group are the client ids with which its members joined, committed or looked up
          offsets.
        - Records below the first offset that a group looks up were read before, for `expect_all_read`.
        - Records that other producers wrote, such as `Broker.produce`, are not reported as never sent.
        - Records of deleted and compacted topics, and records before the log start offset, are not reported
          as lost.

        Raises ValueError if a request is missing because the recorder has dropped it, or did not keep a long
        response, and names the argument that raises the limit.
        """
        from kwire.testing.recorded_history import observe, read_final_records

        found = cls()
        found._seen = observe(requests)
        source = kafka or next((one.source for one in requests if one.source is not None), None)
        found._has_final_records = source is not None
        if source is not None:
            read_final_records(found._seen, source)
        return found

    def read_final_records(self, kafka: Kafka) -> None:
        """Read the final records of all topics of this history, after the test, when no fault is active.

        Waits for records that are acknowledged and cannot be read yet, for two seconds at most.
        """
        from kwire.testing.recorded_history import read_final_records

        read_final_records(self._seen, kafka)
        self._has_final_records = True

    # --- wrapped clients

    def producer(self, producer: P, name: str | None = None) -> P:
        """Return a wrapper that records what the program sends, and the acknowledgments that it gets.

        `producer` is a KafkaProducer of kafka-python, an AIOKafkaProducer, or a Producer or
        SerializingProducer of confluent-kafka. Serializers are called twice, to record the key and the value.
        The wrapper has the same attributes and methods, and sends the same requests. `name` is the producer's
        name in anomalies, by default its client id. Raises TypeError for other classes.

        Records need no unique values: an acknowledged record is identified by its offset, a record without
        acknowledgment by key and value. Final records with the key and value of a sent record, beyond the
        number of sends, count as duplicates of it, so other producers must not write equal records.

        `isinstance(wrapper, KafkaProducer)` is true. Calls of methods that the class makes itself are not
        recorded, and neither are `send_batch` of aiokafka and `produce_batch` of confluent-kafka.
        A delivery report of confluent-kafka without an offset is no acknowledgment, as with acks=0.
        """
        from kwire.testing.wrapped_producers import wrap_producer

        self._seen.has_all_sends = False
        wrapped: P = wrap_producer(self._seen, producer, name)
        return wrapped

    def consumer(self, consumer: P, name: str | None = None, *, group: str | None = None) -> P:
        """Return a wrapper that records what the program reads and commits, and which partitions it owns.

        `consumer` is a KafkaConsumer of kafka-python, an AIOKafkaConsumer, or a Consumer of confluent-kafka.
        The wrapper has the same attributes and methods, and sends the same requests. `name` is the reader's
        name in anomalies, by default its client id. `group` is the name of its group, which a Consumer of
        confluent-kafka does not reveal. Raises TypeError for other classes.

        A record is read when the program gets it. To record it when the program has processed it, call
        `on_poll` instead. Commits are recorded when the program gets the response: automatic commits and
        asynchronous commits of confluent-kafka are not recorded.
        """
        from kwire.testing.wrapped_consumers import wrap_consumer

        self._seen.has_all_sends = False
        wrapped: P = wrap_consumer(self._seen, consumer, name, group)
        return wrapped

    # --- observations

    def on_send(
        self,
        producer: str,
        partition: Partition,
        value: bytes,
        *,
        is_idempotent: bool = True,
        transaction: str | None = None,
    ) -> None:
        """Record that a producer is about to send a value, which must be unique.

        `transaction` is a unique name of the transaction, if the value is part of one.
        """
        _check_partitions(partition)
        with self._seen.lock:
            assert value not in self._sent, f"{format_value(value)} is sent twice"
            number = self._seen.next_number((producer, partition))
            found = None if transaction is None else self._transaction(transaction)
            sent = Sent(value, producer, partition, number, is_idempotent, self._seen.now_s(), found)
            self._sent[value] = self._seen.add_send(sent)

    def on_ack(self, value: bytes, offset: int = UNKNOWN_OFFSET) -> None:
        """Record an acknowledgment with acks=all, and the record's offset if the client knows it."""
        check_number("offset", offset)
        with self._seen.lock:
            self._sent_value(value).acknowledge(offset, self._seen.now_s())

    def on_resend(self, value: bytes) -> None:
        """Record a retry with another producer id or epoch, which the broker cannot deduplicate."""
        with self._seen.lock:
            self._sent_value(value).is_idempotent = False

    def on_reject(self, value: bytes) -> None:
        """Record that a send failed with an error that excludes success. Do not call this after a timeout."""
        with self._seen.lock:
            self._sent_value(value).outcome = Outcome.REJECTED

    def _sent_value(self, value: bytes) -> Sent:
        found = self._sent.get(value) if isinstance(value, bytes) else None
        if found is None:
            raise LookupError(f"{value!r:.100} has not been sent: call on_send with this value first")
        return found

    def on_transaction_end(self, transaction: str, *, committed: bool) -> None:
        """Record the outcome of a transaction. Do not call this if the outcome is unknown."""
        with self._seen.lock:
            outcome = Outcome.ACKNOWLEDGED if committed else Outcome.REJECTED
            self._transaction(transaction).end(outcome, self._seen.now_s())

    def _transaction(self, name: str) -> Transaction:
        found = self._transactions.get(name)
        if found is None:
            found = self._transactions[name] = self._seen.new_transaction(name)
        return found

    def on_seek(self, reader: str, partition: Partition, offset: int = ANY_OFFSET) -> None:
        """Record a reader's new position after an assignment or a seek, if the caller knows it."""
        _check_partitions(partition)
        check_number("offset", offset)
        self._seen.add_seek(reader, partition, offset)

    def expect_all_read(self, *readers: str) -> None:
        """Require that these readers or groups together get all final records.

        If they have read from some topics only, this means the final records of these topics.
        """
        with self._seen.lock:
            self._seen.expected_readers.append(readers)

    def on_poll(self, reader: str, records: Iterable[ReadRecord]) -> None:
        """Record the records that a read_committed reader got, in this order."""
        records = list(records)
        _check_records(records)
        self._seen.add_reads(reader, records)

    def on_final_read(self, reader: str, records: Iterable[ReadRecord]) -> None:
        """Record that a reader got all final records, from the start of each partition."""
        records = list(records)
        self.on_poll(reader, records)
        with self._seen.lock:
            self._seen.final_readers.add(reader)
            for partition, offset, value in records:
                self._seen.final[partition][offset] = FinalRecord(value)
        self._has_final_records = True

    def set_final_records(self, records: Iterable[Record]) -> None:
        """Set the final records of a topic, as `Kafka.records` returns them."""
        records = list(records)
        for one in records:
            if not hasattr(one, "topic"):
                raise TypeError(f"final records are those that Kafka.records returns, not {one!r:.100}")
        with self._seen.lock:
            for one in records:
                self._seen.final[one.topic, one.partition][one.offset] = FinalRecord(
                    one.value or b"", one.key, is_key_known=True
                )
        self._has_final_records = True

    def on_commit(self, group: str, partition: Partition, offset: int, *, may_go_back: bool = False) -> None:
        """Record an acknowledged offset commit. Set `may_go_back` after a reset of the group's offsets."""
        _check_partitions(partition)
        check_number("offset", offset)
        self._seen.add_commit(group, partition, offset, may_go_back=may_go_back)

    def on_assign(self, group: str, member: str, partitions: Iterable[Partition]) -> None:
        """Record partitions that a member was assigned in addition to the partitions that it owns."""
        self._record_ownership(group, member, partitions, assigned=True)

    def on_revoke(self, group: str, member: str, partitions: Iterable[Partition]) -> None:
        """Record partitions that a member has given up or lost."""
        self._record_ownership(group, member, partitions, assigned=False)

    def _record_ownership(
        self, group: str, member: str, partitions: Iterable[Partition], *, assigned: bool
    ) -> None:
        partitions = list(partitions)
        _check_partitions(*partitions)
        self._seen.add_ownership(group, member, partitions, assigned=assigned)

    # --- results

    @property
    def acknowledged_count(self) -> int:
        """The number of acknowledged records."""
        with self._seen.lock:
            return sum(sent.outcome is Outcome.ACKNOWLEDGED for sent in self._seen.sent)

    def longest_ack_gap_s(self, producer: str | None = None) -> float:
        """Return the longest time between consecutive acknowledgments, to one producer or to all together."""
        with self._seen.lock:
            times = sorted(
                sent.acknowledged_at_s
                for sent in self._seen.sent
                if sent.outcome is Outcome.ACKNOWLEDGED and producer in (None, sent.producer)
            )
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def check(self, *, at_least_once: bool = False, allow: Iterable[AnomalyKind] = ()) -> None:
        """Raise AssertionError if there are anomalies, with the first `MAX_ANOMALIES_SHOWN` of them.

        `at_least_once` allows producers without idempotence to duplicate and reorder records. `allow` names
        kinds of anomalies that are not reported, such as `{"read before commit"}`. Raises ValueError for an
        unknown kind, and without final records.
        """
        __tracebackhide__ = True  # pytest shows the caller's line
        allowed = {allow} if isinstance(allow, str) else set(allow)
        if unknown := sorted(allowed.difference(KINDS)):
            raise ValueError(f"there is no anomaly {unknown[0]!r}: use {', '.join(map(repr, KINDS))}")
        found = [one for one in self.anomalies(at_least_once=at_least_once) if one.kind not in allowed]
        if found:
            more = (
                [f"and {len(found) - MAX_ANOMALIES_SHOWN} more"] if len(found) > MAX_ANOMALIES_SHOWN else []
            )
            raise AssertionError(
                "\n  ".join(["the history has anomalies:", *map(str, found[:MAX_ANOMALIES_SHOWN]), *more])
            )

    def anomalies(self, *, at_least_once: bool = True) -> list[Anomaly]:
        """Return all anomalies. For `at_least_once`, see `check`."""
        if not self._has_final_records:
            raise ValueError(
                "the history has no final records: pass kafka= to History.of, or call read_final_records"
            )
        return find_anomalies(self._seen, at_least_once=at_least_once)


def _check_partitions(*partitions: object) -> None:
    """Raise TypeError unless all are pairs of topic name and partition number."""
    for partition in partitions:
        match partition:
            case (str(), int()) if isinstance(partition, tuple):
                continue
        raise TypeError(f"a partition is a topic and a number, such as ('orders', 0), not {partition!r:.100}")


def _check_records(records: Iterable[object]) -> None:
    """Raise TypeError unless all are a partition, an offset and a value."""
    for record in records:
        match record:
            case (partition, int(), _):
                _check_partitions(partition)
                continue
        raise TypeError(
            "a record is a partition, an offset and a value, such as (('orders', 0), 17, b'bill'), "
            f"not {record!r:.100}"
        )

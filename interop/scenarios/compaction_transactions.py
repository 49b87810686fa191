"""Compaction of a log with overlapping transactions: the retained records and the transaction indexes.

The cleaner stops at the last stable offset. If a transaction is aborted while a transaction that began later
is open, the abort marker is above the last stable offset. The cleaner must still discard the aborted records
below that offset, because aborted records do not supersede committed records.

The cleaner retains some aborted records in two cases. If cleaning starts inside a segment, the cleaner knows
only the transactions after the preceding entry of the offset index. And the cleaner does not know which
transactions were aborted before the log start offset.
"""

from __future__ import annotations

import time
from typing import Any

from interop.batches import Batch, Record
from interop.brokers import Broker
from interop.raw import produce
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.compaction import CHECKPOINT, CLEANER_SETTINGS, WAIT_S, CompactedLog
from interop.scenarios.raw_transactions import TransactionalId, wait_for_transaction_coordinator
from interop.tools import another

TOPIC = "overlapping"
FILLER = b"filler"
FILLED = 600_000
"""A value size in bytes. Two such values do not fit into one segment."""
TRANSACTIONAL = 0x10
INDEX_ENTRY = 34


class TransactionalLog:
    """A compacted log, and the transactional ids that write to it."""

    def __init__(self, broker: Broker, client: RawClient, configs: dict[str, str] | None = None) -> None:
        wait_for_transaction_coordinator(client, "any")
        self.client = client
        own = {"segment.ms": str(1 << 40), "delete.retention.ms": "0"}
        self.log = CompactedLog(broker, client, TOPIC, {**own, **(configs or {})})
        self.ids = {name: TransactionalId(client, name) for name in ("first", "second")}
        for one in self.ids.values():
            one.init()

    def write(self, key: bytes, value: bytes, name: str | None = None) -> None:
        batch = Batch([Record(value, key)], base_timestamp=int(time.time() * 1000))
        producer = None if name is None else self.ids[name]
        if producer is not None:
            batch.attributes = TRANSACTIONAL
            batch.producer_id, batch.producer_epoch = producer.producer_id, producer.epoch
            batch.base_sequence, producer.sequence = producer.sequence, producer.sequence + 1
            producer.add((TOPIC, 0))
        response = produce(self.client, TOPIC, batch.encode(), version=9, TransactionalId=name)
        assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, response

    def end(self, name: str, *, commit: bool) -> None:
        producer = self.ids[name]
        assert producer.end(commit=commit) in (0, [0]), name
        deadline = time.monotonic() + WAIT_S
        while not str(producer.described()).count("Complete"):
            assert time.monotonic() < deadline, producer.described()
            time.sleep(0.02)

    def roll(self) -> None:
        for _ in range(2):
            self.write(FILLER, bytes(FILLED))

    def clean(self, up_to: int) -> None:
        """Set the policy to compact until the cleaner's checkpoint is `up_to`, a segment's base offset."""
        self.log.set_policy("compact")
        deadline = time.monotonic() + WAIT_S
        while self.log.cleaned_offset() != up_to:
            assert time.monotonic() < deadline, (self.log.cleaned_offset(), up_to)
            time.sleep(0.05)
        self.log.set_policy("delete")

    def use_client(self, client: RawClient) -> None:
        """Replace the connection, for example after a restart of the broker."""
        self.client = self.log.client = client
        for one in self.ids.values():
            one.client = client

    def observe(self) -> dict[str, Any]:
        return {
            "records": [[*record[:3]] for record in self.log.records()[2]],
            "batches": [
                [
                    batch["base_offset"],
                    batch["last_offset_delta"],
                    batch["records_count"],
                    batch["attributes"],
                ]
                for batch in self.log.batches()
            ],
            "aborted": self.transaction_indexes(),
        }

    def transaction_indexes(self) -> dict[str, Any]:
        """Return the entries of each transaction index, with transactional ids instead of producer ids."""
        directory = self.log.broker.log_dir / f"{TOPIC}-0"
        names = {one.producer_id: name for name, one in self.ids.items()}
        found = {}
        for path in sorted(directory.glob("*.txnindex")):
            data = path.read_bytes()
            entries = [data[at : at + INDEX_ENTRY] for at in range(0, len(data), INDEX_ENTRY)]
            found[path.stem] = [
                [
                    names[int.from_bytes(entry[2:10], "big")],
                    *(int.from_bytes(entry[at : at + 8], "big") for at in (10, 18, 26)),
                ]
                for entry in entries
            ]
        return {name: entries for name, entries in found.items() if entries}


@scenario(seconds=240)
def ended_during_another_transaction(broker: Broker) -> Any:
    """Compact a log in several rounds. In the first, an abort marker is above the last stable offset."""
    with another(broker, CLEANER_SETTINGS) as own, RawClient(own.bootstrap) as client:
        log = TransactionalLog(own, client)
        log.write(b"key", b"committed")
        log.write(b"key", b"aborted", "first")
        log.write(b"gone", b"aborted", "first")
        log.roll()
        log.write(b"other", b"open", "second")
        log.end("first", commit=False)
        log.roll()
        log.roll()
        seen = {"before": log.observe()}
        bases = sorted(int(path.stem) for path in (own.log_dir / f"{TOPIC}-0").glob("*.log"))
        log.clean(bases[1])
        seen["while another is open"] = log.observe()
        log.end("second", commit=True)
        log.write(b"gone", b"again", "first")
        log.end("first", commit=False)
        log.roll()
        for number in range(3):
            log.roll()
            log.clean(log.log.active_segment_base_offset())
            seen[f"round {number}"] = log.observe()
        return seen


INDEX_EVERY_BATCH = {"index.interval.bytes": "0"}
"""With this configuration, each batch except the first of a segment has an entry in the offset index."""


def write_transactions_in_a_segment(log: TransactionalLog) -> int:
    """Write transactions with equal keys to one segment, and roll. Return an offset inside that segment."""
    log.write(b"key", b"old")
    log.write(b"other", b"old", "second")
    log.write(b"aborted", b"1", "first")
    log.end("first", commit=False)
    log.end("second", commit=True)
    log.write(b"plain", b"1")
    middle: int = log.log.records()[1]
    log.write(b"plain", b"2")
    log.write(b"key", b"new", "first")
    log.write(b"other", b"new", "second")
    log.end("first", commit=True)
    log.end("second", commit=False)
    log.write(b"key", b"newest", "first")
    log.end("first", commit=False)
    log.write(b"other", b"newest", "second")
    log.end("second", commit=True)
    log.roll()
    return middle


@scenario(seconds=240)
def cleaning_starts_inside_a_segment(broker: Broker) -> Any:
    """Set the cleaner's checkpoint inside a segment, after an abort marker. Then compact twice."""
    with another(broker, CLEANER_SETTINGS) as own:
        with RawClient(own.bootstrap) as client:
            log = TransactionalLog(own, client, INDEX_EVERY_BATCH)
            middle = write_transactions_in_a_segment(log)
            seen = {"before": log.observe()}
        own.stop()
        (own.log_dir / CHECKPOINT).write_text(f"0\n1\n{TOPIC} 0 {middle}\n")
        own.start()
        with RawClient(own.bootstrap) as client:
            log.use_client(client)
            for number in range(2):
                log.clean(log.log.active_segment_base_offset())
                seen[f"round {number}"] = log.observe()
                log.write(b"other", b"more", "second")
                log.end("second", commit=False)
                log.roll()
        return seen


@scenario(seconds=240)
def aborted_before_the_log_start(broker: Broker) -> Any:
    """Delete records up to an offset inside a segment, after an abort marker, and compact three times."""
    with another(broker, CLEANER_SETTINGS) as own, RawClient(own.bootstrap) as client:
        log = TransactionalLog(own, client, INDEX_EVERY_BATCH)
        middle = write_transactions_in_a_segment(log)
        seen = {"before": log.observe()}
        wanted = [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0, "Offset": middle}]}]
        seen["deleted"] = client.call("DeleteRecords", 2, Topics=wanted, TimeoutMs=10_000)["Topics"]
        for number in range(3):
            log.clean(log.log.active_segment_base_offset())
            seen[f"round {number}"] = log.observe()
            log.roll()
        return seen

"""Transactional ids whose epoch is near the maximum: ended, fenced and timed out, in both protocols.

To reach this epoch, a client would need 32,766 transactions. Instead, the scenarios write records of ids with
a high epoch into __transaction_state and restart the broker, which loads the ids.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from interop.batches import Batch, Record
from interop.brokers import Broker
from interop.raw import create_topic, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_transaction_errors import txn_commit
from interop.scenarios.raw_transactions import (
    LOADING,
    WAIT_S,
    TransactionalId,
    set_transaction_version,
    settle,
    wait_for_abort,
    wait_for_transaction_coordinator,
    with_client,
)
from interop.tools import another
from interop.wire import encode_request

LAST, GREATEST = 32_766, 32_767
EMPTY = 0
TIMEOUT_MS = 1_000
STATE_TOPIC, STATE_PARTITIONS = "__transaction_state", 4
FIRST_ID = 70_000_000
QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


def _partition_of(name: str) -> int:
    """Return a transactional id's partition of __transaction_state, computed from Java's hash of the id."""
    value = reduce(lambda hashed, byte: (31 * hashed + byte) & 0xFFFFFFFF, name.encode("ascii"), 0)
    return min(value, (1 << 32) - value) % STATE_PARTITIONS


def _store(client: RawClient, name: str, producer_id: int, epoch: int) -> None:
    """Write the record of a transactional id in state Empty, as the coordinator would write the record."""
    key = struct.pack(">hh", 0, len(name)) + name.encode()
    now_ms = int(time.time() * 1000)
    value = struct.pack(">hqhibiqq", 0, producer_id, epoch, 60_000, EMPTY, -1, now_ms, -1)
    partition = {
        "Index": _partition_of(name),
        "Records": Batch([Record(value, key=key)]).encode(),
    }
    client.correlation_id += 1
    fields = {
        "Acks": -1,
        "TimeoutMs": 10_000,
        "TopicData": [{"Name": STATE_TOPIC, "PartitionData": [partition]}],
    }
    # From any other client id, Apache Kafka rejects writes to an internal topic.
    client.send_frame(
        encode_request("Produce", 9, fields, correlation_id=client.correlation_id, client_id="__admin_client")
    )
    response = client.receive("Produce", 9)
    assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, response


def _load_ids(own: Broker, topic: str, names: Iterable[str], epoch: int) -> None:
    """Write records of transactional ids into __transaction_state. Restart the broker, which loads them."""
    with RawClient(own.bootstrap) as client:
        wait_for_transaction_coordinator(client, "any")
        create_topic(client, topic, 1)
        for number, name in enumerate(names):
            warm = TransactionalId(client, f"warm-{name}")
            assert warm.init()[0] == 0
            _store(client, name, FIRST_ID + number, epoch)
    own.restart()


def _known_id(client: RawClient, name: str, number: int, epoch: int) -> TransactionalId:
    one = TransactionalId(client, name)
    deadline = time.monotonic() + WAIT_S
    while one.described()[0] in LOADING and time.monotonic() < deadline:
        time.sleep(0.05)
    one.producer_id, one.epoch = FIRST_ID + number, epoch
    return one


@contextmanager
def _broker_with_ids(
    broker: Broker, level: int, topic: str, names: Sequence[str], epoch: int
) -> Iterator[tuple[RawClient, dict[str, TransactionalId]]]:
    """Start a broker with transaction.version `level` that has loaded transactional ids with this epoch."""
    with another(broker, QUICK) as own:
        if level == 1:
            with RawClient(own.bootstrap) as client:
                wait_for_transaction_coordinator(client, "any")
                assert set_transaction_version(client, level) == 0
        _load_ids(own, topic, names, epoch)
        with RawClient(own.bootstrap) as client:
            wait_for_transaction_coordinator(client, "any")
            assert (
                TransactionalId(client, "fresh").init()[0] == 0
            )  # now the broker has a block of producer ids
            yield client, {name: _known_id(client, name, number, epoch) for number, name in enumerate(names)}


def _describe(one: TransactionalId) -> Any:
    code, state, _, epoch, topics = one.described()
    return [code, state, epoch, topics]


@scenario(seconds=180)
def last_epoch(broker: Broker) -> Any:
    """Use the highest epoch that a client can get, with each transaction.version."""
    seen: dict[str, Any] = {}
    names = ["committed", "aborted", "of-nothing", "successor", "timed-out", "recovers", "others"]
    for level in (2, 1):
        topic = f"raw-epochs-{level}"
        produced, ended = (12, 5) if level == 2 else (11, 4)
        with _broker_with_ids(broker, level, topic, names, LAST) as (client, ids):

            def begin(
                one: TransactionalId, level: int = level, topic: str = topic, version: int = produced
            ) -> Any:
                added = one.add((topic, 0)) if level == 1 else None
                return [added, one.send(topic, version=version)[0]]

            for name in ("committed", "aborted", "of-nothing"):
                one = ids[name]
                before: dict[str, Any] = {"ProducerId": one.producer_id, "ProducerEpoch": one.epoch}
                commit = name == "committed"
                steps = [] if name == "of-nothing" else [begin(one)]
                steps += [one.end(commit=commit, version=ended), _describe(one)]
                steps += [one.end(commit=commit, version=ended, **before), _describe(one)]
                seen[f"{level} {name}"] = [*steps, begin(one), one.end(commit=True, version=ended)]
                settle(one)
            one = ids["successor"]
            seen[f"{level} successor"] = [
                begin(one),
                *_next_and_former(one, ended),
                begin(one),
                _describe(one),
                *_next_and_former(one, ended),
            ]
            one = ids["timed-out"]
            steps = [one.init(timeout_ms=TIMEOUT_MS), begin(one)]
            wait_for_abort(one)
            steps += [_describe(one), one.end(commit=False, version=ended), _describe(one)]
            seen[f"{level} timed out"] = [*steps, one.init(), _describe(one)]
            one = ids["recovers"]
            for epoch in (5, LAST - 1, GREATEST, LAST):
                named = {"ProducerId": FIRST_ID + names.index("recovers"), "ProducerEpoch": epoch}
                steps = [one.init(version, **named) for version in (3, 4, 5)]
                seen[f"{level} recovers {epoch}"] = steps
            seen[f"{level} others"] = [begin(ids["others"]), TransactionalId(client, "warm-others").init()]
    return seen


def _next_and_former(one: TransactionalId, ended: int) -> list[Any]:
    """Return the responses to the next producer with this transactional id, and to the former producer."""
    old: dict[str, Any] = {"ProducerId": one.producer_id, "ProducerEpoch": one.epoch}
    steps = [TransactionalId(one.client, one.name).init(), _describe(one)]
    steps.append(one.end(commit=False, version=ended, **old))
    settle(one)
    return [*steps, one.init(), _describe(one)]


@scenario(seconds=180)
def greatest_epoch(broker: Broker) -> Any:
    """Use epoch 32,767, which coordinators never return to clients of the first transaction protocol."""
    seen: dict[str, Any] = {}
    names = ["committed", "aborted", "successor", "timed-out", "others"]
    for level in (2, 1):
        topic = f"raw-epochs-{level}"
        with _broker_with_ids(broker, level, topic, names, GREATEST) as (client, ids):
            for version in (4, 5) if level == 2 else (4,):
                for commit in (True, False) if version == 4 else (False,):
                    one = ids["committed" if commit else "aborted"]
                    one.producer_id, one.epoch = FIRST_ID + names.index(one.name), GREATEST
                    steps = [one.add((topic, 0)), one.send(topic)[0]]
                    steps += [one.end(commit=commit, version=version), _describe(one)]
                    seen[f"{level} v{version} {one.name}"] = steps
            one = ids["successor"]
            seen[f"{level} successor"] = [one.add((topic, 0)), one.send(topic)[0], *_next_and_former(one, 4)]
            one = ids["timed-out"]
            steps = [one.init(timeout_ms=TIMEOUT_MS), one.add((topic, 0)), one.send(topic)[0]]
            wait_for_abort(one)
            seen[f"{level} timed out"] = [*steps, _describe(one), one.init(), _describe(one)]
            seen[f"{level} others"] = TransactionalId(client, "warm-others").init()
    return seen


@scenario()
def offsets_with_foreign_id(broker: Broker) -> Any:
    """Commit offsets with the transactional id of another producer, and with a fenced epoch."""

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, "raw-epochs-offsets", 1)
        wait_for_coordinator(client, "raw-epochs-group")
        mine, other = TransactionalId(client, "raw-epochs-mine"), TransactionalId(client, "raw-epochs-other")
        for version in (0, 2, 3, 5):
            mine.init()
            other.init()
            old = {"ProducerId": mine.producer_id, "ProducerEpoch": mine.epoch}
            commit_fields: dict[str, Any] = {
                "GroupId": "raw-epochs-group",
                "GenerationId": -1,
                "MemberId": "",
                "TransactionalId": mine.name,
            }
            steps: list[Any] = []
            identity = {"ProducerId": mine.producer_id, "ProducerEpoch": mine.epoch}
            added = client.call(
                "AddOffsetsToTxn", 3, TransactionalId=mine.name, GroupId="raw-epochs-group", **identity
            )
            steps.append(added["ErrorCode"])
            steps.append(txn_commit(client, 3, "raw-epochs-offsets", **{**commit_fields, **identity}))
            steps.append(TransactionalId(client, mine.name).init())
            settle(mine)
            for name in (mine.name, other.name):
                fields = {**commit_fields, **old, "TransactionalId": name}
                steps.append(txn_commit(client, version, "raw-epochs-offsets", **fields))
            fields = {**commit_fields, "ProducerId": other.producer_id, "ProducerEpoch": other.epoch}
            steps.append(txn_commit(client, version, "raw-epochs-offsets", **fields))
            seen[f"v{version}"] = steps

    return with_client(broker, work)

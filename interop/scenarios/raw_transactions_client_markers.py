"""Transaction markers that a client writes in place of the coordinator, and the state that follows."""

from __future__ import annotations

import time
from typing import Any

from interop.brokers import Broker
from interop.raw import create_topic, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_transactions import (
    LOADING,
    WAIT_S,
    TransactionalId,
    end_offsets,
    wait_for_transaction_coordinator,
)
from interop.scenarios.raw_transactions_log_start import own_broker

GROUP = "raw-fenced"
OFFSETS_OF = "raw-fenced-offsets-of"
WRONG: dict[str, int] = {"ProducerId": 987_654}
MARKERS_S = 1.0
"""A wait in seconds that is far longer than the coordinator needs to write markers."""
AFTER_START_S = 4.0
"""The same wait if the coordinator must first open the connection on which it sends markers."""


def state(one: TransactionalId) -> Any:
    """Describe the transaction without waiting until it has ended."""
    deadline = time.monotonic() + WAIT_S
    while True:
        response = one.client.call("DescribeTransactions", 0, TransactionalIds=[one.name])
        response = response["TransactionStates"][0]
        if response["ErrorCode"] not in LOADING or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return [
        response["ErrorCode"],
        response["TransactionState"],
        response["ProducerEpoch"],
        sorted([topic["Topic"], sorted(topic["Partitions"])] for topic in response["Topics"]),
    ]


def lasting_state(one: TransactionalId) -> Any:
    """Wait at most `MARKERS_S` until the state is not PrepareCommit or PrepareAbort. Return the state."""
    deadline = time.monotonic() + MARKERS_S
    while (found := state(one))[1].startswith("Prepare") and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def mark(
    one: TransactionalId, topic: str, *, epoch: int, coordinator: int, commit: bool, version: int
) -> Any:
    """Send WriteTxnMarkers for partition 0, with these producer and coordinator epochs. Return the error."""
    marker = {
        "ProducerId": one.producer_id,
        "ProducerEpoch": epoch,
        "TransactionResult": commit,
        "Topics": [{"Name": topic, "PartitionIndexes": [0]}],
        "CoordinatorEpoch": coordinator,
        **({"TransactionVersion": 2} if version >= 2 else {}),
    }
    response = one.client.call("WriteTxnMarkers", version, Markers=[marker])
    return [
        partition["ErrorCode"]
        for found in response["Markers"][0]["Topics"]
        for partition in found["Partitions"]
    ]


@scenario(seconds=150)
def epochs_ahead(broker: Broker) -> Any:
    """Write markers with a higher coordinator or producer epoch before the transaction ends."""
    seen: dict[str, Any] = {}
    waiting: list[TransactionalId] = []
    with own_broker(broker) as (own, client):
        wait_for_coordinator(client, GROUP)
        for version, produced in ((1, 11), (2, 12)):
            for coordinator, ahead_by in ((50, 0), (0, 1), (0, 2)):
                for commit in (True, False):
                    topic = f"ahead-{version}-{coordinator}-{ahead_by}-{commit}"
                    create_topic(client, topic, 2)
                    one = TransactionalId(client, topic)
                    one.init()
                    epoch = one.epoch + ahead_by
                    if produced == 11:
                        one.add((topic, 0), (topic, 1))
                    steps: list[Any] = [one.send(topic, version=produced)[0]]
                    steps.append(one.send(topic, 1, version=produced, sequence=0)[0])
                    steps.append(
                        mark(one, topic, epoch=epoch, coordinator=coordinator, commit=False, version=version)
                    )
                    steps.append([state(one), end_offsets(client, topic)])
                    steps.append(one.end(commit=commit, version=5 if produced == 12 else 4))
                    steps.append([lasting_state(one), end_offsets(client, topic)])
                    if steps[-1][0][1].startswith("Prepare"):
                        waiting.append(one)
                        steps.append(_responses(one, topic))
                    seen[topic] = steps
        for times in (1, 2):
            own.stop()
            own.start()
            with RawClient(own.bootstrap) as client:
                wait_for_transaction_coordinator(client, "any")
                for one in waiting:
                    one.client = client
                    state(one)
                time.sleep(AFTER_START_S)
                for one in waiting:
                    seen[f"{one.name} restarted {times}"] = lasting_state(one)
    return seen


def _responses(one: TransactionalId, topic: str) -> Any:
    """Send requests as the producer, with a later epoch, and with another producer id. Return the errors.

    The last request is InitProducerId with the same transactional id.
    """
    steps: list[Any] = [one.add((topic, 0))]
    wrong: tuple[dict[str, int], ...] = ({}, {"ProducerEpoch": one.epoch + 3}, {"ProducerId": 987_654})
    for version in (4, 5):
        for commit in (True, False):
            steps += [one.end(commit=commit, version=version, patient=False, **who) for who in wrong]
    steps += [_offsets(one, topic, version, who) for version in (2, 3, 4, 5) for who in wrong]
    steps.append(one.init())
    return steps


def _offsets(one: TransactionalId, topic: str, version: int, who: dict[str, int]) -> Any:
    """Send TxnOffsetCommit as the producer, except for the fields in `who`. Return the error code."""
    response = one.client.call(
        "TxnOffsetCommit",
        version,
        GroupId=GROUP,
        **{**one.identity, **who},
        Topics=[{"Name": topic, "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 1}]}],
    )
    return response["Topics"][0]["Partitions"][0]["ErrorCode"]


@scenario()
def offsets_before_the_first_group(broker: Broker) -> Any:
    """Commit transactional offsets before any client has requested a group coordinator."""
    seen: dict[str, Any] = {}
    with own_broker(broker) as (_, client):
        create_topic(client, OFFSETS_OF, 1)
        for version in (3, 4):
            one = TransactionalId(client, f"no-groups-{version}")
            one.init()
            steps = [
                _offsets(one, OFFSETS_OF, requested, who) for requested in (2, 3, 4, 5) for who in ({}, WRONG)
            ]
            steps += [client.call("AddOffsetsToTxn", version, GroupId=GROUP, **one.identity)["ErrorCode"]]
            steps.append(lasting_state(one))
            steps += [
                _offsets(one, OFFSETS_OF, requested, who) for requested in (2, 3, 4, 5) for who in ({}, WRONG)
            ]
            steps.append(one.end(commit=True))
            steps.append(lasting_state(one))
            seen[one.name] = steps
    return seen

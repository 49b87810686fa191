"""Transactions that time out, and transactions whose offsets are deleted or overwritten."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

from interop.brokers import Broker
from interop.raw import create_topic, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_transaction_errors import fetched_offsets, txn_commit
from interop.scenarios.raw_transactions import (
    TransactionalId,
    own_broker,
    set_transaction_version,
    settle,
    wait_for_abort,
    with_client,
)

TIMEOUT_MS = 1_000


@scenario(seconds=150)
def timed_out(broker: Broker) -> Any:
    """End a transaction that has timed out, in every version and with each transaction.version."""
    topic = "raw-txn-late"
    seen: dict[str, Any] = {}
    overrides = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with own_broker(broker, topic, overrides) as client:
        for level in (2, 1):
            seen[f"to {level}"] = 0 if level == 2 else set_transaction_version(client, level)
            late: list[tuple[TransactionalId, bool, int]] = []
            for produced, commit, version in product((11, 12), (True, False), (3, 4, 5)):
                one = TransactionalId(client, f"late-{level}-{produced}-{commit}-{version}")
                one.init(timeout_ms=TIMEOUT_MS)
                if produced == 11:
                    one.add((topic, 0))
                seen[f"{one.name} sent"] = one.send(topic, version=produced)[0]
                late.append((one, commit, version))
            for one, _, _ in late:
                wait_for_abort(one)
            for one, commit, version in late:
                steps = [one.described(), one.end(commit=commit, version=version), one.described()]
                steps.append(one.end(commit=commit, version=version))
                settle(one)
                seen[one.name] = [*steps, one.init()]
    return seen


@scenario(seconds=120)
def offsets_deleted(broker: Broker) -> Any:
    """Delete offsets, groups and topics while a transaction has pending offsets."""

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        for how, committed_before, commit in product(
            ("offset", "group", "topic"), (True, False), (True, False)
        ):
            name = f"raw-txn-deleted-{how}-{committed_before}-{commit}"
            create_topic(client, name, 2)
            wait_for_coordinator(client, name)
            one = TransactionalId(client, name)
            one.init()
            if committed_before:
                _commit(one, name, 1)
                seen[f"{name} first"] = one.end(commit=True)
                settle(one)
            steps: list[Any] = [_commit(one, name, 2), fetched_offsets(client, name, name)]
            steps.append(_delete(client, how, name))
            if how != "topic":
                steps.append(fetched_offsets(client, name, name))
            steps.append(one.end(commit=commit))
            settle(one)
            if how != "topic":
                steps.append(fetched_offsets(client, name, name))
            described = client.call("DescribeGroups", 5, Groups=[name])["Groups"][0]
            seen[name] = [*steps, described["GroupState"]]

    return with_client(broker, work)


def _commit(one: TransactionalId, name: str, offset: int) -> list[int]:
    added = one.client.call("AddOffsetsToTxn", 3, **one.identity, GroupId=name)["ErrorCode"]
    return [added, txn_commit(one.client, 3, name, offset=offset, GroupId=name, **one.identity)]


def _delete(client: RawClient, how: str, name: str) -> Any:
    if how == "topic":
        response = client.call("DeleteTopics", 5, TopicNames=[name], TimeoutMs=10_000)
        return response["Responses"][0]["ErrorCode"]
    if how == "group":
        response = client.call("DeleteGroups", 2, GroupsNames=[name])
        return response["Results"][0]["ErrorCode"]
    topics = [{"Name": name, "Partitions": [{"PartitionIndex": index} for index in (0, 1)]}]
    response = client.call("OffsetDelete", 0, GroupId=name, Topics=topics)
    partitions = response["Topics"][0]["Partitions"] if response["Topics"] else []
    return [response["ErrorCode"], *(partition["ErrorCode"] for partition in partitions)]


@scenario(seconds=150)
def transaction_version_0(broker: Broker) -> Any:
    """Run clients of both protocols with transaction.version 0, which rejects some requests.

    After such a request, Apache Kafka returns CONCURRENT_TRANSACTIONS for the transactional id until the
    coordinator is reloaded, because the coordinator waits for a record that was never written.
    """
    topic, group = "raw-txn-level-0", "raw-txn-level-0-group"
    seen: dict[str, Any] = {}
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with own_broker(broker, topic, often) as client:
        wait_for_coordinator(client, group)
        seen["to 0"] = set_transaction_version(client, 0)
        for produced, commit, version in product((11, 12), (True, False), (3, 4, 5)):
            one = TransactionalId(client, f"level-0-{produced}-{commit}-{version}")
            steps = [one.init(timeout_ms=1_000)]
            known = {"ProducerId": one.producer_id, "ProducerEpoch": one.epoch}
            if produced == 11:
                steps.append(one.add((topic, 0)))
            steps.append(one.send(topic, version=produced)[0])
            if not steps[-1]:
                steps.append(one.end(commit=commit, version=version))
            if not steps[-1] or (isinstance(steps[-1], list) and not steps[-1][0]):
                steps += [one.described(), one.init()]
            else:
                steps += _responses_to_pending(one, known, topic)
            seen[one.name] = steps
        for version in (3, 4, 5):
            one = TransactionalId(client, f"level-0-offsets-{version}")
            one.init()
            known = {"ProducerId": one.producer_id, "ProducerEpoch": one.epoch}
            offsets = [{"PartitionIndex": 0, "CommittedOffset": 1}]
            response = client.call(
                "TxnOffsetCommit",
                version,
                GroupId=group,
                **one.identity,
                Topics=[{"Name": topic, "Partitions": offsets}],
            )
            committed = response["Topics"][0]["Partitions"][0]["ErrorCode"]
            seen[one.name] = [committed, *(_responses_to_pending(one, known, topic) if version == 5 else [])]
        time.sleep(2)
        # The coordinator does not abort the transactions of pending ids after their timeout.
        seen["afterwards"] = [
            [name, TransactionalId(client, name).described()] for name in seen if name.startswith("level-0-")
        ]
    return seen


def _responses_to_pending(one: TransactionalId, known: dict[str, int], topic: str) -> list[Any]:
    """Send requests for the transactional id `one`, whose coordinator waits for a record never written.

    The requests have the producer id and epoch `known`, a wrong epoch, or a wrong producer id.
    """
    steps: list[Any] = [one.described()]
    steps.append(one.add((topic, 0)))
    steps.append(one.add((topic, 0), ProducerEpoch=7))
    steps.append(one.add((topic, 0), ProducerId=987_654))
    ends = product((4, 5), (True, False))
    steps += [one.end(commit=commit, version=version, patient=False) for version, commit in ends]
    steps.append(one.end(commit=True, patient=False, ProducerEpoch=7))
    steps.append(one.send(topic, version=11)[0])
    steps.append(one.init(**{**known, "ProducerEpoch": 7}))
    steps.append(one.init(**known))
    steps.append(one.init())
    return steps


@scenario(seconds=120)
def overlapping_offset_commits(broker: Broker) -> Any:
    """Commit one partition's offsets in two transactions and outside. End the transactions in both orders."""
    topic = "raw-txn-overtaken"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 2)
        for first, commit, plain in product((0, 1), (True, False), (None, 0, 1, 2)):
            group = f"{topic}-{first}-{commit}-{plain}"
            wait_for_coordinator(client, group)
            ids = [TransactionalId(client, f"{group}-{number}") for number in (0, 1)]
            steps: list[Any] = []
            for number, one in enumerate(ids):
                one.init()
                if plain == number:
                    steps.append(_commit_outside_transaction(client, group, topic, 100))
                added = client.call("AddOffsetsToTxn", 3, **one.identity, GroupId=group)["ErrorCode"]
                offset = 5 + 4 * number
                committed = txn_commit(client, 3, topic, offset=offset, GroupId=group, **one.identity)
                steps.append([added, committed])
            if plain == 2:
                steps.append(_commit_outside_transaction(client, group, topic, 100))
            steps.append(fetched_offsets(client, group, topic))
            for one, commits in ((ids[first], True), (ids[1 - first], commit)):
                steps.append(one.end(commit=commits))
                settle(one)
                steps.append(fetched_offsets(client, group, topic))
            seen[group] = steps

    return with_client(broker, work)


def _commit_outside_transaction(client: RawClient, group: str, topic: str, offset: int) -> int:
    topics = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "CommittedOffset": offset}]}]
    response = client.call(
        "OffsetCommit", 7, GroupId=group, GenerationIdOrMemberEpoch=-1, MemberId="", Topics=topics
    )
    code: int = response["Topics"][0]["Partitions"][0]["ErrorCode"]
    return code

"""Transactions, request by request: producers and epochs, commits and aborts, and what consumers read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

from interop.batches import Batch, Record
from interop.brokers import Broker
from interop.raw import create_topic, fetch, produce, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.tools import another
from interop.wire import Fields, versions_of

WAIT_S = 20.0
CONCURRENT = 51
LOADING = (14, 15, 16)
TRANSACTIONAL = 0x10


class TransactionalId:
    """A transactional id and its current producer."""

    def __init__(self, client: RawClient, name: str) -> None:
        self.client = client
        self.name = name
        self.producer_id = -1
        self.epoch = -1
        self.sequence = 0

    def init(self, version: int = 5, timeout_ms: int = 60_000, **fields: Any) -> Any:
        """Send InitProducerId until the coordinator has loaded. Return the error code and the epoch."""
        deadline = time.monotonic() + WAIT_S
        while True:
            response = self.client.call(
                "InitProducerId",
                version,
                TransactionalId=self.name,
                TransactionTimeoutMs=timeout_ms,
                **fields,
            )
            if response["ErrorCode"] not in LOADING or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if response["ErrorCode"] == 0:
            self.producer_id, self.epoch = response["ProducerId"], response["ProducerEpoch"]
            self.sequence = 0
        return [response["ErrorCode"], response["ProducerEpoch"]]

    @property
    def identity(self) -> Fields:
        return {"TransactionalId": self.name, "ProducerId": self.producer_id, "ProducerEpoch": self.epoch}

    def add(self, *partitions: tuple[str, int], version: int = 3, **other: Any) -> Any:
        """Send AddPartitionsToTxn, at most in version 3. Return topic and error code of each partition."""
        who = {**self.identity, **other}
        response = self.client.call(
            "AddPartitionsToTxn",
            version,
            V3AndBelowTransactionalId=who["TransactionalId"],
            V3AndBelowProducerId=who["ProducerId"],
            V3AndBelowProducerEpoch=who["ProducerEpoch"],
            V3AndBelowTopics=[{"Name": topic, "Partitions": [index]} for topic, index in partitions],
        )
        return sorted(
            [topic["Name"], result["PartitionErrorCode"]]
            for topic in response["ResultsByTopicV3AndBelow"]
            for result in topic["ResultsByPartition"]
        )

    def send(self, topic: str, partition: int = 0, *, version: int = 11, count: int = 1, **other: Any) -> Any:
        """Produce one batch in the transaction. `other` replaces its epoch, producer_id or sequence.

        Return the error code, the base offset, and whether there is an error message.
        """
        fields = {"epoch": self.epoch, "producer_id": self.producer_id, "sequence": self.sequence, **other}
        batch = Batch(
            [Record(b"%d" % index) for index in range(count)],
            attributes=TRANSACTIONAL,
            producer_id=fields["producer_id"],
            producer_epoch=fields["epoch"],
            base_sequence=fields["sequence"],
        )
        response = produce(
            self.client,
            topic,
            batch.encode(),
            partition=partition,
            version=version,
            TransactionalId=self.name,
        )
        found = response["Responses"][0]["PartitionResponses"][0]
        if found["ErrorCode"] == 0:
            self.sequence += count
        return [found["ErrorCode"], found["BaseOffset"], bool(found.get("ErrorMessage"))]

    def end(self, *, commit: bool, version: int = 4, patient: bool = True, **other: Any) -> Any:
        """Send EndTxn, again after CONCURRENT_TRANSACTIONS if `patient` is set. Return the error code.

        From version 5 on, the producer continues with the producer id and epoch in the response. The method
        also returns this epoch, and whether the producer id is unchanged.
        """
        deadline = time.monotonic() + WAIT_S
        while True:
            response = self.client.call("EndTxn", version, **{**self.identity, "Committed": commit, **other})
            if response["ErrorCode"] != CONCURRENT or not patient or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        seen = [response["ErrorCode"]]
        if version >= 5:
            seen += [response["ProducerEpoch"], response["ProducerId"] == self.producer_id]
            if response["ErrorCode"] == 0:
                self.producer_id, self.epoch = response["ProducerId"], response["ProducerEpoch"]
                self.sequence = 0
        return seen

    def described(self) -> Any:
        """Send DescribeTransactions until the coordinator has no pending markers. Return the description."""
        deadline = time.monotonic() + WAIT_S
        while True:
            response = self.client.call("DescribeTransactions", 0, TransactionalIds=[self.name])
            state = response["TransactionStates"][0]
            if not state["TransactionState"].startswith("Prepare") or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return [
            state["ErrorCode"],
            state["TransactionState"],
            state["TransactionTimeoutMs"],
            state["ProducerEpoch"],
            [[topic["Topic"], topic["Partitions"]] for topic in state["Topics"]],
        ]


def settle(*ids: TransactionalId) -> None:
    for one in ids:
        one.described()


def wait_for_abort(one: TransactionalId) -> None:
    """Wait until the coordinator has aborted the transaction after its timeout, or until a deadline."""
    deadline = time.monotonic() + WAIT_S
    while one.described()[1] == "Ongoing" and time.monotonic() < deadline:
        time.sleep(0.1)


def end_offsets(client: RawClient, topic: str) -> Any:
    """Return the last stable offset and the high watermark of partition 0."""
    found = []
    for isolation in (1, 0):
        requested = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}]
        response = client.call("ListOffsets", 5, ReplicaId=-1, IsolationLevel=isolation, Topics=requested)
        found.append(response["Topics"][0]["Partitions"][0]["Offset"])
    return found


def committed_view(client: RawClient, topic: str, offset: int = 0) -> Any:
    """Fetch partition 0 with read_committed.

    Return the error code, high watermark, last stable offset, and first offsets of aborted transactions.
    """
    response = fetch(client, topic, offset, IsolationLevel=1)
    found = response["Responses"][0]["Partitions"][0]
    first = [one["FirstOffset"] for one in found["AbortedTransactions"] or []]
    return [found["ErrorCode"], found["HighWatermark"], found["LastStableOffset"], first]


def wait_for_transaction_coordinator(client: RawClient, name: str) -> None:
    """Send FindCoordinator, which creates __transaction_state, until the coordinator is available."""
    deadline = time.monotonic() + WAIT_S
    while client.call("FindCoordinator", 2, Key=name, KeyType=1)["ErrorCode"]:
        assert time.monotonic() < deadline, "no transaction coordinator"
        time.sleep(0.05)


def with_client(broker: Broker, work: Callable[[RawClient, dict[str, Any]], None]) -> Any:
    seen: dict[str, Any] = {}
    with RawClient(broker.bootstrap) as client:
        wait_for_transaction_coordinator(client, "any")
        work(client, seen)
    return seen


@scenario()
def init_producer_id(broker: Broker) -> Any:
    """Send InitProducerId in every version: check epochs, fencing, recovery and limits."""

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        for version in [one for one in versions_of("InitProducerId") if one <= 5]:
            one = TransactionalId(client, f"raw-init-v{version}")
            seen[f"v{version}"] = [one.init(version), one.init(version)]
        one = TransactionalId(client, "raw-init")
        for timeout in (0, -1, 900_000, 900_001):
            seen[f"timeout {timeout}"] = one.init(timeout_ms=timeout)
        seen["empty id"] = TransactionalId(client, "").init()
        seen["again"] = one.init()
        known = {"ProducerId": one.producer_id, "ProducerEpoch": one.epoch}
        seen["expected"] = one.init(**known)
        seen["expected again"] = one.init(**known)
        for version in (3, 4):
            seen[f"wrong epoch v{version}"] = one.init(version, **{**known, "ProducerEpoch": 99})
            seen[f"wrong id v{version}"] = one.init(
                version, ProducerId=known["ProducerId"] + 999, ProducerEpoch=0
            )
        seen["id without epoch"] = one.init(ProducerId=known["ProducerId"], ProducerEpoch=-1)
        seen["epoch without id"] = one.init(ProducerId=-1, ProducerEpoch=0)
        seen["new with 0 and 0"] = TransactionalId(client, "raw-init-new").init(ProducerId=0, ProducerEpoch=0)
        seen["described"] = one.described()
        seen["unknown"] = TransactionalId(client, "raw-init-nobody").described()

    return with_client(broker, work)


@scenario()
def end_txn(broker: Broker) -> Any:
    """Send EndTxn in each version, also repeatedly, too early, and as another producer."""
    topic = "raw-txn-ends"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 2)
        for version in versions_of("EndTxn"):
            for commit in (True, False):
                one = TransactionalId(client, f"raw-ends-v{version}-{commit}")
                name = f"v{version} commit" if commit else f"v{version} abort"
                produced = 12 if version >= 5 else 11
                steps: list[Any] = [one.init(), one.end(commit=commit, version=version), one.described()]
                if version < 5:
                    steps.append(one.add((topic, 0)))
                steps.append([one.send(topic, version=produced)[0], one.described()[1]])
                before: dict[str, Any] = {"ProducerEpoch": one.epoch, "ProducerId": one.producer_id}
                steps.append(one.end(commit=commit, version=version))
                settle(one)
                steps.append(one.end(commit=commit, version=version, **before))
                steps.append(one.end(commit=not commit, version=version, **before))
                steps.append(one.described())
                seen[name] = steps
        one = TransactionalId(client, "raw-ends-wrong")
        seen["unknown id"] = TransactionalId(client, "raw-ends-nobody").end(commit=True)
        one.init()
        seen["empty id"] = one.end(commit=True, TransactionalId="")
        seen["wrong producer"] = one.end(commit=True, ProducerId=one.producer_id + 999)
        for version in (1, 2, 5):
            seen[f"older epoch v{version}"] = one.end(commit=True, version=version, ProducerEpoch=-1)
            seen[f"future epoch v{version}"] = one.end(
                commit=True, version=version, ProducerEpoch=one.epoch + 7
            )

    return with_client(broker, work)


@scenario(seconds=120)
def end_txn_versions(broker: Broker) -> Any:
    """Begin transactions of both protocols, and end each one twice, with all combinations of versions."""
    topic = "raw-txn-turns"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 1)
        for produced in (11, 12):
            for first, second in product((3, 4, 5), (3, 4, 5)):
                for commit, then in product((True, False), (True, False)):
                    one = TransactionalId(client, f"raw-turns-{produced}-{first}-{second}-{commit}-{then}")
                    one.init()
                    if produced == 11:
                        one.add((topic, 0))
                    one.send(topic, version=produced)
                    steps = [one.end(commit=commit, version=first), one.described()]
                    steps += [one.end(commit=then, version=second), one.described()]
                    seen[one.name] = [*steps, one.init(), one.described()]

    return with_client(broker, work)


@contextmanager
def own_broker(broker: Broker, topic: str, overrides: dict[str, str] | None = None) -> Iterator[RawClient]:
    """Start a separate broker with this topic and a transaction coordinator, and yield a client."""
    with another(broker, overrides) as own, RawClient(own.bootstrap) as client:
        wait_for_transaction_coordinator(client, "any")
        create_topic(client, topic, 1)
        yield client


def set_transaction_version(client: RawClient, level: int) -> int:
    """Upgrade or downgrade transaction.version, and return the error code."""
    update = {
        "Feature": "transaction.version",
        "MaxVersionLevel": level,
        "UpgradeType": 1 if level == 2 else 2,
    }
    response = client.call("UpdateFeatures", 2, timeoutMs=10_000, FeatureUpdates=[update], ValidateOnly=False)
    return int(response["ErrorCode"])


@scenario(seconds=120)
def transaction_version_change(broker: Broker) -> Any:
    """Change transaction.version while transactions of both protocols are open."""
    topic = "raw-txn-levels"
    seen: dict[str, Any] = {}
    with own_broker(broker, topic) as client:
        for level in (1, 2):
            before, known = [], {}
            for produced in (11, 12):
                for name in ("again", "commits", "aborts", "expected"):
                    one = TransactionalId(client, f"levels-{level}-{produced}-{name}")
                    one.init()
                    if produced == 11:
                        one.add((topic, 0))
                    seen[f"{one.name} sent"] = one.send(topic, version=produced)[0]
                    known[one.name] = {"ProducerId": one.producer_id, "ProducerEpoch": one.epoch}
                    before.append(one)
            seen[f"to {level}"] = set_transaction_version(client, level)
            for one in before:
                kind = one.name.rpartition("-")[2]
                if kind == "again":
                    seen[one.name] = [one.init()]
                elif kind == "expected":
                    seen[one.name] = [one.init(**known[one.name])]
                else:
                    seen[one.name] = [
                        one.end(commit=kind == "commits", version=5 if "-12-" in one.name else 4)
                    ]
                seen[one.name] += [one.described(), one.init(), one.described()]
    return seen


@scenario()
def add_partitions(broker: Broker) -> Any:
    """Send AddPartitionsToTxn in every client version, with each error."""
    topic = "raw-txn-partitions"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 2)
        for version in (0, 1, 2, 3):
            one = TransactionalId(client, f"raw-partitions-v{version}")
            one.init()
            steps = [one.add((topic, 0), version=version), one.add((topic, 0), (topic, 1), version=version)]
            steps.append(one.add((topic, 0), ("raw-txn-nowhere", 0), version=version))
            steps.append(one.add((topic, 9), version=version))
            steps.append(one.add((topic, 0), version=version, ProducerEpoch=99))
            steps.append(one.add((topic, 0), version=version, ProducerId=one.producer_id + 999))
            steps.append(one.add((topic, 0), version=version, TransactionalId="raw-partitions-nobody"))
            steps.append(one.add((topic, 0), version=version, TransactionalId=""))
            steps.append(one.described())
            one.end(commit=False)
            settle(one)
            seen[f"v{version}"] = steps

    return with_client(broker, work)


@scenario()
def produce_versions(broker: Broker) -> Any:
    """Produce inside and outside of a transaction in each version, with wrong sequences and epochs."""
    topic = "raw-txn-produced"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 1)
        for version in (3, 9, 10, 11, 12):
            one = TransactionalId(client, f"raw-produced-v{version}")
            one.init()
            steps: list[Any] = [one.send(topic, version=version)[::2]]  # without AddPartitionsToTxn
            steps.append(one.described()[1:])
            one.add((topic, 0))
            steps.append(one.send(topic, version=version)[::2])
            steps.append(one.send(topic, version=version)[::2])
            one.sequence -= 1
            steps.append(one.send(topic, version=version)[::2])  # the last batch again
            steps.append(one.send(topic, version=version, sequence=77)[::2])
            steps.append(one.send(topic, version=version, epoch=9)[::2])
            steps.append(one.send(topic, version=version, producer_id=one.producer_id + 999)[::2])
            one.end(commit=True)
            settle(one)
            steps.append(one.send(topic, version=version)[::2])  # after the end of the transaction
            if version >= 12:
                one.end(commit=False)
                settle(one)
            seen[f"v{version}"] = steps
        one = TransactionalId(client, "raw-produced-plain")
        one.init()
        one.add((topic, 0))
        one.send(topic)
        plain = Batch(
            producer_id=one.producer_id, producer_epoch=one.epoch, base_sequence=one.sequence
        ).encode()
        response = produce(client, topic, plain)
        seen["plain within a transaction"] = response["Responses"][0]["PartitionResponses"][0]["ErrorCode"]
        one.end(commit=False)
        settle(one)

    return with_client(broker, work)


@scenario()
def read_committed(broker: Broker) -> Any:
    """Fetch with read_committed while transactions are open, and after they have ended."""
    topic = "raw-txn-readers"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 1)
        first, second = TransactionalId(client, "raw-readers-1"), TransactionalId(client, "raw-readers-2")
        first.init()
        second.init()

        def record_state(name: str) -> None:
            seen[name] = [end_offsets(client, topic), committed_view(client, topic)]

        produce(client, topic, Batch().encode())
        record_state("plain")
        first.add((topic, 0))
        first.send(topic, count=3)
        produce(client, topic, Batch().encode())
        record_state("one open")
        second.add((topic, 0))
        second.send(topic, count=2)
        record_state("two open")
        second.end(commit=True)
        settle(second)
        record_state("the later committed")
        first.end(commit=False)
        settle(first)
        record_state("the earlier aborted")
        for commit in (False, True, False):
            first.init()
            first.add((topic, 0))
            first.send(topic, count=2)
            first.end(commit=commit)
            settle(first)
        record_state("more of both")
        seen["from the middle"] = committed_view(client, topic, 8)
        seen["from the end"] = committed_view(client, topic, end_offsets(client, topic)[1])
        response = client.call("DescribeProducers", 0, Topics=[{"Name": topic, "PartitionIndexes": [0, 9]}])
        seen["producers"] = [
            [
                one["ErrorCode"],
                sorted(
                    [p["ProducerEpoch"], p["LastSequence"], p["CurrentTxnStartOffset"]]
                    for p in one["ActiveProducers"]
                ),
            ]
            for one in response["Topics"][0]["Partitions"]
        ]

    return with_client(broker, work)


@scenario()
def fencing(broker: Broker) -> Any:
    """Start a second producer with the id of an open transaction. Let another transaction time out."""
    topic = "raw-txn-fencing"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 1)
        first, second = TransactionalId(client, "raw-fencing"), TransactionalId(client, "raw-fencing")
        first.init()
        first.add((topic, 0))
        seen["sent"] = first.send(topic)
        seen["second"] = second.init()
        settle(second)
        seen["aborted"] = first.described()
        seen["second again"] = second.init()
        seen["first sends"] = [first.send(topic, version=version)[::2] for version in (9, 11, 12)]
        seen["first adds"] = [first.add((topic, 0), version=version) for version in (1, 2, 3)]
        seen["first ends"] = [first.end(commit=True, version=version) for version in (1, 2, 4, 5)]
        seen["view"] = committed_view(client, topic)
        timed = TransactionalId(client, "raw-fencing-timeout")
        timed.init(timeout_ms=1000)
        timed.add((topic, 0))
        timed.send(topic)
        deadline = time.monotonic() + 25
        while timed.described()[1] == "Ongoing" and time.monotonic() < deadline:
            time.sleep(0.2)
        seen["timed out"] = timed.described()
        seen["ends late"] = timed.end(commit=True)

    return with_client(broker, work)


@scenario()
def group_offsets(broker: Broker) -> Any:
    """Commit offsets in transactions in every version, and fetch them before and after the end."""
    topic = "raw-txn-offsets"

    def fetched(client: RawClient, group: str) -> Any:
        requested = [{"Name": topic, "PartitionIndexes": [0, 1]}]
        found = []
        for stable in (False, True):
            response = client.call("OffsetFetch", 7, GroupId=group, Topics=requested, RequireStable=stable)
            found.append(
                [[p["CommittedOffset"], p["ErrorCode"]] for p in response["Topics"][0]["Partitions"]]
            )
        return found

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 2)
        for version in versions_of("TxnOffsetCommit"):
            for commit in (True, False):
                group = f"raw-txn-group-{version}-{commit}"
                wait_for_coordinator(client, group)
                one = TransactionalId(client, f"raw-offsets-{version}-{commit}")
                one.init()

                def offset(index: int, value: int, name: str = topic, **fields: Any) -> Any:
                    topics = [
                        {"Name": name, "Partitions": [{"PartitionIndex": index, "CommittedOffset": value}]}
                    ]
                    request = {**one.identity, "GroupId": group, "Topics": topics, **fields}  # noqa: B023
                    response = client.call("TxnOffsetCommit", version, **request)  # noqa: B023
                    return response["Topics"][0]["Partitions"][0]["ErrorCode"]

                steps: list[Any] = [offset(0, 1)]
                added = client.call("AddOffsetsToTxn", min(version, 4), **one.identity, GroupId=group)
                steps.append(added["ErrorCode"])
                steps += [offset(0, 5), offset(1, 6), offset(9, 7), offset(0, 7, "raw-txn-nowhere")]
                steps.append(offset(0, 8, ProducerEpoch=99))
                if version >= 3:
                    steps.append(offset(0, 9, GenerationId=4, MemberId="nobody"))
                steps.append(fetched(client, group))
                steps.append(one.end(commit=commit, version=5 if version >= 5 else 4)[0])
                settle(one)
                deadline = time.monotonic() + WAIT_S
                while fetched(client, group)[1][0][1] and time.monotonic() < deadline:
                    time.sleep(0.05)
                steps.append(fetched(client, group))
                seen[f"v{version} {'commit' if commit else 'abort'}"] = steps

    return with_client(broker, work)


@scenario()
def list_transactions(broker: Broker) -> Any:
    """Send ListTransactions with each filter."""
    topic = "raw-txn-listed"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 1)
        idle, busy = TransactionalId(client, "raw-listed-idle"), TransactionalId(client, "raw-listed-busy")
        idle.init()
        busy.init()
        busy.add((topic, 0))

        def names(version: int, **fields: Any) -> Any:
            response = client.call(
                "ListTransactions", version, **{"StateFilters": [], "ProducerIdFilters": [], **fields}
            )
            return [
                response["ErrorCode"],
                response["UnknownStateFilters"],
                sorted(
                    [one["TransactionalId"], one["TransactionState"]]
                    for one in response["TransactionStates"]
                    if one["TransactionalId"].startswith("raw-listed")
                ),
            ]

        seen["all"] = [names(version) for version in (0, 1, 2)]
        seen["ongoing"] = names(0, StateFilters=["Ongoing"])
        seen["unknown state"] = names(0, StateFilters=["Sleeping", "Empty"])
        seen["only unknown"] = names(0, StateFilters=["Sleeping"])
        seen["producer"] = names(0, ProducerIdFilters=[busy.producer_id])
        seen["long"] = names(1, DurationFilter=3_600_000)
        seen["any length"] = names(1, DurationFilter=0, StateFilters=["Ongoing"])
        seen["pattern"] = names(2, TransactionalIdPattern="raw-listed-b.*")
        seen["bad pattern"] = names(2, TransactionalIdPattern="(")
        busy.end(commit=False)
        settle(busy)

    return with_client(broker, work)

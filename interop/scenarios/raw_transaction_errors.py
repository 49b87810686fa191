"""Transaction requests with invalid sequences, producer ids, epochs, members and ids."""

from __future__ import annotations

import itertools
import time
from typing import Any

from interop.batches import Batch, Record
from interop.brokers import Broker
from interop.raw import comparable, create_topic, fetch, on_new_connection, produce, wait_for_coordinator
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_groups import Member
from interop.scenarios.raw_transactions import (
    TRANSACTIONAL,
    WAIT_S,
    TransactionalId,
    end_offsets,
    settle,
    wait_for_transaction_coordinator,
    with_client,
)
from interop.wire import versions_of

PRODUCED = (3, 8, 9, 10, 11, 12)
ADDS = 12
MAX_SEQUENCE = 2**31 - 1
MAX_STRING_LENGTH = 32_767
NO_SUCH_PRODUCER = 987_654


def begin(client: RawClient, name: str, topic: str, version: int, partition: int = 0) -> TransactionalId:
    """Get a producer id and, below Produce version 12, send AddPartitionsToTxn, as clients do."""
    one = TransactionalId(client, name)
    one.init()
    if version < ADDS:
        one.add((topic, partition))
    return one


def end(one: TransactionalId, version: int = 11) -> Any:
    return one.end(commit=False, version=5 if version >= ADDS else 4)


@scenario()
def sequences(broker: Broker) -> Any:
    """Produce with sequence numbers that have gaps, repeat, go back, or wrap around."""
    topic = "raw-wrong-sequences"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 2)
        for version in PRODUCED:
            one = begin(client, f"raw-sequences-v{version}", topic, version)
            steps: list[Any] = []

            def send(
                sequence: int, count: int = 1, one: TransactionalId = one, version: int = version
            ) -> Any:
                return one.send(topic, version=version, sequence=sequence, count=count)[::2]

            steps.append(["first is 5", send(5)])
            steps.append(["gap", send(9)])
            steps.append(["back", send(2)])
            steps.append(["next", [send(6)[0], send(7, 3)[0], send(10)[0]]])
            steps.append(["repeats", [send(sequence)[0] for sequence in (5, 6, 10)]])
            steps.append(["part of a batch", [send(7)[0], send(8, 2)[0], send(7, 2)[0], send(7, 4)[0]]])
            steps.append(["more", [send(sequence)[0] for sequence in (11, 12, 13)]])
            steps.append(["older than the last five", [send(sequence)[0] for sequence in (5, 6)]])
            steps.append(["no sequence", [send(-1)[0], send(-2)[0]]])
            steps.append(["end", end(one, version)[0]])
            settle(one)
            if version < ADDS:
                one.add((topic, 0))
            steps.append(["after the end, from 0", send(0)])
            steps.append(["after the end, next", send(14)])
            end(one, version)
            settle(one)
            seen[f"v{version}"] = steps
        for first in (MAX_SEQUENCE, MAX_SEQUENCE - 1):
            one = begin(client, f"raw-sequences-wrap-{first}", topic, 11)
            wrap = [one.send(topic, sequence=first, count=2)[0], one.send(topic, sequence=first)[0]]
            wrap += [one.send(topic, sequence=following)[0] for following in (0, 1, 2)]
            seen[f"wrap at {first}"] = wrap
            end(one)
            settle(one)
        for version in (11, 12):
            one = TransactionalId(client, f"raw-sequences-zombie-v{version}")
            one.init()
            one.init()
            if version < ADDS:
                one.add((topic, 0))
            steps = [one.send(topic, version=version)[0]]
            steps.append(one.send(topic, version=version, epoch=0, sequence=0)[0])
            steps += [one.send(topic, version=version)[0] for _ in range(2)]
            steps.append([end(one, version)[0], one.described()[1]])
            if version < ADDS:
                one.add((topic, 0))
            steps += [one.send(topic, version=version)[0] for _ in range(2)]
            end(one, version)
            settle(one)
            seen[f"a zombie meanwhile v{version}"] = steps
        one = begin(client, "raw-sequences-epoch", topic, 11)
        one.send(topic)
        one.send(topic)
        end(one)
        settle(one)
        one.init()
        one.add((topic, 0), (topic, 1))
        seen["new epoch, next sequence"] = one.send(topic, sequence=2)[0]
        seen["new epoch begins"] = [one.send(topic, sequence=0)[0], one.send(topic, 1, sequence=3)[0]]
        end(one)
        settle(one)
        for version in (4, 5):
            seen[f"refused, then ended in v{version}"] = refused_then_ended(client, topic, version)
        seen["stable"] = [stable == last for stable, last in [end_offsets(client, topic)]]

    return with_client(broker, work)


def refused_then_ended(client: RawClient, topic: str, version: int) -> list[Any]:
    """Send an invalid batch. Later batches must fail until a marker with the next epoch follows (KIP-890)."""
    one = TransactionalId(client, f"raw-sequences-refused-v{version}")
    one.init()
    steps: list[Any] = [one.send(topic, 1, version=ADDS, sequence=-1)[0]]
    for ends in (version, 5):
        steps.append(one.end(commit=True, version=ends)[0])
        settle(one)
        batch = Batch(
            [Record(b"plain")], producer_id=one.producer_id, producer_epoch=one.epoch, base_sequence=0
        )
        response = produce(client, topic, batch.encode(), partition=1, version=11)
        steps.append(response["Responses"][0]["PartitionResponses"][0]["ErrorCode"])
    return steps


@scenario()
def producers(broker: Broker) -> Any:
    """Send requests with the producer id and epoch of another, an unknown, or a future producer."""
    topic, group = "raw-wrong-producers", "raw-wrong-producers-group"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 1)
        wait_for_coordinator(client, group)
        victim = TransactionalId(client, "raw-producers-victim")
        victim.init()
        for version in PRODUCED:
            one = TransactionalId(client, f"raw-producers-v{version}")
            one.init()
            one.init()  # epoch 1, so that epoch 0 is a former epoch
            if version < ADDS:
                one.add((topic, 0))
            steps: list[Any] = [
                [epoch, one.send(topic, version=version, epoch=epoch)[::2], one.described()[1]]
                for epoch in (-1, 0, 2, 8, 32_767)
            ]
            for who, producer in (("victim", victim.producer_id), ("nobody", NO_SUCH_PRODUCER), ("-1", -1)):
                sent = one.send(topic, version=version, producer_id=producer)[::2]
                steps.append([who, sent, one.described()[1], victim.described()[1]])
            steps.append(["right", one.send(topic, version=version)[::2]])
            if version < ADDS:
                # The partition leader verifies each transaction only once with the coordinator.
                steps.append(["later epoch", one.send(topic, version=version, epoch=7, sequence=0)[::2]])
            steps.append(["end", end(one, version)[0], one.described()[1]])
            seen[f"v{version}"] = steps
            end(victim, version)
            settle(one, victim)
        seen["victim"] = victim.described()
        for name, fields in (
            ("future epoch", {"ProducerEpoch": 9}),
            ("last epoch", {"ProducerEpoch": 32_767}),
            ("no epoch", {"ProducerEpoch": -1}),
            ("foreign", {"ProducerId": victim.producer_id}),
            ("nobody", {"ProducerId": NO_SUCH_PRODUCER}),
            ("none", {"ProducerId": -1, "ProducerEpoch": -1}),
        ):
            one = begin(client, f"raw-producers-{name}", topic, 11)
            one.send(topic)
            wrong: dict[str, Any] = {**one.identity, **fields}
            seen[name] = {
                "add": [one.add((topic, 0), version=version, **fields) for version in (0, 2, 3)],
                "offsets": [
                    client.call("AddOffsetsToTxn", version, **wrong, GroupId=group)["ErrorCode"]
                    for version in versions_of("AddOffsetsToTxn")
                ],
                "commit": [
                    txn_commit(client, version, topic, GroupId=group, **wrong)
                    for version in versions_of("TxnOffsetCommit")
                ],
                "end": [
                    one.end(commit=True, version=version, patient=False, **fields)[0]
                    for version in versions_of("EndTxn")
                ],
                "init": [init_as(one, version, wrong) for version in (3, 4)],
                "then": one.described()[1:4],
            }
            end(one)
            settle(one)
        # Without a transactional id, the coordinator does not check the producer id.
        plain = Batch(producer_id=NO_SUCH_PRODUCER, producer_epoch=3, base_sequence=4).encode()
        seen["idempotent, unknown producer"] = first_error(produce(client, topic, plain))
        in_transaction = Batch(
            [Record(b"x")],
            attributes=TRANSACTIONAL,
            producer_id=NO_SUCH_PRODUCER,
            producer_epoch=0,
            base_sequence=0,
        ).encode()
        seen["no transactional id"] = [
            first_error(produce(client, topic, in_transaction, version=version)) for version in PRODUCED
        ]
        seen["unknown transactional id"] = [
            first_error(
                produce(client, topic, in_transaction, version=version, TransactionalId="raw-no-such")
            )
            for version in PRODUCED
        ]

    return with_client(broker, work)


def init_as(one: TransactionalId, version: int, wrong: dict[str, Any]) -> list[Any]:
    """Send InitProducerId with a wrong producer id or epoch. Return error, epoch and transaction state."""
    response = one.client.call(
        "InitProducerId",
        version,
        TransactionalId=one.name,
        TransactionTimeoutMs=60_000,
        ProducerId=wrong["ProducerId"],
        ProducerEpoch=wrong["ProducerEpoch"],
    )
    return [response["ErrorCode"], response["ProducerEpoch"], one.described()[1]]


def first_error(response: Any) -> int:
    code: int = response["Responses"][0]["PartitionResponses"][0]["ErrorCode"]
    return code


def txn_commit(
    client: RawClient, version: int, topic: str, partition: int = 0, offset: int = 3, **fields: Any
) -> int:
    """Send TxnOffsetCommit for one partition and return its error code."""
    partitions = [{"PartitionIndex": partition, "CommittedOffset": offset, "CommittedMetadata": "note"}]
    topics = [{"Name": topic, "Partitions": partitions}]
    response = client.call("TxnOffsetCommit", version, Topics=topics, **fields)
    code: int = response["Topics"][0]["Partitions"][0]["ErrorCode"]
    return code


def fetched_offsets(client: RawClient, group: str, topic: str) -> Any:
    """Return committed offset and error code of partitions 0 and 1, without and with RequireStable."""
    found = []
    for stable in (False, True):
        response = client.call(
            "OffsetFetch",
            7,
            GroupId=group,
            Topics=[{"Name": topic, "PartitionIndexes": [0, 1]}],
            RequireStable=stable,
        )
        found.append([[p["CommittedOffset"], p["ErrorCode"]] for p in response["Topics"][0]["Partitions"]])
    return found


def settled_offsets(client: RawClient, group: str, topic: str) -> Any:
    """Wait until no transaction has pending offsets for the group, and return `fetched_offsets`."""
    deadline = time.monotonic() + WAIT_S
    while any(error for _, error in fetched_offsets(client, group, topic)[1]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return fetched_offsets(client, group, topic)


@scenario()
def fencing_in_version_2(broker: Broker) -> Any:
    """Let transactions of transaction version 2 time out, or fence the producer. Record the next epochs."""
    topic = "raw-wrong-fenced"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 1)
        late, replaced = (TransactionalId(client, f"raw-fenced-{end}") for end in ("late", "replaced"))
        others = [TransactionalId(client, f"raw-fenced-{number}") for number in range(4)]
        for one in (late, *others):
            one.init(timeout_ms=1000)
        replaced.init()
        seen["sent"] = [one.send(topic, version=ADDS)[0] for one in (late, replaced, *others)]
        successor = TransactionalId(client, replaced.name)
        seen["replaced"] = [successor.init(), replaced.described(), successor.init()]
        deadline = time.monotonic() + 25
        while late.described()[1] == "Ongoing" and time.monotonic() < deadline:
            time.sleep(0.2)
        seen["timed out"] = [one.described() for one in (late, *others)]
        known = {"ProducerId": others[0].producer_id, "ProducerEpoch": others[0].epoch}
        seen["says who it was"] = [others[0].init(**known), others[0].init(**known)]
        seen["ends in version 1"] = [others[1].end(commit=commit, version=4) for commit in (True, False)]
        others[1].epoch += 1
        seen["and in the next epoch"] = [others[1].end(commit=commit, version=4) for commit in (True, False)]
        seen["aborts"] = [others[2].end(commit=False, version=5), others[2].end(commit=False, version=5)]
        seen["sends"] = [others[3].send(topic, version=version)[::2] for version in (11, 12)]
        for name, one in (("late", late), ("replaced", replaced)):
            seen[f"{name} ends"] = [one.end(commit=commit, version=5) for commit in (True, False)]
            seen[f"{name} sends"] = [one.send(topic, version=version)[::2] for version in (11, 12)]
            known = {"ProducerId": one.producer_id, "ProducerEpoch": one.epoch}
            seen[f"{name} says who it was"] = one.init(**known)
        settle(late)
        seen["anew"] = [late.init(), successor.send(topic, version=ADDS)[0]]
        seen["committed"] = [successor.end(commit=True, version=5), successor.described()]
        seen["stable"] = [stable == last for stable, last in [end_offsets(client, topic)]]

    return with_client(broker, work)


@scenario(seconds=120)
def markers(broker: Broker) -> Any:
    """Send WriteTxnMarkers with previous, current and future coordinator and producer epochs."""
    topic = "raw-wrong-markers"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 1)

        def mark(producer_id: int, epoch: int, coordinator: int, version: int, **fields: Any) -> Any:
            marker = {
                "ProducerId": producer_id,
                "ProducerEpoch": epoch,
                "TransactionResult": False,
                "Topics": [
                    {"Name": topic, "PartitionIndexes": [0, 5]},
                    {"Name": "no", "PartitionIndexes": [0]},
                ],
                "CoordinatorEpoch": coordinator,
                **fields,
            }
            response = client.call("WriteTxnMarkers", version, Markers=[marker])
            return [
                [partition["ErrorCode"] for partition in found["Partitions"]]
                for found in response["Markers"][0]["Topics"]
            ]

        def plain(epoch: int) -> int:
            """Write a batch with this epoch and without a transactional id. Return the producer id."""
            response = client.call("InitProducerId", 4, TransactionalId=None, TransactionTimeoutMs=0)
            producer_id: int = response["ProducerId"]
            batch = Batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=0).encode()
            assert first_error(produce(client, topic, batch)) == 0
            return producer_id

        for version, versions in ((1, (0,)), (2, (0, 1, 2, 3, -1, -2))):
            for transaction_version in versions:
                fields = {"TransactionVersion": transaction_version} if version >= 2 else {}
                steps: list[Any] = []
                for epoch in (0, 1):
                    one = TransactionalId(client, f"raw-markers-{version}-{transaction_version}-{epoch}")
                    one.init()
                    one.init()
                    one.add((topic, 0))
                    sent = one.send(topic)[0]
                    marked = mark(one.producer_id, epoch, 0, version, **fields)
                    stable = end_offsets(client, topic)
                    steps.append(["open", epoch, sent, marked, stable[0] == stable[1]])
                    one.end(commit=False)
                    settle(one)
                for epoch in (-2, 0, 1, 2, 32_767):
                    producer_id = plain(1)
                    first = mark(producer_id, epoch, 0, version, **fields)
                    steps.append(["not open", epoch, first, mark(producer_id, epoch, 0, version, **fields)])
                producer_id = plain(1)
                coordinators = (5, 4, 5, 6, -1)
                steps += [[epoch, mark(producer_id, 1, epoch, version, **fields)] for epoch in coordinators]
                for number, epoch in enumerate((0, -1, -2, -(2**31))):
                    unknown = NO_SUCH_PRODUCER + number
                    steps.append(["nobody", epoch, mark(unknown, 0, epoch, version, **fields)])
                for producer_id, epoch in itertools.product((NO_SUCH_PRODUCER, -2, -(2**63)), (-2, 0)):
                    steps.append([producer_id, epoch, mark(producer_id, epoch, 0, version, **fields)])
                seen[f"v{version} of version {transaction_version}"] = steps
        seen["stable"] = [stable == last for stable, last in [end_offsets(client, topic)]]
        seen["of nobody"] = [
            (batch["producer_id"], batch["producer_epoch"])
            for batch in comparable(fetch(client, topic, 0))["Responses"][0]["Partitions"][0]["Records"]
            if batch["producer_id"] < 0
        ]

    return with_client(broker, work)


@scenario(seconds=120)
def members(broker: Broker) -> Any:
    """Send TxnOffsetCommit with the ids and generations of current, former and unknown group members."""
    topic = "raw-wrong-members"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 2)
        for version in versions_of("TxnOffsetCommit"):
            group = f"raw-wrong-members-{version}"
            wait_for_coordinator(client, group)
            one = TransactionalId(client, f"raw-members-{version}")
            one.init()
            client.call("AddOffsetsToTxn", min(version, 4), **one.identity, GroupId=group)

            def commit(
                group: str = group, one: TransactionalId = one, version: int = version, **fields: Any
            ) -> int:
                return txn_commit(client, version, topic, GroupId=group, **one.identity, **fields)

            steps: dict[str, Any] = {"of nobody": commit(offset=1)}
            with Member(broker, group, instance=f"static-{version}") as member:
                member.join()
                joined: dict[str, Any] = {
                    "GenerationId": member.generation,
                    "MemberId": member.member_id,
                    "GroupInstanceId": member.instance,
                }
                if version >= 3:
                    steps["before the sync"] = commit(**joined)
                member.sync({member.member_id: b"a"})
                if version >= 3:
                    for name, changes in (
                        ("right", {}),
                        ("generation before", {"GenerationId": member.generation - 1}),
                        ("future generation", {"GenerationId": member.generation + 1}),
                        ("no generation", {"GenerationId": -1}),
                        ("unknown member", {"MemberId": "nobody"}),
                        ("no member", {"MemberId": ""}),
                        ("other instance", {"GroupInstanceId": "another"}),
                        ("no instance", {"GroupInstanceId": None}),
                        ("neither", {"GenerationId": -1, "MemberId": "", "GroupInstanceId": None}),
                        ("instance alone", {"GenerationId": -1, "MemberId": ""}),
                    ):
                        steps[name] = commit(**{**joined, **changes})
                    with Member(broker, group, instance=member.instance) as successor:
                        successor.join()
                        successor.sync({successor.member_id: b"a"})
                        steps["replaced"] = commit(**joined)
                        joined["MemberId"] = successor.member_id
                        joined["GenerationId"] = successor.generation
                        steps["its successor"] = commit(**joined, partition=1)
                        successor.leave()
                    steps["after it left"] = commit(**joined)
                else:
                    steps["beside a member"] = commit()
                    member.leave()
            steps["meanwhile"] = fetched_offsets(client, group, topic)
            steps["end"] = one.end(commit=True, version=5 if version >= 5 else 4)[0]
            steps["in the end"] = settled_offsets(client, group, topic)
            seen[f"v{version}"] = steps

    return with_client(broker, work)


@scenario(seconds=120)
def deleted_topics(broker: Broker) -> Any:
    """Delete a topic for which an open transaction has written records and committed offsets."""
    group = "raw-wrong-gone"

    def removed(client: RawClient, topic: str) -> Any:
        response = client.call("DeleteTopics", 5, TopicNames=[topic], TimeoutMs=10_000)
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            found = client.call("Metadata", 9, Topics=[{"Name": topic}], AllowAutoTopicCreation=False)
            if found["Topics"][0]["ErrorCode"] == 3:
                break
            time.sleep(0.05)
        return response["Responses"][0]["ErrorCode"]

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        wait_for_coordinator(client, group)
        for version in (4, 5):
            topic = f"raw-wrong-gone-{version}"
            create_topic(client, topic, 2)
            one = TransactionalId(client, f"raw-gone-{version}")
            one.init()
            if version < 5:
                client.call("AddOffsetsToTxn", 3, **one.identity, GroupId=group)
                one.add((topic, 0))
            produced = 11 if version < 5 else 12
            steps: dict[str, Any] = {"sent": one.send(topic, version=produced)[0]}
            steps["committed"] = txn_commit(client, version, topic, GroupId=group, **one.identity)
            steps["partition 7"] = txn_commit(client, version, topic, 7, GroupId=group, **one.identity)
            steps["deleted"] = removed(client, topic)
            steps["sent then"] = one.send(topic, version=produced)[0]
            steps["added then"] = one.add((topic, 0)) if version < 5 else None
            steps["committed then"] = txn_commit(client, version, topic, GroupId=group, **one.identity)
            steps["end"] = one.end(commit=True, version=version)[0]
            steps["described"] = one.described()
            steps["next"] = one.init()
            seen[f"v{version}"] = steps

    return with_client(broker, work)


@scenario(seconds=120)
def long_ids(broker: Broker) -> Any:
    """Use transactional ids and group ids of the maximum string length, and longer ids."""
    topic = "raw-wrong-long"

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        create_topic(client, topic, 1)
        for size in (249, 250, 32_000, MAX_STRING_LENGTH - 1, MAX_STRING_LENGTH):
            for letter in ("i", "ä"):
                name = (letter * size)[: size // len(letter.encode())]
                name += "x" * (size - len(name.encode()))
                wait_for_transaction_coordinator(client, name)
                one, steps = TransactionalId(client, name), list[Any]()
                steps.append(one.init())
                steps.append([len(result[0]) if result else 0 for result in [one.add((topic, 0))[0]]])
                steps.append(one.send(topic)[0])
                group = name.upper()
                wait_for_coordinator(client, group)
                steps.append(client.call("AddOffsetsToTxn", 3, **one.identity, GroupId=group)["ErrorCode"])
                steps.append(txn_commit(client, 3, topic, GroupId=group, **one.identity))
                steps.append(one.end(commit=True))
                steps.append(one.described()[:4])
                steps.append([pair[0] for pair in settled_offsets(client, group, topic)[1]])
                steps.append(
                    [
                        [len(found["TransactionalId"]), found["TransactionState"]]
                        for found in client.call(
                            "ListTransactions",
                            0,
                            StateFilters=[],
                            ProducerIdFilters=[one.producer_id],
                        )["TransactionStates"]
                    ]
                )
                with Member(broker, group) as member:
                    response = member.join()
                    steps.append([response["ErrorCode"], response["GenerationId"]])
                    steps.append(member.sync({member.member_id: b"a"})["ErrorCode"])
                    steps.append(member.commit(topic, 9)["Topics"][0]["Partitions"][0]["ErrorCode"])
                    member.leave()
                deleted = client.call("DeleteGroups", 2, GroupsNames=[group])
                steps.append(deleted["Results"][0]["ErrorCode"])
                seen[f"{size} {letter}"] = steps

    seen: dict[str, Any] = with_client(broker, work)
    # These lengths do not fit into the string fields of older versions.
    for size in (MAX_STRING_LENGTH + 1, 65_536, 1_000_000):
        name = "i" * size
        seen[f"{size}"] = {
            f"{api} v{version}": _short(on_new_connection(broker, api, version, **fields))
            for api, version, fields in (
                ("InitProducerId", 2, {"TransactionalId": name, "TransactionTimeoutMs": 1000}),
                ("InitProducerId", 5, {"TransactionalId": name, "TransactionTimeoutMs": 1000}),
                ("FindCoordinator", 3, {"Key": name, "KeyType": 1}),
                ("FindCoordinator", 4, {"CoordinatorKeys": [name], "KeyType": 1}),
                ("EndTxn", 3, {"TransactionalId": name, "ProducerId": 1, "ProducerEpoch": 0}),
                ("DescribeTransactions", 0, {"TransactionalIds": [name]}),
                ("ListTransactions", 2, {"TransactionalIdPattern": name}),
                ("OffsetFetch", 7, {"GroupId": name, "Topics": None}),
                ("TxnOffsetCommit", 3, {"TransactionalId": "x", "GroupId": name, "Topics": []}),
                ("JoinGroup", 6, {"GroupId": name, "ProtocolType": "consumer", "Protocols": []}),
            )
        }
    return seen


def _short(outcome: Any) -> Any:
    """Replace each string of more than 1000 characters in a response by its length."""
    if isinstance(outcome, dict):
        return {key: _short(value) for key, value in outcome.items()}
    if isinstance(outcome, list):
        return [_short(value) for value in outcome]
    return f"{len(outcome)} letters" if isinstance(outcome, str) and len(outcome) > 1000 else outcome


@scenario(seconds=120)
def long_metadata(broker: Broker) -> Any:
    """Commit offsets with metadata that is too long, as valid and invalid producers and members."""
    topic, group = "raw-wrong-metadata", "raw-wrong-metadata"
    words = {0: "note", 1: "x" * 4096, 2: "x" * 4097, 3: "𝄞" * 2048, 4: "𝄞" * 2048 + "x"}

    def commit(client: RawClient, version: int, indexes: list[int], **fields: Any) -> Any:
        partitions = [
            {"PartitionIndex": index, "CommittedOffset": 3, "CommittedMetadata": words.get(index, "")}
            for index in indexes
        ]
        topics = [{"Name": topic, "Partitions": partitions}]
        response = client.call("TxnOffsetCommit", version, Topics=topics, GroupId=group, **fields)
        return sorted((p["PartitionIndex"], p["ErrorCode"]) for p in response["Topics"][0]["Partitions"])

    def work(client: RawClient, seen: dict[str, Any]) -> None:
        wait_for_coordinator(client, group)
        create_topic(client, topic, 5)
        for version in range(6):
            one = TransactionalId(client, f"raw-wrong-metadata-{version}")
            one.init()
            epoch = one.identity["ProducerEpoch"]
            member = {"GenerationId": 7, "MemberId": "nobody"} if version >= 3 else {}
            for indexes in ([0, 1, 2], [2], [2, 9], [3, 4]):
                steps = {"no transaction": commit(client, version, indexes, **one.identity)}
                if version < 5:
                    client.call("AddOffsetsToTxn", 3, **one.identity, GroupId=group)
                steps["unknown producer"] = commit(client, version, indexes, **one.identity, **member)
                steps["epoch"] = commit(
                    client, version, indexes, **{**one.identity, "ProducerEpoch": epoch + 1}
                )
                steps["good"] = commit(client, version, indexes, **one.identity)
                seen[f"v{version} {indexes}"] = steps
            seen[f"v{version} end"] = one.end(commit=True, version=min(max(version, 3), 5))[0]

    return with_client(broker, work)

"""Fetch, OffsetForLeaderEpoch and ListOffsets from a simulated follower, in and out of the ISR."""

from __future__ import annotations

import time
from typing import Any

from interop.batches import Batch
from interop.brokers import Broker
from interop.fake_broker import PATIENT, FakeBroker, uuid
from interop.raw import comparable, fetch, produce
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_nodes_replicas import create_assigned_topic, described_partitions
from interop.tools import another, until
from interop.wire import Fields, encode_request, versions_of

NAME = "raw-followers"
SETTLING_S = 1.0
"""Replicas apply metadata records slightly later than DescribeTopicPartitions shows them."""
BEYOND = 1 << 40


class Follower:
    """A client that fetches a partition as a replica, each time on a new connection."""

    def __init__(self, own: Broker, broker: FakeBroker, topic_id: bytes) -> None:
        self.own = own
        self.broker = broker
        self.topic_id = topic_id

    def fetch(
        self,
        offset: int = 0,
        *,
        version: int = 17,
        replica: int | None = None,
        epoch: int | None = None,
        name: str = NAME,
        topic_id: bytes | None = None,
        request: Fields | None = None,
        **fields: Any,
    ) -> Any:
        """Fetch one partition from an offset and return the leader's response."""
        who = self.broker.broker_id if replica is None else replica
        given: Fields = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, **(request or {})}
        if version >= 15:
            life = self.broker.epoch if epoch is None else epoch
            given["ReplicaState"] = {"ReplicaId": who, "ReplicaEpoch": life}
        else:
            given["ReplicaId"] = who
        known = {"Topic": name} if version < 13 else {"TopicId": topic_id or self.topic_id}
        partition = {
            "Partition": 0,
            "FetchOffset": offset,
            "LogStartOffset": 0,
            "PartitionMaxBytes": 1 << 20,
            **fields,
        }
        given["Topics"] = [{**known, "Partitions": [partition]}]
        with RawClient(self.own.bootstrap) as client:
            answer = client.outcome(encode_request("Fetch", version, given), "Fetch", version)
        return comparable(answer)


def consumer_view(client: RawClient) -> Any:
    """Return the high watermark that a consumer sees, and whether it gets records."""
    [topic] = fetch(client, NAME, 0)["Responses"]
    [partition] = topic["Partitions"]
    return partition["HighWatermark"], len(partition["Records"] or b"") > 0


def append_batches(client: RawClient, count: int, name: str = NAME) -> Any:
    """Append batches with acks=1."""
    return [
        produce(client, name, Batch(base_timestamp=1_700_000_000_000 + number).encode(), acks=1)["Responses"][
            0
        ]["PartitionResponses"][0]["ErrorCode"]
        for number in range(count)
    ]


def wait_for_leader(client: RawClient, leader: int, name: str = NAME) -> Any:
    """Wait until this broker is the leader and return the partition."""
    until(lambda: described_partitions(client, name)[0]["LeaderId"] == leader)
    time.sleep(SETTLING_S)
    return comparable(described_partitions(client, name)[0])


@scenario(seconds=180)
def follower_fetches(broker: Broker) -> Any:
    """Fetch as different replicas through four leader epochs, two of which have records."""
    seen: dict[str, Any] = {}
    with another(broker, PATIENT) as own, FakeBroker(own) as other, RawClient(own.bootstrap) as client:
        other.join()
        with FakeBroker(own, 3) as third:
            third.join()
        topic_id = create_assigned_topic(client, NAME, [2, 1])
        unrelated = create_assigned_topic(client, NAME + "-2", [1])
        follower = Follower(own, other, topic_id)
        ask = follower.fetch
        seen["of a follower here"] = ask()
        seen["of a follower here, as another"] = ask(replica=3)
        seen["of a follower here, in no epoch"] = ask(CurrentLeaderEpoch=0)
        seen["of a follower here, in an epoch to come"] = ask(CurrentLeaderEpoch=3)
        other.beat(WantFence=True)
        seen["leads in epoch 1"] = wait_for_leader(client, 1)
        seen["appended"] = append_batches(client, 3)
        other.beat()
        seen["nobody waits for it"] = consumer_view(client)

        for version in versions_of("Fetch"):
            seen[f"v{version}"] = ask(0, version=version)
            seen[f"v{version} of nobody"] = ask(0, version=version, replica=77)
        for label, who in {
            "the leader": 1,
            "another": 3,
            "a negative one": -5,
            "one that debugs": -2,
        }.items():
            seen[f"as {label}"] = ask(0, replica=who)
            seen[f"as {label}, at the end"] = ask(3, replica=who)
        seen["as nobody, of nothing"] = ask(0, replica=77, topic_id=uuid(4711))
        seen["as nobody, in an epoch to come"] = ask(0, replica=77, CurrentLeaderEpoch=9)
        seen["as nobody, beyond the end"] = ask(BEYOND, replica=77)
        seen["of a partition that is another's"] = ask(0, topic_id=unrelated)
        seen["of no topic"] = ask(0, topic_id=uuid(4711))
        seen["of no partition"] = ask(0, Partition=7)
        seen["of a negative partition"] = ask(0, Partition=-1)
        seen["in another life"] = ask(3, epoch=other.epoch - 1)
        seen["in a life to come"] = ask(3, epoch=other.epoch + 1)
        seen["in no life"] = ask(0, epoch=-1)
        seen["is it in sync"] = comparable(described_partitions(client, NAME)[0]["IsrNodes"])
        seen["at a negative offset"] = ask(-1)
        seen["beyond the end"] = ask(4)
        seen["far beyond the end"] = ask(BEYOND)
        seen["it counts for nothing"] = consumer_view(client)
        seen["in an epoch that was"] = ask(0, CurrentLeaderEpoch=0)
        seen["in this epoch"] = ask(0, CurrentLeaderEpoch=1)
        seen["in an epoch to come"] = ask(0, CurrentLeaderEpoch=2)
        seen["no bytes"] = ask(0, PartitionMaxBytes=0)
        seen["no bytes at all"] = ask(0, request={"MaxBytes": 0})
        for label, start in {"negative": -7, "beyond the end": BEYOND, "unknown": -1}.items():
            seen[f"its log begins: {label}"] = ask(0, LogStartOffset=start)
        for epoch in (-7, -1, 0, 1, 2):
            for offset in (0, 2, 3, 4):
                seen[f"after epoch {epoch} at {offset}"] = ask(offset, LastFetchedEpoch=epoch)
        until(lambda: 2 in described_partitions(client, NAME)[0]["IsrNodes"])
        seen["it is in sync"] = comparable(described_partitions(client, NAME)[0])
        seen["committed"] = consumer_view(client)

        seen["appended once more"] = append_batches(client, 2)
        seen["not committed"] = consumer_view(client)
        seen["in another life, at the end"] = ask(5, epoch=other.epoch - 1)
        seen["as another, at the end of more"] = ask(5, replica=3)
        seen["beyond the end again"] = ask(6)
        seen["still not committed"] = consumer_view(client)
        seen["a little on"] = ask(4, LastFetchedEpoch=1)
        seen["committed a little"] = consumer_view(client)
        seen["back again"] = ask(1)
        seen["at the beginning"] = ask(0, LastFetchedEpoch=0)
        seen["committed as before"] = consumer_view(client)
        seen["at the end"] = ask(5, LastFetchedEpoch=1)
        seen["committed to the end"] = consumer_view(client)

        preferred = [{"Topic": NAME, "Partitions": [0]}]
        answer = client.call("ElectLeaders", 2, ElectionType=0, TimeoutMs=10_000, TopicPartitions=preferred)
        seen["elected"] = comparable(answer)
        seen["leads in epoch 2"] = wait_for_leader(client, 2)
        seen["of a follower that has led"] = ask(0)
        seen["of a follower that has led, in its epoch"] = ask(0, CurrentLeaderEpoch=1)
        other.beat(WantFence=True)
        seen["leads in epoch 3"] = wait_for_leader(client, 1)
        other.beat()
        seen["appended in epoch 3"] = append_batches(client, 2)
        for epoch in range(5):
            for offset in (0, 4, 5, 6, 7, 8):
                seen[f"epoch 3, after epoch {epoch} at {offset}"] = ask(offset, LastFetchedEpoch=epoch)
        for epoch in (0, 1, 2, 3, 4):
            seen[f"epoch 3, thinks it is {epoch}"] = ask(7, LastFetchedEpoch=3, CurrentLeaderEpoch=epoch)

        for version in versions_of("OffsetForLeaderEpoch"):
            for replica in (2, 3, 77, 1, -1, -2, -7) if version > 2 else (-2,):
                asked = [
                    {"Partition": index, "CurrentLeaderEpoch": current, "LeaderEpoch": epoch}
                    for index, current, epoch in (
                        *((0, -1, epoch) for epoch in range(-2, 6)),
                        *((0, current, 1) for current in (0, 1, 3, 4, -7)),
                        (7, -1, 1),
                    )
                ]
                fields = {"ReplicaId": replica} if version > 2 else {}
                topics = [
                    {"Topic": NAME, "Partitions": asked},
                    {"Topic": "raw-nothing", "Partitions": asked[:1]},
                ]
                answer = client.call("OffsetForLeaderEpoch", version, Topics=topics, **fields)
                seen[f"epochs v{version} of {replica}"] = comparable(answer)
        for replica in (2, 3, 77, 1, -1, -2, -7):
            for isolation in (0, 1):
                for timestamp in (-1, -2, -3, -4, 1_700_000_000_001):
                    asked = [{"PartitionIndex": 0, "CurrentLeaderEpoch": 3, "Timestamp": timestamp}]
                    answer = client.call(
                        "ListOffsets",
                        9,
                        ReplicaId=replica,
                        IsolationLevel=isolation,
                        Topics=[{"Name": NAME, "Partitions": asked}],
                    )
                    found = answer["Topics"][0]["Partitions"][0]
                    seen[f"offsets of {replica}, {isolation}, {timestamp}"] = comparable(found)
    return seen


def log_start_offset(client: RawClient) -> int:
    """Return the log start offset."""
    asked = [{"PartitionIndex": 0, "Timestamp": -2}]
    answer = client.call("ListOffsets", 1, ReplicaId=-1, Topics=[{"Name": NAME, "Partitions": asked}])
    offset: int = answer["Topics"][0]["Partitions"][0]["Offset"]
    return offset


@scenario(seconds=180)
def delayed_operations(broker: Broker) -> Any:
    """Delay produce and delete requests until the follower fetches, and use its fetch sessions."""
    seen: dict[str, Any] = {}
    with another(broker, PATIENT) as own, FakeBroker(own) as other, RawClient(own.bootstrap) as client:
        other.join()
        topic_id = create_assigned_topic(client, NAME, [1, 2], min_insync_replicas="2")
        follower = Follower(own, other, topic_id)

        def ask_produce(acks: int, timeout_ms: int) -> int:
            batch = Batch(base_timestamp=1_700_000_000_000).encode()
            partition = {"Index": 0, "Records": batch}
            topic = {"Name": NAME, "PartitionData": [partition]}
            return client.send("Produce", 9, Acks=acks, TimeoutMs=timeout_ms, TopicData=[topic])

        def ask_delete(offset: int, timeout_ms: int) -> int:
            partition = {"PartitionIndex": 0, "Offset": offset}
            topic = {"Name": NAME, "Partitions": [partition]}
            return client.send("DeleteRecords", 2, Topics=[topic], TimeoutMs=timeout_ms)

        def answer(label: str, api: str, version: int) -> None:
            seen[label] = comparable(client.receive(api, version))

        ask_produce(-1, 500)
        answer("nobody fetches", "Produce", 9)
        ask_produce(-1, 20_000)
        seen["it has a part"] = follower.fetch(1, LastFetchedEpoch=0)
        seen["it has all, in another life"] = follower.fetch(2, epoch=other.epoch - 1)
        seen["it has more than all"] = follower.fetch(3)
        seen["it has all"] = follower.fetch(2, LastFetchedEpoch=0)["Responses"][0]["Partitions"][0][
            "ErrorCode"
        ]
        answer("it has fetched", "Produce", 9)
        ask_delete(1, 500)
        answer("deleted, and it is not told", "DeleteRecords", 2)
        ask_delete(2, 20_000)
        until(lambda: log_start_offset(other.leader) == 2)
        seen["its log begins at 1"] = follower.fetch(2, LogStartOffset=1)
        seen["its log begins at 2"] = follower.fetch(2, LogStartOffset=2)
        answer("deleted, and it is told", "DeleteRecords", 2)
        seen["before the start"] = follower.fetch(1)
        seen["before the start, after an epoch"] = follower.fetch(0, LastFetchedEpoch=0)
        other.beat(WantFence=True)
        until(lambda: described_partitions(client, NAME)[0]["IsrNodes"] == [1])
        time.sleep(SETTLING_S)
        ask_produce(-1, 500)
        answer("it is gone", "Produce", 9)
        ask_produce(1, 500)
        answer("it is gone, and nobody minds", "Produce", 9)
        [found] = fetch(client, NAME, 2)["Responses"]
        seen["a consumer, without it"] = comparable(found)
        seen["fenced, it fetches"] = follower.fetch(2, LastFetchedEpoch=0)
        seen["fenced, it has all"] = follower.fetch(3, LastFetchedEpoch=0)["Responses"][0]["Partitions"][0][
            "ErrorCode"
        ]
        seen["it is not taken"] = comparable(described_partitions(client, NAME)[0])
        other.beat()

        def joins() -> bool:
            follower.fetch(3, LastFetchedEpoch=0)
            return 2 in described_partitions(client, NAME)[0]["IsrNodes"]

        # The leader may apply the follower's new registration later and then needs another fetch.
        until(joins)
        seen["it is taken"] = comparable(described_partitions(client, NAME)[0])
        [found] = fetch(client, NAME, 2)["Responses"]
        seen["a consumer, with it"] = comparable(found)

        def in_session(label: str, replica: int, session_id: int, epoch: int, **fields: Any) -> int:
            given: Fields = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, **fields}
            life = other.epoch if replica == 2 else -1
            given["ReplicaState"] = {"ReplicaId": replica, "ReplicaEpoch": life}
            told = client.call("Fetch", 17, SessionId=session_id, SessionEpoch=epoch, **given)
            given_id: int = told["SessionId"]
            seen[label] = comparable(told)
            return given_id

        wanted = {"Partition": 0, "FetchOffset": 2, "LogStartOffset": 2, "PartitionMaxBytes": 1 << 20}
        topics = [{"TopicId": topic_id, "Partitions": [wanted]}]
        its = in_session("a session", 2, 0, 0, Topics=topics)
        in_session("its next fetch", 2, its, 1)
        in_session("as somebody else", 3, its, 2)
        in_session("as itself again", 2, its, 3)
        in_session("in an old epoch", 2, its, 2)
        consumers = in_session("a session of a consumer", -1, 0, 0, Topics=topics)
        in_session("of a consumer, by it", 2, consumers, 1)
        in_session("of nobody", 2, 4711, 1)
        in_session("ended", 2, its, -1)
        in_session("after its end", 2, its, 1)

        elsewhere = NAME + "-2"
        create_assigned_topic(client, elsewhere, [2, 1])
        time.sleep(SETTLING_S)
        for label, name in {"led here": NAME, "followed here": elsewhere}.items():
            marker = {
                "ProducerId": 4000,
                "ProducerEpoch": 0,
                "TransactionResult": True,
                "Topics": [{"Name": name, "PartitionIndexes": [0]}],
                "CoordinatorEpoch": 0,
            }
            client.send("WriteTxnMarkers", 1, Markers=[marker])
            if name == NAME:
                # A marker waits for the ISR like any other record.
                until(
                    lambda: (
                        follower.fetch(4, LogStartOffset=2)["Responses"][0]["Partitions"][0]["ErrorCode"] == 0
                    )
                )
            answer(f"marker {label}", "WriteTxnMarkers", 1)
            told = produce(client, name, Batch().encode(), acks=1)["Responses"][0]["PartitionResponses"][0]
            seen[f"produced, {label}"] = comparable(told)
            asked = {"Name": name, "Partitions": [{"PartitionIndex": 0, "Offset": 0}]}
            answer_of = client.call("DeleteRecords", 2, Topics=[asked], TimeoutMs=500)
            seen[f"deleted, {label}"] = comparable(answer_of)
            told = client.call("DescribeProducers", 0, Topics=[{"Name": name, "PartitionIndexes": [0, 7]}])
            for partition in told["Topics"][0]["Partitions"]:
                partition["ActiveProducers"] = len(partition["ActiveProducers"])
            seen[f"producers, {label}"] = comparable(told)
    return seen

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
from interop.scenarios.raw_alter_partition import create_assigned_topic, described_partitions
from interop.tools import another, until
from interop.wire import Fields, encode_request, versions_of

NAME = "raw-followers"
SETTLING_S = 1.0
"""A delay in seconds: replicas apply metadata records later than DescribeTopicPartitions shows them."""
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
        """Fetch partition 0 from an offset and return the leader's response.

        `epoch` is the broker epoch. `request` has fields of the request, and `fields` those of the partition.
        """
        replica_id = self.broker.broker_id if replica is None else replica
        given: Fields = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, **(request or {})}
        if version >= 15:
            life = self.broker.epoch if epoch is None else epoch
            given["ReplicaState"] = {"ReplicaId": replica_id, "ReplicaEpoch": life}
        else:
            given["ReplicaId"] = replica_id
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
    """Return the high watermark in a consumer's Fetch response, and whether the response has records."""
    [topic] = fetch(client, NAME, 0)["Responses"]
    [partition] = topic["Partitions"]
    return partition["HighWatermark"], len(partition["Records"] or b"") > 0


def append_batches(client: RawClient, count: int, name: str = NAME) -> Any:
    """Append `count` batches with acks=1, and return their error codes."""
    return [
        produce(client, name, Batch(base_timestamp=1_700_000_000_000 + number).encode(), acks=1)["Responses"][
            0
        ]["PartitionResponses"][0]["ErrorCode"]
        for number in range(count)
    ]


def wait_for_leader(client: RawClient, leader: int, name: str = NAME) -> Any:
    """Wait until broker `leader` leads partition 0 of the topic, and return the described partition."""
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
        fetch_partition = follower.fetch
        seen["fetch from a follower"] = fetch_partition()
        seen["fetch from a follower, as another replica"] = fetch_partition(replica=3)
        seen["fetch from a follower, epoch 0"] = fetch_partition(CurrentLeaderEpoch=0)
        seen["fetch from a follower, future epoch"] = fetch_partition(CurrentLeaderEpoch=3)
        other.beat(WantFence=True)
        seen["leader in epoch 1"] = wait_for_leader(client, 1)
        seen["appended"] = append_batches(client, 3)
        other.beat()
        seen["high watermark without the follower"] = consumer_view(client)

        for version in versions_of("Fetch"):
            seen[f"v{version}"] = fetch_partition(0, version=version)
            seen[f"v{version} of an unknown broker"] = fetch_partition(0, version=version, replica=77)
        for label, replica_id in {
            "the leader": 1,
            "another": 3,
            "a negative one": -5,
            "one that debugs": -2,
        }.items():
            seen[f"as {label}"] = fetch_partition(0, replica=replica_id)
            seen[f"as {label}, at the end"] = fetch_partition(3, replica=replica_id)
        seen["unknown broker, unknown topic id"] = fetch_partition(0, replica=77, topic_id=uuid(4711))
        seen["unknown broker, future epoch"] = fetch_partition(0, replica=77, CurrentLeaderEpoch=9)
        seen["unknown broker, beyond the end"] = fetch_partition(BEYOND, replica=77)
        seen["partition of another leader's replicas"] = fetch_partition(0, topic_id=unrelated)
        seen["of no topic"] = fetch_partition(0, topic_id=uuid(4711))
        seen["of no partition"] = fetch_partition(0, Partition=7)
        seen["of a negative partition"] = fetch_partition(0, Partition=-1)
        seen["old broker epoch"] = fetch_partition(3, epoch=other.epoch - 1)
        seen["future broker epoch"] = fetch_partition(3, epoch=other.epoch + 1)
        seen["no broker epoch"] = fetch_partition(0, epoch=-1)
        seen["ISR"] = comparable(described_partitions(client, NAME)[0]["IsrNodes"])
        seen["at a negative offset"] = fetch_partition(-1)
        seen["beyond the end"] = fetch_partition(4)
        seen["far beyond the end"] = fetch_partition(BEYOND)
        seen["high watermark after invalid fetches"] = consumer_view(client)
        seen["old leader epoch"] = fetch_partition(0, CurrentLeaderEpoch=0)
        seen["current leader epoch"] = fetch_partition(0, CurrentLeaderEpoch=1)
        seen["future leader epoch"] = fetch_partition(0, CurrentLeaderEpoch=2)
        seen["no bytes"] = fetch_partition(0, PartitionMaxBytes=0)
        seen["no bytes in the response"] = fetch_partition(0, request={"MaxBytes": 0})
        for label, start in {"negative": -7, "beyond the end": BEYOND, "unknown": -1}.items():
            seen[f"log start of the follower: {label}"] = fetch_partition(0, LogStartOffset=start)
        for epoch in (-7, -1, 0, 1, 2):
            for offset in (0, 2, 3, 4):
                seen[f"after epoch {epoch} at {offset}"] = fetch_partition(offset, LastFetchedEpoch=epoch)
        until(lambda: 2 in described_partitions(client, NAME)[0]["IsrNodes"])
        seen["follower in the ISR"] = comparable(described_partitions(client, NAME)[0])
        seen["committed"] = consumer_view(client)

        seen["appended once more"] = append_batches(client, 2)
        seen["not committed"] = consumer_view(client)
        seen["old broker epoch, at the end"] = fetch_partition(5, epoch=other.epoch - 1)
        seen["as another replica, at the new end"] = fetch_partition(5, replica=3)
        seen["beyond the end again"] = fetch_partition(6)
        seen["still not committed"] = consumer_view(client)
        seen["offset 4"] = fetch_partition(4, LastFetchedEpoch=1)
        seen["committed to 4"] = consumer_view(client)
        seen["back again"] = fetch_partition(1)
        seen["at the beginning"] = fetch_partition(0, LastFetchedEpoch=0)
        seen["committed as before"] = consumer_view(client)
        seen["at the end"] = fetch_partition(5, LastFetchedEpoch=1)
        seen["committed to the end"] = consumer_view(client)

        preferred = [{"Topic": NAME, "Partitions": [0]}]
        answer = client.call("ElectLeaders", 2, ElectionType=0, TimeoutMs=10_000, TopicPartitions=preferred)
        seen["elected"] = comparable(answer)
        seen["leader in epoch 2"] = wait_for_leader(client, 2)
        seen["fetch from the former leader"] = fetch_partition(0)
        seen["fetch from the former leader, in its epoch"] = fetch_partition(0, CurrentLeaderEpoch=1)
        other.beat(WantFence=True)
        seen["leader in epoch 3"] = wait_for_leader(client, 1)
        other.beat()
        seen["appended in epoch 3"] = append_batches(client, 2)
        for epoch in range(5):
            for offset in (0, 4, 5, 6, 7, 8):
                seen[f"epoch 3, after epoch {epoch} at {offset}"] = fetch_partition(
                    offset, LastFetchedEpoch=epoch
                )
        for epoch in (0, 1, 2, 3, 4):
            seen[f"epoch 3, fetch with epoch {epoch}"] = fetch_partition(
                7, LastFetchedEpoch=3, CurrentLeaderEpoch=epoch
            )

        for version in versions_of("OffsetForLeaderEpoch"):
            for replica in (2, 3, 77, 1, -1, -2, -7) if version > 2 else (-2,):
                requested = [
                    {"Partition": index, "CurrentLeaderEpoch": current, "LeaderEpoch": epoch}
                    for index, current, epoch in (
                        *((0, -1, epoch) for epoch in range(-2, 6)),
                        *((0, current, 1) for current in (0, 1, 3, 4, -7)),
                        (7, -1, 1),
                    )
                ]
                fields = {"ReplicaId": replica} if version > 2 else {}
                topics = [
                    {"Topic": NAME, "Partitions": requested},
                    {"Topic": "raw-nothing", "Partitions": requested[:1]},
                ]
                answer = client.call("OffsetForLeaderEpoch", version, Topics=topics, **fields)
                seen[f"epochs v{version} of {replica}"] = comparable(answer)
        for replica in (2, 3, 77, 1, -1, -2, -7):
            for isolation in (0, 1):
                for timestamp in (-1, -2, -3, -4, 1_700_000_000_001):
                    requested = [{"PartitionIndex": 0, "CurrentLeaderEpoch": 3, "Timestamp": timestamp}]
                    answer = client.call(
                        "ListOffsets",
                        9,
                        ReplicaId=replica,
                        IsolationLevel=isolation,
                        Topics=[{"Name": NAME, "Partitions": requested}],
                    )
                    found = answer["Topics"][0]["Partitions"][0]
                    seen[f"offsets of {replica}, {isolation}, {timestamp}"] = comparable(found)
    return seen


def log_start_offset(client: RawClient) -> int:
    """Return the log start offset of partition 0 of `NAME`."""
    requested = [{"PartitionIndex": 0, "Timestamp": -2}]
    answer = client.call("ListOffsets", 1, ReplicaId=-1, Topics=[{"Name": NAME, "Partitions": requested}])
    offset: int = answer["Topics"][0]["Partitions"][0]["Offset"]
    return offset


@scenario(seconds=180)
def delayed_operations(broker: Broker) -> Any:
    """Send Produce and DeleteRecords, which wait for the follower's fetch. Then use its fetch sessions."""
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
        answer("no follower fetch", "Produce", 9)
        ask_produce(-1, 20_000)
        seen["follower has a part"] = follower.fetch(1, LastFetchedEpoch=0)
        seen["follower has all, old broker epoch"] = follower.fetch(2, epoch=other.epoch - 1)
        seen["follower beyond the end"] = follower.fetch(3)
        seen["follower has all"] = follower.fetch(2, LastFetchedEpoch=0)["Responses"][0]["Partitions"][0][
            "ErrorCode"
        ]
        answer("follower has fetched", "Produce", 9)
        ask_delete(1, 500)
        answer("deleted, follower log start unknown", "DeleteRecords", 2)
        ask_delete(2, 20_000)
        until(lambda: log_start_offset(other.leader) == 2)
        seen["follower log start 1"] = follower.fetch(2, LogStartOffset=1)
        seen["follower log start 2"] = follower.fetch(2, LogStartOffset=2)
        answer("deleted, follower log start known", "DeleteRecords", 2)
        seen["before the start"] = follower.fetch(1)
        seen["before the start, after an epoch"] = follower.fetch(0, LastFetchedEpoch=0)
        other.beat(WantFence=True)
        until(lambda: described_partitions(client, NAME)[0]["IsrNodes"] == [1])
        time.sleep(SETTLING_S)
        ask_produce(-1, 500)
        answer("follower shut down", "Produce", 9)
        ask_produce(1, 500)
        answer("follower shut down, ISR shrunk", "Produce", 9)
        [found] = fetch(client, NAME, 2)["Responses"]
        seen["a consumer, without the follower"] = comparable(found)
        seen["fenced follower fetches"] = follower.fetch(2, LastFetchedEpoch=0)
        seen["fenced follower has all"] = follower.fetch(3, LastFetchedEpoch=0)["Responses"][0]["Partitions"][
            0
        ]["ErrorCode"]
        seen["not added to the ISR"] = comparable(described_partitions(client, NAME)[0])
        other.beat()

        def joins() -> bool:
            follower.fetch(3, LastFetchedEpoch=0)
            return 2 in described_partitions(client, NAME)[0]["IsrNodes"]

        # The leader may apply the follower's new registration later and then needs another fetch.
        until(joins)
        seen["added to the ISR"] = comparable(described_partitions(client, NAME)[0])
        [found] = fetch(client, NAME, 2)["Responses"]
        seen["a consumer, with the follower"] = comparable(found)

        def in_session(label: str, replica: int, session_id: int, epoch: int, **fields: Any) -> int:
            given: Fields = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, **fields}
            life = other.epoch if replica == 2 else -1
            given["ReplicaState"] = {"ReplicaId": replica, "ReplicaEpoch": life}
            response = client.call("Fetch", 17, SessionId=session_id, SessionEpoch=epoch, **given)
            new_session_id: int = response["SessionId"]
            seen[label] = comparable(response)
            return new_session_id

        wanted = {"Partition": 0, "FetchOffset": 2, "LogStartOffset": 2, "PartitionMaxBytes": 1 << 20}
        topics = [{"TopicId": topic_id, "Partitions": [wanted]}]
        its = in_session("a session", 2, 0, 0, Topics=topics)
        in_session("next fetch in the session", 2, its, 1)
        in_session("as another replica", 3, its, 2)
        in_session("as the same replica again", 2, its, 3)
        in_session("in an old epoch", 2, its, 2)
        consumers = in_session("a session of a consumer", -1, 0, 0, Topics=topics)
        in_session("session of a consumer, by the consumer", 2, consumers, 1)
        in_session("unknown session", 2, 4711, 1)
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
            response = produce(client, name, Batch().encode(), acks=1)["Responses"][0]["PartitionResponses"][
                0
            ]
            seen[f"produced, {label}"] = comparable(response)
            requested = {"Name": name, "Partitions": [{"PartitionIndex": 0, "Offset": 0}]}
            answer_of = client.call("DeleteRecords", 2, Topics=[requested], TimeoutMs=500)
            seen[f"deleted, {label}"] = comparable(answer_of)
            response = client.call(
                "DescribeProducers", 0, Topics=[{"Name": name, "PartitionIndexes": [0, 7]}]
            )
            for partition in response["Topics"][0]["Partitions"]:
                partition["ActiveProducers"] = len(partition["ActiveProducers"])
            seen[f"producers, {label}"] = comparable(response)
    return seen

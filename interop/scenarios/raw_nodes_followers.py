"""Fetch, OffsetForLeaderEpoch and ListOffsets of a made-up follower, in the ISR and not, that may lie."""

from __future__ import annotations

from typing import Any

from interop.batches import Batch
from interop.brokers import Broker
from interop.made_up import PATIENT, MadeUpBroker, uuid
from interop.raw import comparable, fetch, produce
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_nodes_replicas import create, described
from interop.tools import another, until
from interop.wire import Fields, encode_request, versions_of

NAME = "raw-followers"
BEYOND = 1 << 40


class Follower:
    """Fetches a partition as a replica, each time on a connection of its own."""

    def __init__(self, own: Broker, broker: MadeUpBroker, topic_id: bytes) -> None:
        self.own = own
        self.broker = broker
        self.topic_id = topic_id

    def ask(
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
        """One partition from an offset on; what the leader says."""
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


def seen_by_consumers(client: RawClient) -> Any:
    """How far a consumer may read, and how much it gets."""
    [topic] = fetch(client, NAME, 0)["Responses"]
    [partition] = topic["Partitions"]
    return partition["HighWatermark"], len(partition["Records"] or b"") > 0


def append(client: RawClient, count: int, name: str = NAME) -> Any:
    """Batches that need no follower."""
    return [
        produce(client, name, Batch(base_timestamp=1_700_000_000_000 + number).encode(), acks=1)["Responses"][
            0
        ]["PartitionResponses"][0]["ErrorCode"]
        for number in range(count)
    ]


def led_by(client: RawClient, leader: int, name: str = NAME) -> Any:
    """The partition, once that broker leads it."""
    until(lambda: described(client, name)[0]["LeaderId"] == leader)
    return comparable(described(client, name)[0])


@scenario(seconds=180)
def fetches(broker: Broker) -> Any:
    """Through four leader epochs, of which two have records: who fetches what, and what comes of it."""
    seen: dict[str, Any] = {}
    with another(broker, PATIENT) as own, MadeUpBroker(own) as other, RawClient(own.bootstrap) as client:
        other.join()
        with MadeUpBroker(own, 3) as third:
            third.join()
        topic_id = create(client, NAME, [2, 1])
        unrelated = create(client, NAME + "-2", [1])
        follower = Follower(own, other, topic_id)
        ask = follower.ask
        seen["of a follower here"] = ask()
        seen["of a follower here, as another"] = ask(replica=3)
        seen["of a follower here, in no epoch"] = ask(CurrentLeaderEpoch=0)
        seen["of a follower here, in an epoch to come"] = ask(CurrentLeaderEpoch=3)
        other.beat(WantFence=True)
        seen["leads in epoch 1"] = led_by(client, 1)
        seen["appended"] = append(client, 3)
        other.beat()
        seen["nobody waits for it"] = seen_by_consumers(client)

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
        seen["is it in sync"] = comparable(described(client, NAME)[0]["IsrNodes"])
        seen["at a negative offset"] = ask(-1)
        seen["beyond the end"] = ask(4)
        seen["far beyond the end"] = ask(BEYOND)
        seen["it counts for nothing"] = seen_by_consumers(client)
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
        until(lambda: 2 in described(client, NAME)[0]["IsrNodes"])
        seen["it is in sync"] = comparable(described(client, NAME)[0])
        seen["committed"] = seen_by_consumers(client)

        seen["appended once more"] = append(client, 2)
        seen["not committed"] = seen_by_consumers(client)
        seen["in another life, at the end"] = ask(5, epoch=other.epoch - 1)
        seen["as another, at the end of more"] = ask(5, replica=3)
        seen["beyond the end again"] = ask(6)
        seen["still not committed"] = seen_by_consumers(client)
        seen["a little on"] = ask(4, LastFetchedEpoch=1)
        seen["committed a little"] = seen_by_consumers(client)
        seen["back again"] = ask(1)
        seen["at the beginning"] = ask(0, LastFetchedEpoch=0)
        seen["committed as before"] = seen_by_consumers(client)
        seen["at the end"] = ask(5, LastFetchedEpoch=1)
        seen["committed to the end"] = seen_by_consumers(client)

        preferred = [{"Topic": NAME, "Partitions": [0]}]
        answer = client.call("ElectLeaders", 2, ElectionType=0, TimeoutMs=10_000, TopicPartitions=preferred)
        seen["elected"] = comparable(answer)
        seen["leads in epoch 2"] = led_by(client, 2)
        seen["of a follower that has led"] = ask(0)
        seen["of a follower that has led, in its epoch"] = ask(0, CurrentLeaderEpoch=1)
        other.beat(WantFence=True)
        seen["leads in epoch 3"] = led_by(client, 1)
        other.beat()
        seen["appended in epoch 3"] = append(client, 2)
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

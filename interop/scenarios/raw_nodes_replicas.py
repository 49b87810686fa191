"""AlterPartition and AssignReplicasToDirs from a simulated leader, with valid and invalid requests."""

from __future__ import annotations

from typing import Any

from interop.brokers import Broker
from interop.fake_broker import PATIENT, FakeBroker, uuid
from interop.raw import comparable
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.tools import another, until
from interop.wire import Fields, versions_of

LEADER, FOLLOWER, ABSENT, UNREGISTERED = 2, 1, 3, 77


def create_assigned_topic(client: RawClient, name: str, *replicas: list[int], **configs: str) -> bytes:
    """Create a topic with these replicas and return its id once the broker has its metadata."""
    asked = {
        "Name": name,
        "NumPartitions": -1,
        "ReplicationFactor": -1,
        "Assignments": [{"PartitionIndex": index, "BrokerIds": ids} for index, ids in enumerate(replicas)],
        "Configs": [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()],
    }
    [topic] = client.call("CreateTopics", 7, Topics=[asked], timeoutMs=10_000)["Topics"]
    assert topic["ErrorCode"] == 0, topic
    until(lambda: len(described_partitions(client, name)) == len(replicas))
    topic_id: bytes = topic["TopicId"]
    return topic_id


def described_partitions(client: RawClient, name: str) -> list[Fields]:
    """Return the topic's partitions in the metadata, by index."""
    found = client.call("DescribeTopicPartitions", 0, Topics=[{"Name": name}])["Topics"][0]["Partitions"]
    return sorted(found, key=lambda each: each["PartitionIndex"])


@scenario(seconds=180)
def alter_partition(broker: Broker) -> Any:
    """Send AlterPartition with each error, alone and combined, then valid changes."""
    seen: dict[str, Any] = {}
    name = "raw-in-sync"
    with another(broker, PATIENT) as own, FakeBroker(own) as leader, RawClient(own.bootstrap) as client:
        leader.join()
        with FakeBroker(own, ABSENT) as absent:
            assert absent.register()["ErrorCode"] == 0
        topic_id = create_assigned_topic(client, name, [2, 1], [1, 2])
        three = create_assigned_topic(client, name + "-3", [2, 3, 1])

        def partition(index: int = 0, *isr: int, **fields: Any) -> Fields:
            members = fields.pop("epochs", {})
            return {
                "PartitionIndex": index,
                "LeaderEpoch": 0,
                "PartitionEpoch": 0,
                "NewIsr": list(isr),
                "NewIsrWithEpochs": [
                    {"BrokerId": each, "BrokerEpoch": members.get(each, -1)} for each in isr
                ],
                **fields,
            }

        def ask(
            label: str, *partitions: Fields, topic: bytes = topic_id, version: int = 3, **fields: Any
        ) -> Fields:
            given = {
                "BrokerId": LEADER,
                "BrokerEpoch": leader.epoch,
                "Topics": [{"TopicId": topic, "Partitions": list(partitions)}],
                **fields,
            }
            answer = leader.controller.call("AlterPartition", version, **given)
            seen[label] = comparable(answer)
            return answer

        good = partition(0, LEADER)
        for version in versions_of("AlterPartition"):
            ask(f"v{version} of another life", good, version=version, BrokerEpoch=leader.epoch - 1)
        ask("of a life to come", good, BrokerEpoch=leader.epoch + 1)
        ask("of nobody", good, BrokerId=UNREGISTERED)
        ask("of nothing", Topics=[])
        ask("of no partition")
        ask("of no topic", good, topic=uuid(4711))
        ask("of the topic of zeros", good, topic=bytes(16))
        ask("of no such partition", partition(7, LEADER), partition(-1, LEADER))
        ask("in another's partition", partition(1, LEADER, FOLLOWER), partition(1, FOLLOWER))
        ask("in another's partition, old", partition(1, LEADER, LeaderEpoch=-1, PartitionEpoch=-1))
        ask("of another broker", good, BrokerId=FOLLOWER)
        ask("in a leader epoch to come", partition(0, LEADER, LeaderEpoch=1))
        ask("in an old leader epoch", partition(0, LEADER, LeaderEpoch=-1))
        ask("in a partition epoch to come", partition(0, LEADER, PartitionEpoch=1))
        ask("in an old partition epoch", partition(0, LEADER, PartitionEpoch=-1))
        ask("in old epochs", partition(0, LEADER, LeaderEpoch=-1, PartitionEpoch=-1))
        ask("in an old leader epoch and a partition epoch to come",
            partition(0, LEADER, LeaderEpoch=-1, PartitionEpoch=3))  # fmt: skip
        ask("of nobody in it", partition(0))
        ask("without the leader", partition(0, FOLLOWER))
        ask("twice the leader", partition(0, LEADER, LEADER))
        ask("with one that is no replica", partition(0, LEADER, ABSENT))
        ask("with one that is nobody", partition(0, LEADER, UNREGISTERED))
        ask("with one that is nobody and without the leader", partition(0, UNREGISTERED))
        ask("recovering of two", partition(0, LEADER, FOLLOWER, LeaderRecoveryState=1))
        ask("recovering again", partition(0, LEADER, LeaderRecoveryState=1))
        ask("with one that is fenced", partition(0, LEADER, ABSENT), topic=three)
        ask("with one that is fenced, of before epochs", partition(0, LEADER, ABSENT), topic=three, version=2)
        ask("with one in another life", partition(0, LEADER, FOLLOWER, epochs={FOLLOWER: 1}))
        ask("with oneself in another life", partition(0, LEADER, epochs={LEADER: 1}))
        ask("with one in a life to come", partition(0, LEADER, FOLLOWER, epochs={FOLLOWER: 1 << 40}))
        ask("with one in a life before all", partition(0, LEADER, FOLLOWER, epochs={FOLLOWER: -7}))
        ask("good and bad", partition(0, LEADER), partition(7, LEADER), partition(1, LEADER))
        ask("good again", partition(0, LEADER))
        ask("the same again", partition(0, LEADER, PartitionEpoch=1))
        ask("of both", partition(0, LEADER, FOLLOWER, PartitionEpoch=1), version=2)
        ask("in another order", partition(0, FOLLOWER, LEADER, PartitionEpoch=2))
        seen["described"] = wait_for_isr(client, name, 0, [FOLLOWER, LEADER])
        ask("less of them", partition(0, LEADER, FOLLOWER), topic=three)
        ask("one left", partition(0, LEADER, PartitionEpoch=3))
        seen["described then"] = wait_for_isr(client, name, 0, [LEADER])
        leader.beat(WantFence=True)
        ask("fenced", partition(0, LEADER, FOLLOWER, PartitionEpoch=3))
        seen["fenced, described"] = wait_for_isr(client, name, 0, [])
        ask("fenced, of now", partition(0, LEADER, FOLLOWER, LeaderEpoch=1, PartitionEpoch=5))
        leader.beat()
        seen["back, described"] = wait_for_isr(client, name, 0, [LEADER])
        ask("back", partition(0, LEADER, FOLLOWER, LeaderEpoch=2, PartitionEpoch=6))
        seen["back and both, described"] = wait_for_isr(client, name, 0, [FOLLOWER, LEADER])
    return seen


def wait_for_isr(client: RawClient, name: str, index: int, isr: list[int]) -> Any:
    """Wait until the partition has this ISR and return it."""
    until(lambda: sorted(described_partitions(client, name)[index]["IsrNodes"]) == isr)
    return comparable(described_partitions(client, name)[index])


@scenario(seconds=120)
def assign_directories(broker: Broker) -> Any:
    """Send AssignReplicasToDirs with unknown directories, foreign replicas and valid ones."""
    seen: dict[str, Any] = {}
    name = "raw-directories"
    with another(broker, PATIENT) as own, FakeBroker(own) as other, RawClient(own.bootstrap) as client:
        other.directory = uuid(1002)
        assert other.register(LogDirs=[uuid(500), uuid(501)])["ErrorCode"] == 0
        other.beat()
        topic_id = create_assigned_topic(client, name, [2, 1])
        alone = create_assigned_topic(client, name + "-1", [2], [1])

        def ask(label: str, *places: tuple[bytes, bytes, list[int]], **fields: Any) -> None:
            given = [
                {
                    "Id": directory,
                    "Topics": [
                        {"TopicId": topic, "Partitions": [{"PartitionIndex": each} for each in partitions]}
                    ],
                }
                for directory, topic, partitions in places
            ]
            whose = {"BrokerId": 2, "BrokerEpoch": other.epoch, **fields}
            answer = other.controller.call("AssignReplicasToDirs", 0, Directories=given, **whose)
            for directory in answer["Directories"]:
                for topic in directory["Topics"]:
                    topic["Partitions"].sort(key=lambda each: each["PartitionIndex"])
            answer["Directories"].sort(key=lambda each: each["Id"])
            seen[label] = comparable(answer)

        ask("of another life", (uuid(500), topic_id, [0]), BrokerEpoch=other.epoch - 1)
        ask("of a life to come", (uuid(500), topic_id, [0]), BrokerEpoch=other.epoch + 1)
        ask("of nobody", (uuid(500), topic_id, [0]), BrokerId=77)
        ask("of nothing")
        ask("of no partition", (uuid(500), topic_id, []))
        ask("of no topic", (uuid(500), uuid(4711), [0, 1]))
        ask("of no such partition", (uuid(500), topic_id, [-1, 7]))
        ask("of another's replica", (uuid(500), alone, [1]))
        ask("one of each", (uuid(501), alone, [0, 1, 7]), (uuid(500), uuid(4711), [2]))
        ask("again", (uuid(501), topic_id, [0]))
        ask("back", (uuid(500), topic_id, [0]))
        ask("in two", (uuid(500), topic_id, [0]), (uuid(501), topic_id, [0]))
        seen["before"] = wait_for_isr(client, name, 0, [1, 2])
        ask("in none of its own", (uuid(502), topic_id, [0]))
        seen["in none of its own, described"] = wait_for_isr(client, name, 0, [1])
        ask("in that of another place", (uuid(0), alone, [0]))
        seen["unassigned, described"] = comparable(described_partitions(client, name + "-1")[0])
        ask("lost", (uuid(1), alone, [0]))
        seen["lost, described"] = comparable(described_partitions(client, name + "-1")[0])
        ask("found again", (uuid(500), alone, [0]), (uuid(501), topic_id, [0]))
        seen["found again, described"] = [
            comparable(described_partitions(client, each)) for each in (name, name + "-1")
        ]
        other.beat(WantFence=True)
        ask("fenced", (uuid(501), alone, [0]))
    return seen

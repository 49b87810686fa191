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
    """Create a topic, wait until the broker's metadata contains the topic, and return the topic id.

    Each item of `replicas` is a list of broker ids for one partition. The names of `configs` have underscores
    instead of dots.
    """
    requested = {
        "Name": name,
        "NumPartitions": -1,
        "ReplicationFactor": -1,
        "Assignments": [{"PartitionIndex": index, "BrokerIds": ids} for index, ids in enumerate(replicas)],
        "Configs": [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()],
    }
    [topic] = client.call("CreateTopics", 7, Topics=[requested], timeoutMs=10_000)["Topics"]
    assert topic["ErrorCode"] == 0, topic
    until(lambda: len(described_partitions(client, name)) == len(replicas))
    topic_id: bytes = topic["TopicId"]
    return topic_id


def described_partitions(client: RawClient, name: str) -> list[Fields]:
    """Return the topic's partitions in the DescribeTopicPartitions response, sorted by index."""
    found = client.call("DescribeTopicPartitions", 0, Topics=[{"Name": name}])["Topics"][0]["Partitions"]
    return sorted(found, key=lambda each: each["PartitionIndex"])


@scenario(seconds=180)
def alter_partition(broker: Broker) -> Any:
    """Send AlterPartition with each error and with combined errors, then with valid changes."""
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

        def request(
            label: str, *partitions: Fields, topic: bytes = topic_id, version: int = 3, **fields: Any
        ) -> Fields:
            given = {
                "BrokerId": LEADER,
                "BrokerEpoch": leader.epoch,
                "Topics": [{"TopicId": topic, "Partitions": list(partitions)}],
                **fields,
            }
            response = leader.controller.call("AlterPartition", version, **given)
            seen[label] = comparable(response)
            return response

        good = partition(0, LEADER)
        for version in versions_of("AlterPartition"):
            request(
                f"v{version} with an old broker epoch", good, version=version, BrokerEpoch=leader.epoch - 1
            )
        request("future broker epoch", good, BrokerEpoch=leader.epoch + 1)
        request("unknown broker", good, BrokerId=UNREGISTERED)
        request("no topics", Topics=[])
        request("of no partition")
        request("of no topic", good, topic=uuid(4711))
        request("of the topic of zeros", good, topic=bytes(16))
        request("of no such partition", partition(7, LEADER), partition(-1, LEADER))
        request("partition of another leader", partition(1, LEADER, FOLLOWER), partition(1, FOLLOWER))
        request(
            "partition of another leader, old epochs", partition(1, LEADER, LeaderEpoch=-1, PartitionEpoch=-1)
        )
        request("of another broker", good, BrokerId=FOLLOWER)
        request("future leader epoch", partition(0, LEADER, LeaderEpoch=1))
        request("in an old leader epoch", partition(0, LEADER, LeaderEpoch=-1))
        request("future partition epoch", partition(0, LEADER, PartitionEpoch=1))
        request("in an old partition epoch", partition(0, LEADER, PartitionEpoch=-1))
        request("in old epochs", partition(0, LEADER, LeaderEpoch=-1, PartitionEpoch=-1))
        request("old leader epoch, future partition epoch",
            partition(0, LEADER, LeaderEpoch=-1, PartitionEpoch=3))  # fmt: skip
        request("empty ISR", partition(0))
        request("without the leader", partition(0, FOLLOWER))
        request("twice the leader", partition(0, LEADER, LEADER))
        request("broker that is no replica", partition(0, LEADER, ABSENT))
        request("unregistered replica", partition(0, LEADER, UNREGISTERED))
        request("unregistered replica without the leader", partition(0, UNREGISTERED))
        request("recovering of two", partition(0, LEADER, FOLLOWER, LeaderRecoveryState=1))
        request("recovering again", partition(0, LEADER, LeaderRecoveryState=1))
        request("fenced replica", partition(0, LEADER, ABSENT), topic=three)
        request(
            "fenced replica, version without epochs", partition(0, LEADER, ABSENT), topic=three, version=2
        )
        request("replica with an old broker epoch", partition(0, LEADER, FOLLOWER, epochs={FOLLOWER: 1}))
        request("leader with an old broker epoch", partition(0, LEADER, epochs={LEADER: 1}))
        request(
            "replica with a future broker epoch", partition(0, LEADER, FOLLOWER, epochs={FOLLOWER: 1 << 40})
        )
        request("replica with a negative broker epoch", partition(0, LEADER, FOLLOWER, epochs={FOLLOWER: -7}))
        request("good and bad", partition(0, LEADER), partition(7, LEADER), partition(1, LEADER))
        request("good again", partition(0, LEADER))
        request("the same again", partition(0, LEADER, PartitionEpoch=1))
        request("of both", partition(0, LEADER, FOLLOWER, PartitionEpoch=1), version=2)
        request("in another order", partition(0, FOLLOWER, LEADER, PartitionEpoch=2))
        seen["described"] = wait_for_isr(client, name, 0, [FOLLOWER, LEADER])
        request("less of them", partition(0, LEADER, FOLLOWER), topic=three)
        request("leader only", partition(0, LEADER, PartitionEpoch=3))
        seen["described then"] = wait_for_isr(client, name, 0, [LEADER])
        leader.beat(WantFence=True)
        request("fenced", partition(0, LEADER, FOLLOWER, PartitionEpoch=3))
        seen["fenced, described"] = wait_for_isr(client, name, 0, [])
        request("fenced, current epochs", partition(0, LEADER, FOLLOWER, LeaderEpoch=1, PartitionEpoch=5))
        leader.beat()
        seen["back, described"] = wait_for_isr(client, name, 0, [LEADER])
        request("back", partition(0, LEADER, FOLLOWER, LeaderEpoch=2, PartitionEpoch=6))
        seen["back and both, described"] = wait_for_isr(client, name, 0, [FOLLOWER, LEADER])
    return seen


def wait_for_isr(client: RawClient, name: str, index: int, isr: list[int]) -> Any:
    """Wait at most 10 s until the sorted ISR of the partition is `isr`. Return the described partition."""
    until(lambda: sorted(described_partitions(client, name)[index]["IsrNodes"]) == isr)
    return comparable(described_partitions(client, name)[index])


@scenario(seconds=120)
def assign_directories(broker: Broker) -> Any:
    """Send AssignReplicasToDirs with each error, with valid directories, and with an unknown directory."""
    seen: dict[str, Any] = {}
    name = "raw-directories"
    with another(broker, PATIENT) as own, FakeBroker(own) as other, RawClient(own.bootstrap) as client:
        other.directory = uuid(1002)
        assert other.register(LogDirs=[uuid(500), uuid(501)])["ErrorCode"] == 0
        other.beat()
        topic_id = create_assigned_topic(client, name, [2, 1])
        alone = create_assigned_topic(client, name + "-1", [2], [1])

        def request(label: str, *places: tuple[bytes, bytes, list[int]], **fields: Any) -> None:
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
            response = other.controller.call("AssignReplicasToDirs", 0, Directories=given, **whose)
            for directory in response["Directories"]:
                for topic in directory["Topics"]:
                    topic["Partitions"].sort(key=lambda each: each["PartitionIndex"])
            response["Directories"].sort(key=lambda each: each["Id"])
            seen[label] = comparable(response)

        request("old broker epoch", (uuid(500), topic_id, [0]), BrokerEpoch=other.epoch - 1)
        request("future broker epoch", (uuid(500), topic_id, [0]), BrokerEpoch=other.epoch + 1)
        request("unknown broker", (uuid(500), topic_id, [0]), BrokerId=77)
        request("no topics")
        request("of no partition", (uuid(500), topic_id, []))
        request("of no topic", (uuid(500), uuid(4711), [0, 1]))
        request("of no such partition", (uuid(500), topic_id, [-1, 7]))
        request("replica of another broker", (uuid(500), alone, [1]))
        request("one of each", (uuid(501), alone, [0, 1, 7]), (uuid(500), uuid(4711), [2]))
        request("again", (uuid(501), topic_id, [0]))
        request("back", (uuid(500), topic_id, [0]))
        request("in two", (uuid(500), topic_id, [0]), (uuid(501), topic_id, [0]))
        seen["before"] = wait_for_isr(client, name, 0, [1, 2])
        request("unknown directory", (uuid(502), topic_id, [0]))
        seen["unknown directory, described"] = wait_for_isr(client, name, 0, [1])
        request("unassigned directory", (uuid(0), alone, [0]))
        seen["unassigned, described"] = comparable(described_partitions(client, name + "-1")[0])
        request("lost", (uuid(1), alone, [0]))
        seen["lost, described"] = comparable(described_partitions(client, name + "-1")[0])
        request("found again", (uuid(500), alone, [0]), (uuid(501), topic_id, [0]))
        seen["found again, described"] = [
            comparable(described_partitions(client, each)) for each in (name, name + "-1")
        ]
        other.beat(WantFence=True)
        request("fenced", (uuid(501), alone, [0]))
    return seen

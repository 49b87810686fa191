"""BrokerRegistration, BrokerHeartbeat, AllocateProducerIds and ControllerRegistration of simulated nodes."""

from __future__ import annotations

from typing import Any

from interop.batches import Batch
from interop.brokers import Broker
from interop.fake_broker import PATIENT, FakeBroker, features, uuid
from interop.raw import comparable, create_topic, produce
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.tools import another, until
from interop.wire import Fields, versions_of


def without_broker_epoch(response: Fields) -> Any:
    """Return a response with a constant in place of the broker epoch, which differs from run to run."""
    return comparable(
        {
            name: "<epoch>" if name == "BrokerEpoch" and value > 0 else value
            for name, value in response.items()
        }
    )


def described_brokers(client: RawClient) -> Any:
    """Return id, fencing and rack of each registered broker, and whether it has the port of a FakeBroker."""
    found = client.call("DescribeCluster", 2, IncludeFencedBrokers=True)["Brokers"]
    return sorted((each["BrokerId"], each["IsFenced"], each["Rack"], each["Port"] == 9) for each in found)


@scenario(seconds=180)
def registrations(broker: Broker) -> Any:
    """Send BrokerRegistration with each error and with combined errors, then with new incarnation ids."""
    seen: dict[str, Any] = {}
    with another(broker, PATIENT) as own, FakeBroker(own) as other, RawClient(own.bootstrap) as client:

        def request(label: str, version: int = 4, **fields: Any) -> None:
            seen[label] = without_broker_epoch(other.register(version, **fields))

        name = "raw-registrations"
        create_topic(client, name)
        listener = other.registration()["Listeners"][0]
        wrong: dict[str, Fields] = {
            "another cluster": {"ClusterId": "other"},
            "no cluster": {"ClusterId": ""},
            "active broker, another cluster": {"BrokerId": 1, "ClusterId": "other"},
            "active broker": {"BrokerId": 1},
            "active broker, migrating": {"BrokerId": 1, "IsMigratingZkBroker": True},
            "migrating": {"IsMigratingZkBroker": True},
            "migrating without directories": {"IsMigratingZkBroker": True, "LogDirs": []},
            "no directories": {"LogDirs": []},
            "a directory twice": {"LogDirs": [uuid(1002), uuid(1002)]},
            "a reserved directory": {"LogDirs": [uuid(1002), uuid(99)]},
            "reserved directories twice": {"LogDirs": [uuid(1), uuid(1)]},
            "no features": {"Features": []},
            "no metadata.version": {"Features": features(metadata_version=None)},
            "no group.version": {"Features": features(group_version=None)},
            "no transaction.version": {"Features": features(transaction_version=None)},
            "no kraft.version": {"Features": features(kraft_version=None)},
            "metadata.version too low": {"Features": features(metadata_version=(1, 7))},
            "metadata.version too high": {"Features": features(metadata_version=(100, 200))},
            "group.version too high": {"Features": features(group_version=(2, 3))},
            "kraft.version too high": {"Features": features(kraft_version=(1, 1))},
            "a range with min above max": {"Features": features(metadata_version=(31, 29))},
            "an unknown feature": {"Features": features(new_version=(1, 5))},
            "no directories and no features": {"LogDirs": [], "Features": []},
            "a negative id": {"BrokerId": -1},
        }  # fmt: skip
        for label, fields in wrong.items():
            request(label, **fields)
        for version in versions_of("BrokerRegistration"):
            request(f"v{version} of another cluster", version, ClusterId="other")
        request("v1 without directories", 1)
        seen["only the active broker"] = described_brokers(client)

        request("good", Listeners=[])
        first = other.epoch
        request("again")
        seen["the same epoch"] = other.epoch == first
        until(lambda: len(described_brokers(client)) == 2)
        seen["fenced"] = described_brokers(client)
        request(
            "with a rack and more listeners", Rack="there", Listeners=[listener, {**listener, "Name": "B"}]
        )
        request("another incarnation before a heartbeat", IncarnationId=uuid(7000))
        seen["another epoch"] = other.epoch > first
        seen["its heartbeat"] = without_broker_epoch(other.beat())
        request("another incarnation of an active broker", IncarnationId=uuid(7001))
        request("another incarnation, without directories", IncarnationId=uuid(7001), LogDirs=[],
            Features=[])  # fmt: skip
        request("same incarnation of an active broker", IncarnationId=uuid(7000), Rack="elsewhere")
        until(lambda: described_brokers(client)[-1][2] == "elsewhere")
        seen["rack changed"] = described_brokers(client)
        request("features too low", IncarnationId=uuid(7000), Features=features(metadata_version=(1, 7)))
        with FakeBroker(own, 3) as third:
            seen["a directory of another broker"] = without_broker_epoch(third.register(LogDirs=[uuid(1002)]))
            seen["the previous epoch of another broker"] = without_broker_epoch(
                third.register(PreviousBrokerEpoch=other.epoch)
            )
        seen["gone"] = comparable(other.controller.call("UnregisterBroker", 0, BrokerId=3))
        seen["serves"] = comparable(produce(client, name, Batch().encode()))
    return seen


@scenario(seconds=180)
def heartbeats(broker: Broker) -> Any:
    """Send BrokerHeartbeat as unknown and restarted brokers, and as a broker that starts and shuts down."""
    seen: dict[str, Any] = {}
    name = "raw-heartbeats"
    with another(broker, PATIENT) as own, FakeBroker(own) as other, RawClient(own.bootstrap) as client:

        def request(label: str, version: int = 2, **fields: Any) -> None:
            seen[label] = comparable(other.beat(version, **fields))

        def heartbeats_of(label: str) -> None:
            """Send heartbeats that do not unfence the broker, then one that does, and record the brokers."""
            request(f"{label}: not caught up", CurrentMetadataOffset=0)
            request(f"{label}: before the log", CurrentMetadataOffset=-7)
            request(f"{label}: wants to be fenced", WantFence=True)
            request(f"{label}: old broker epoch", BrokerEpoch=other.epoch - 1)
            request(f"{label}: future broker epoch", BrokerEpoch=other.epoch + 1)
            request(f"{label}: unfenced")
            request(f"{label}: unfenced, behind again", CurrentMetadataOffset=0)
            until(lambda: not described_brokers(client)[-1][1])
            seen[f"{label}: seen"] = described_brokers(client)

        def forget() -> None:
            """Unregister the broker, because its active session would prevent the next registration."""
            assert other.controller.call("UnregisterBroker", 0, BrokerId=2)["ErrorCode"] == 0

        for version in versions_of("BrokerHeartbeat"):
            request(f"v{version} of an unknown broker", version)
            request(f"v{version} with another broker epoch", version, BrokerId=1, BrokerEpoch=-1)
            request(f"v{version} with a future broker epoch", version, BrokerId=1, BrokerEpoch=1 << 50)
        request("shutdown of an unknown broker", WantFence=True, WantShutDown=True)
        seen["registered"] = without_broker_epoch(other.register())
        heartbeats_of("first")
        request("fenced", WantFence=True)
        request("fenced once more", WantFence=True)
        request("unfenced again")
        request("fenced and shut down", WantFence=True, WantShutDown=True)
        request("shut down, not fenced")
        until(lambda: not described_brokers(client)[-1][1])
        seen["unfenced, described"] = described_brokers(client)
        request("controlled shutdown without leaders", WantShutDown=True)
        seen["shut down, described"] = described_brokers(client)
        request("controlled shutdown, repeated", WantShutDown=True)
        request("fenced without shutdown", WantFence=True)
        request("unfenced after the shutdown")

        requested: list[Fields] = [
            {
                "Name": f"{name}-{len(replicas)}",
                "NumPartitions": -1,
                "ReplicationFactor": -1,
                "Assignments": [{"PartitionIndex": 0, "BrokerIds": replicas}],
            }
            for replicas in ([2], [2, 1])
        ]
        seen["topics"] = [
            topic["ErrorCode"]
            for topic in client.call("CreateTopics", 7, Topics=requested, timeoutMs=10_000)["Topics"]
        ]
        one, two = (topic["Name"] for topic in requested)
        wait_for_leader(client, two, 2)
        seen["leads"] = partition_states(client, one, two)
        request("controlled shutdown, not caught up", WantShutDown=True, CurrentMetadataOffset=0)
        request("controlled shutdown with one leader", WantShutDown=True)
        wait_for_leader(client, two, 1)
        seen["leads one"] = partition_states(client, one, two)
        client.call("DeleteTopics", 6, Topics=[{"Name": one}, {"Name": two}], TimeoutMs=10_000)
        until(lambda: bool(other.beat(WantShutDown=True)["ShouldShutDown"]))
        request("shut down", WantShutDown=True)
        request("shut down, then heartbeat")
        seen["next incarnation, too early"] = without_broker_epoch(other.register(IncarnationId=uuid(8000)))
        request("shut down and fenced", WantFence=True, WantShutDown=True)
        known: Fields = {"IncarnationId": uuid(8000), "PreviousBrokerEpoch": other.epoch}
        seen["registered at once"] = without_broker_epoch(other.register(**known))
        forget()
        seen["next incarnation"] = without_broker_epoch(other.register(**known))
        heartbeats_of("next")

        forget()
        directories = [uuid(500), uuid(501)]
        seen["directories"] = without_broker_epoch(
            other.register(IncarnationId=uuid(8001), LogDirs=directories)
        )
        request("an unknown directory is offline", OfflineLogDirs=[uuid(502)])
        request("one is offline", OfflineLogDirs=[uuid(500)])
        request("and again", OfflineLogDirs=[uuid(500), uuid(500)])
        request("all are offline", OfflineLogDirs=[uuid(500), uuid(501)])
        request("a reserved one is offline", OfflineLogDirs=[uuid(0), uuid(1)])
        request("one is cordoned", CordonedLogDirs=[uuid(501)])
        request("an unknown directory is cordoned", CordonedLogDirs=[uuid(777), uuid(777)])
        request("no directory is cordoned", CordonedLogDirs=[])
        request("cordoned directories null", CordonedLogDirs=None)
        forget()
        seen["another incarnation"] = without_broker_epoch(other.register(IncarnationId=uuid(8002)))
        request("cordoned at once", CordonedLogDirs=[other.directory])
        forget()
        request("after unregistration")
        seen["brokers at the end"] = described_brokers(client)
    return seen


def wait_for_leader(client: RawClient, topic: str, leader: int) -> None:
    """Wait at most 10 s until the topic's first partition has this leader in Metadata."""
    until(lambda: partition_states(client, topic)[0][0] == leader)


def partition_states(client: RawClient, *topics: str) -> list[tuple[Any, ...]]:
    """Return leader, replicas, ISR and error code of the first partition of each topic.

    The leader is -2 if Metadata returns no partition of the topic.
    """
    found = client.call("Metadata", 12, Topics=[{"TopicId": bytes(16), "Name": name} for name in topics])
    partitions = {topic["Name"]: topic["Partitions"][:1] for topic in found["Topics"]}
    return [
        (one["LeaderId"], one["ReplicaNodes"], sorted(one["IsrNodes"]), one["ErrorCode"])
        for name in topics
        for one in partitions[name] or [{"LeaderId": -2, "ReplicaNodes": [], "IsrNodes": [], "ErrorCode": 0}]
    ]


@scenario(seconds=120)
def producer_ids_and_controllers(broker: Broker) -> Any:
    """Send AllocateProducerIds for known and unknown brokers, and register unknown controllers."""
    seen: dict[str, Any] = {}
    with another(broker, PATIENT) as own, FakeBroker(own) as other, RawClient(own.bootstrap) as client:

        def ids(label: str, broker_id: int, epoch: int) -> None:
            response = other.controller.call("AllocateProducerIds", 0, BrokerId=broker_id, BrokerEpoch=epoch)
            seen[label] = comparable(response)

        ids("unknown broker", 2, -1)
        ids("another broker epoch", 1, 1 << 40)
        other.register()
        ids("fenced", 2, other.epoch)
        ids("fenced, again", 2, other.epoch)
        ids("previous broker epoch", 2, other.epoch - 1)
        other.beat()
        ids("unfenced", 2, other.epoch)

        def controller(label: str, controller_id: int = 3, **fields: Any) -> None:
            given = {
                "ControllerId": controller_id,
                "IncarnationId": uuid(9000),
                "ZkMigrationReady": False,
                "Listeners": [{"Name": "CONTROLLER", "Host": "127.0.0.1", "Port": 9, "SecurityProtocol": 0}],
                "Features": features(),
                **fields,
            }
            response = other.controller.call("ControllerRegistration", 0, **given)
            seen[label] = comparable(response)

        controller("another controller")
        controller("another controller again")
        controller("another incarnation of the controller", IncarnationId=uuid(9001))
        controller("without listeners", 4, Listeners=[])
        controller("without features", 5, Features=[])
        controller("with a negative id", -1)
        controller("ready for a ZooKeeper migration", 6, ZkMigrationReady=True)
        controllers = other.controller.call("DescribeCluster", 1, EndpointType=2)
        seen["controllers"] = sorted(each["BrokerId"] for each in controllers["Brokers"])
        described = client.call("DescribeCluster", 2)
        seen["brokers"] = sorted(each["BrokerId"] for each in described["Brokers"])
        controller("same id as the active controller", 1)
        update = {"Feature": "transaction.version", "MaxVersionLevel": 1, "UpgradeType": 2}
        seen["a feature"] = comparable(
            client.call("UpdateFeatures", 2, timeoutMs=10_000, ValidateOnly=True, FeatureUpdates=[update])
        )
    return seen

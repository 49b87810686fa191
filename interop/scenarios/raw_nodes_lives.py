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


def without_broker_epoch(answer: Fields) -> Any:
    """Replace the broker epoch in a response."""
    return comparable(
        {name: "<epoch>" if name == "BrokerEpoch" and value > 0 else value for name, value in answer.items()}
    )


def described_brokers(client: RawClient) -> Any:
    """Return the brokers that DescribeCluster returns, including the fenced ones."""
    found = client.call("DescribeCluster", 2, IncludeFencedBrokers=True)["Brokers"]
    return sorted((each["BrokerId"], each["IsFenced"], each["Rack"], each["Port"] == 9) for each in found)


@scenario(seconds=180)
def registrations(broker: Broker) -> Any:
    """Register with each error, alone and combined, then successfully and with new incarnations."""
    seen: dict[str, Any] = {}
    with another(broker, PATIENT) as own, FakeBroker(own) as other, RawClient(own.bootstrap) as client:

        def ask(label: str, version: int = 4, **fields: Any) -> None:
            seen[label] = without_broker_epoch(other.register(version, **fields))

        name = "raw-registrations"
        create_topic(client, name)
        listener = other.registration()["Listeners"][0]
        wrong: dict[str, Fields] = {
            "another cluster": {"ClusterId": "other"},
            "no cluster": {"ClusterId": ""},
            "another cluster's id of one that lives": {"BrokerId": 1, "ClusterId": "other"},
            "one that lives": {"BrokerId": 1},
            "one that lives, migrating": {"BrokerId": 1, "IsMigratingZkBroker": True},
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
            "a range that ends before it begins": {"Features": features(metadata_version=(31, 29))},
            "a feature that nobody has": {"Features": features(new_version=(1, 5))},
            "no directories and no features": {"LogDirs": [], "Features": []},
            "a negative id": {"BrokerId": -1},
        }  # fmt: skip
        for label, fields in wrong.items():
            ask(label, **fields)
        for version in versions_of("BrokerRegistration"):
            ask(f"v{version} of another cluster", version, ClusterId="other")
        ask("v1 without directories", 1)
        seen["nobody else"] = described_brokers(client)

        ask("good", Listeners=[])
        first = other.epoch
        ask("again")
        seen["the same epoch"] = other.epoch == first
        until(lambda: len(described_brokers(client)) == 2)
        seen["fenced"] = described_brokers(client)
        ask("with a rack and more listeners", Rack="there", Listeners=[listener, {**listener, "Name": "B"}])
        ask("another incarnation of one that is not heard of", IncarnationId=uuid(7000))
        seen["another epoch"] = other.epoch > first
        seen["its heartbeat"] = without_broker_epoch(other.beat())
        ask("another incarnation of one that lives", IncarnationId=uuid(7001))
        ask("another incarnation of one that lives, with nothing", IncarnationId=uuid(7001), LogDirs=[],
            Features=[])  # fmt: skip
        ask("this incarnation of one that lives", IncarnationId=uuid(7000), Rack="elsewhere")
        until(lambda: described_brokers(client)[-1][2] == "elsewhere")
        seen["it has moved"] = described_brokers(client)
        ask("its features too low", IncarnationId=uuid(7000), Features=features(metadata_version=(1, 7)))
        with FakeBroker(own, 3) as third:
            seen["a directory of another"] = without_broker_epoch(third.register(LogDirs=[uuid(1002)]))
            seen["a previous epoch of another"] = without_broker_epoch(
                third.register(PreviousBrokerEpoch=other.epoch)
            )
        seen["gone"] = comparable(other.controller.call("UnregisterBroker", 0, BrokerId=3))
        seen["serves"] = comparable(produce(client, name, Batch().encode()))
    return seen


@scenario(seconds=180)
def heartbeats(broker: Broker) -> Any:
    """Send heartbeats of unknown and restarted brokers, and of one that is fenced, unfenced and shut down."""
    seen: dict[str, Any] = {}
    name = "raw-heartbeats"
    with another(broker, PATIENT) as own, FakeBroker(own) as other, RawClient(own.bootstrap) as client:

        def ask(label: str, version: int = 2, **fields: Any) -> None:
            seen[label] = comparable(other.beat(version, **fields))

        def life(label: str) -> None:
            """Send each request that a broker can make, and describe the brokers after it."""
            ask(f"{label}: not caught up", CurrentMetadataOffset=0)
            ask(f"{label}: before the log", CurrentMetadataOffset=-7)
            ask(f"{label}: wants to be fenced", WantFence=True)
            ask(f"{label}: in another epoch", BrokerEpoch=other.epoch - 1)
            ask(f"{label}: in an epoch to come", BrokerEpoch=other.epoch + 1)
            ask(f"{label}: unfenced")
            ask(f"{label}: unfenced, behind again", CurrentMetadataOffset=0)
            until(lambda: not described_brokers(client)[-1][1])
            seen[f"{label}: seen"] = described_brokers(client)

        def forget() -> None:
            """Unregister the broker, since an active session prevents the next registration."""
            assert other.controller.call("UnregisterBroker", 0, BrokerId=2)["ErrorCode"] == 0

        for version in versions_of("BrokerHeartbeat"):
            ask(f"v{version} of nobody", version)
            ask(f"v{version} of another life", version, BrokerId=1, BrokerEpoch=-1)
            ask(f"v{version} of a life to come", version, BrokerId=1, BrokerEpoch=1 << 50)
        ask("of nobody who wants to go", WantFence=True, WantShutDown=True)
        seen["registered"] = without_broker_epoch(other.register())
        life("first")
        ask("fenced", WantFence=True)
        ask("fenced once more", WantFence=True)
        ask("unfenced again")
        ask("fenced and gone", WantFence=True, WantShutDown=True)
        ask("gone, and not")
        until(lambda: not described_brokers(client)[-1][1])
        seen["it is back"] = described_brokers(client)
        ask("going, leads nothing", WantShutDown=True)
        seen["it has gone"] = described_brokers(client)
        ask("going, has gone", WantShutDown=True)
        ask("fenced, does not want to go", WantFence=True)
        ask("unfenced as if nothing had been")

        asked: list[Fields] = [
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
            for topic in client.call("CreateTopics", 7, Topics=asked, timeoutMs=10_000)["Topics"]
        ]
        one, two = (topic["Name"] for topic in asked)
        wait_for_leader(client, two, 2)
        seen["leads"] = partition_states(client, one, two)
        ask("going, leads", WantShutDown=True, CurrentMetadataOffset=0)
        ask("going, leads one", WantShutDown=True)
        wait_for_leader(client, two, 1)
        seen["leads one"] = partition_states(client, one, two)
        client.call("DeleteTopics", 6, Topics=[{"Name": one}, {"Name": two}], TimeoutMs=10_000)
        until(lambda: bool(other.beat(WantShutDown=True)["ShouldShutDown"]))
        ask("gone", WantShutDown=True)
        ask("gone, and not fenced in this life")
        seen["the next life, too early"] = without_broker_epoch(other.register(IncarnationId=uuid(8000)))
        ask("gone for good", WantFence=True, WantShutDown=True)
        known: Fields = {"IncarnationId": uuid(8000), "PreviousBrokerEpoch": other.epoch}
        seen["back at once"] = without_broker_epoch(other.register(**known))
        forget()
        seen["the next life"] = without_broker_epoch(other.register(**known))
        life("next")

        forget()
        directories = [uuid(500), uuid(501)]
        seen["directories"] = without_broker_epoch(
            other.register(IncarnationId=uuid(8001), LogDirs=directories)
        )
        ask("a directory of nobody's is offline", OfflineLogDirs=[uuid(502)])
        ask("one is offline", OfflineLogDirs=[uuid(500)])
        ask("and again", OfflineLogDirs=[uuid(500), uuid(500)])
        ask("all are offline", OfflineLogDirs=[uuid(500), uuid(501)])
        ask("a reserved one is offline", OfflineLogDirs=[uuid(0), uuid(1)])
        ask("one is cordoned", CordonedLogDirs=[uuid(501)])
        ask("one of nobody's is cordoned", CordonedLogDirs=[uuid(777), uuid(777)])
        ask("none is cordoned", CordonedLogDirs=[])
        ask("nothing is said", CordonedLogDirs=None)
        forget()
        seen["another life"] = without_broker_epoch(other.register(IncarnationId=uuid(8002)))
        ask("cordoned at once", CordonedLogDirs=[other.directory])
        forget()
        ask("of one that was forgotten")
        seen["nobody else"] = described_brokers(client)
    return seen


def wait_for_leader(client: RawClient, topic: str, leader: int) -> None:
    """Wait until the metadata has this leader."""
    until(lambda: partition_states(client, topic)[0][0] == leader)


def partition_states(client: RawClient, *topics: str) -> list[tuple[Any, ...]]:
    """Return leader, replicas, ISR and error of the first partition of each topic."""
    found = client.call("Metadata", 12, Topics=[{"TopicId": bytes(16), "Name": name} for name in topics])
    partitions = {topic["Name"]: topic["Partitions"][:1] for topic in found["Topics"]}
    return [
        (one["LeaderId"], one["ReplicaNodes"], sorted(one["IsrNodes"]), one["ErrorCode"])
        for name in topics
        for one in partitions[name] or [{"LeaderId": -2, "ReplicaNodes": [], "IsrNodes": [], "ErrorCode": 0}]
    ]


@scenario(seconds=120)
def producer_ids_and_controllers(broker: Broker) -> Any:
    """Allocate producer ids for registered and unknown brokers, and register unknown controllers."""
    seen: dict[str, Any] = {}
    with another(broker, PATIENT) as own, FakeBroker(own) as other, RawClient(own.bootstrap) as client:

        def ids(label: str, broker_id: int, epoch: int) -> None:
            answer = other.controller.call("AllocateProducerIds", 0, BrokerId=broker_id, BrokerEpoch=epoch)
            seen[label] = comparable(answer)

        ids("of nobody", 2, -1)
        ids("of another life", 1, 1 << 40)
        other.register()
        ids("fenced", 2, other.epoch)
        ids("fenced, again", 2, other.epoch)
        ids("of its last life", 2, other.epoch - 1)
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
            answer = other.controller.call("ControllerRegistration", 0, **given)
            seen[label] = comparable(answer)

        controller("another controller")
        controller("another controller again")
        controller("another controller's other life", IncarnationId=uuid(9001))
        controller("without listeners", 4, Listeners=[])
        controller("without features", 5, Features=[])
        controller("with a negative id", -1)
        controller("ready for what is long gone", 6, ZkMigrationReady=True)
        controllers = other.controller.call("DescribeCluster", 1, EndpointType=2)
        seen["controllers"] = sorted(each["BrokerId"] for each in controllers["Brokers"])
        described = client.call("DescribeCluster", 2)
        seen["brokers"] = sorted(each["BrokerId"] for each in described["Brokers"])
        controller("in the place of this one", 1)
        update = {"Feature": "transaction.version", "MaxVersionLevel": 1, "UpgradeType": 2}
        seen["a feature"] = comparable(
            client.call("UpdateFeatures", 2, timeoutMs=10_000, ValidateOnly=True, FeatureUpdates=[update])
        )
    return seen

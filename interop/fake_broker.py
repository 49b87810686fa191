"""A broker that there is not: it registers with a controller and says what it is told to say.

Whatever it is asked to replicate it can be a follower of, in the in-sync set or not, and lie about.
"""

from __future__ import annotations

from typing import Any

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.wire import Fields

PATIENT = {"broker.session.timeout.ms": "120000", "replica.lag.time.max.ms": "600000"}
"""For the node that it registers with: nobody has to hear of it, or fetch, while a scenario thinks."""
FEATURES = {
    "metadata.version": (7, 30),
    "kraft.version": (0, 1),
    "group.version": (0, 1),
    "transaction.version": (0, 2),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
}
"""Those that either node may have finalized."""


def uuid(number: int) -> bytes:
    """An id that is nobody else's. Those below 100 have meanings of their own."""
    return number.to_bytes(16, "big")


def features(**changed: tuple[int, int] | None) -> list[Fields]:
    """The features of a registration; a changed one by its name with underscores, None to leave it out."""
    names = {name.replace("_", "."): given for name, given in changed.items()}
    return [
        {"Name": name, "MinSupportedVersion": given[0], "MaxSupportedVersion": given[1]}
        for name, given in {**FEATURES, **names}.items()
        if given is not None
    ]


class FakeBroker:
    """What it sends goes to one node, each answer is given as it came."""

    def __init__(self, node: Broker, broker_id: int = 2) -> None:
        self.broker_id = broker_id
        self.epoch = -1
        self.directory = uuid(1000 + broker_id)
        self.controller = RawClient(f"127.0.0.1:{node.controller_port}")
        self.leader = RawClient(node.bootstrap)
        self.cluster_id: str = self.leader.call("DescribeCluster", 0)["ClusterId"]

    def __enter__(self) -> FakeBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.controller.socket.close()
        self.leader.socket.close()

    def registration(self, **fields: Any) -> Fields:
        """The fields of a registration, some of them changed."""
        return {
            "BrokerId": self.broker_id,
            "ClusterId": self.cluster_id,
            "IncarnationId": uuid(2000 + self.broker_id),
            "Listeners": [{"Name": "PLAINTEXT", "Host": "127.0.0.1", "Port": 9, "SecurityProtocol": 0}],
            "Features": features(),
            "Rack": None,
            "LogDirs": [self.directory],
            **fields,
        }

    def register(self, version: int = 4, **fields: Any) -> Fields:
        """Register; where that goes well, its epoch is the one that it was given."""
        known = {name: given for name, given in self.registration(**fields).items() if name != "LogDirs"}
        given = self.registration(**fields) if version >= 2 else known
        answer = self.controller.call("BrokerRegistration", version, **given)
        if answer["ErrorCode"] == 0:
            self.epoch = answer["BrokerEpoch"]
        return answer

    def beat(self, version: int = 2, **fields: Any) -> Fields:
        """A heartbeat; it wants to be unfenced and has all metadata, where nothing else is said."""
        given = {
            "BrokerId": self.broker_id,
            "BrokerEpoch": self.epoch,
            "CurrentMetadataOffset": 1 << 40,
            "WantFence": False,
            "WantShutDown": False,
            **fields,
        }
        return self.controller.call("BrokerHeartbeat", version, **given)

    def join(self) -> None:
        """Register, and be unfenced."""
        assert self.register()["ErrorCode"] == 0
        answer = self.beat()
        assert (answer["ErrorCode"], answer["IsFenced"]) == (0, False), answer

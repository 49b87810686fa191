"""A fake broker that registers with a controller and sends the requests that a scenario chooses.

It can be a follower of any partition, in or out of the ISR, and report wrong offsets.
"""

from __future__ import annotations

from typing import Any

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.wire import Fields

PATIENT = {"broker.session.timeout.ms": "120000", "replica.lag.time.max.ms": "600000"}
"""Settings of the controller's node: the fake broker sends no heartbeats or fetches while a scenario runs."""
FEATURES = {
    "metadata.version": (7, 30),
    "kraft.version": (0, 1),
    "group.version": (0, 1),
    "transaction.version": (0, 2),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
}
"""Ranges that include the levels that either node may have finalized."""


def uuid(number: int) -> bytes:
    """Return a fixed UUID. Kafka reserves the numbers below 100."""
    return number.to_bytes(16, "big")


def features(**changed: tuple[int, int] | None) -> list[Fields]:
    """Return the features of a registration. Name a changed one with underscores; None removes it."""
    names = {name.replace("_", "."): given for name, given in changed.items()}
    return [
        {"Name": name, "MinSupportedVersion": given[0], "MaxSupportedVersion": given[1]}
        for name, given in {**FEATURES, **names}.items()
        if given is not None
    ]


class FakeBroker:
    """A fake broker. All its requests go to one node, and responses are returned unchanged."""

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
        """Return the fields of a BrokerRegistration request, with changes."""
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
        """Register. If that succeeds, keep the broker epoch of the response."""
        known = {name: given for name, given in self.registration(**fields).items() if name != "LogDirs"}
        given = self.registration(**fields) if version >= 2 else known
        answer = self.controller.call("BrokerRegistration", version, **given)
        if answer["ErrorCode"] == 0:
            self.epoch = answer["BrokerEpoch"]
        return answer

    def beat(self, version: int = 2, **fields: Any) -> Fields:
        """Send a heartbeat. By default it asks to be unfenced and has all metadata."""
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
        """Register and become unfenced."""
        assert self.register()["ErrorCode"] == 0
        answer = self.beat()
        assert (answer["ErrorCode"], answer["IsFenced"]) == (0, False), answer

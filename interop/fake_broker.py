"""A fake broker that registers with a controller and sends the requests that a scenario chooses.

The fake broker can be a follower of any partition, in or out of the ISR, and can report wrong offsets.
"""

from __future__ import annotations

from typing import Any

from interop.brokers import Broker
from interop.raw_client import RawClient
from interop.wire import Fields

PATIENT = {"broker.session.timeout.ms": "120000", "replica.lag.time.max.ms": "600000"}
"""Long timeouts for the real node, because the fake broker sends heartbeats and fetches only on demand."""
FEATURES = {
    "metadata.version": (7, 30),
    "kraft.version": (0, 1),
    "group.version": (0, 1),
    "transaction.version": (0, 2),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
}
"""Supported versions that include every feature level that Apache Kafka or kwire may have finalized."""


def uuid(number: int) -> bytes:
    """Return the UUID with this number. Kafka reserves the numbers below 100."""
    return number.to_bytes(16, "big")


def features(**changed: tuple[int, int] | None) -> list[Fields]:
    """Return the supported features of a registration.

    An argument changes the version range of a feature, or removes the feature if it is None. Argument names
    have underscores instead of dots.
    """
    names = {name.replace("_", "."): given for name, given in changed.items()}
    return [
        {"Name": name, "MinSupportedVersion": given[0], "MaxSupportedVersion": given[1]}
        for name, given in {**FEATURES, **names}.items()
        if given is not None
    ]


class FakeBroker:
    """A fake broker. It sends all its requests to one real node and returns the responses unchanged."""

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
        """Return the fields of a BrokerRegistration request. Arguments replace fields."""
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
        """Send BrokerRegistration. If it succeeds, remember the broker epoch in the response."""
        known = {name: given for name, given in self.registration(**fields).items() if name != "LogDirs"}
        given = self.registration(**fields) if version >= 2 else known
        answer = self.controller.call("BrokerRegistration", version, **given)
        if answer["ErrorCode"] == 0:
            self.epoch = answer["BrokerEpoch"]
        return answer

    def beat(self, version: int = 2, **fields: Any) -> Fields:
        """Send BrokerHeartbeat. By default, the broker has all metadata and wants to be unfenced."""
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
        """Register the broker and get it unfenced."""
        assert self.register()["ErrorCode"] == 0
        answer = self.beat()
        assert (answer["ErrorCode"], answer["IsFenced"]) == (0, False), answer

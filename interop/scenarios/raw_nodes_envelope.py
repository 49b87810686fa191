"""Envelope requests: those that brokers forward, and invalid ones."""

from __future__ import annotations

from typing import Any

from interop.brokers import Broker
from interop.raw import comparable, on_new_connection
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.tools_controller import controller_of
from interop.wire import Fields, Truncated, api_keys, decode_response, encode_request, versions_of

LOCAL = bytes([127, 0, 0, 1])


def frame_of_version(api: str, version: int, rest: bytes) -> bytes:
    """Return a frame with an unsupported version."""
    return (api_keys()[api] << 16 | version).to_bytes(4, "big") + rest


def principal(kind: str = "User", name: str = "ANONYMOUS") -> bytes:
    """Return a principal as Apache Kafka writes it: version 0, two compact strings, a flag, no tags."""
    texts = b"".join(bytes([len(text) + 1]) + text.encode() for text in (kind, name))
    return b"\0\0" + texts + b"\0" + b"\0"


def topic_spec(name: str) -> Fields:
    return {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1}


@scenario(seconds=120)
def forwarded_requests(broker: Broker) -> Any:
    """Forward allowed requests, other requests, and invalid bytes."""
    seen: dict[str, Any] = {}

    def ask(
        label: str,
        data: bytes,
        inner: tuple[str, int] | None = None,
        who: bytes | None = principal(),
        address: bytes = LOCAL,
    ) -> None:
        fields = {"RequestData": data, "RequestPrincipal": who, "ClientHostAddress": address}
        with RawClient(controller_of(broker)) as client:
            answer = client.outcome(encode_request("Envelope", 0, fields), "Envelope", 0)
        if inner is not None and not isinstance(answer, str) and answer["ResponseData"]:
            try:
                correlation_id, body = decode_response(*inner, answer["ResponseData"])
            except Truncated as truncated:
                answer["ResponseData"] = str(truncated)
            else:
                for created in body.get("Topics", ()):
                    created.pop("Configs", None)
                answer["ResponseData"] = [correlation_id, comparable(body)]
        seen[label] = comparable(answer)

    create = {"Topics": [topic_spec("raw-envelope")], "timeoutMs": 10_000, "validateOnly": True}
    asked = encode_request("CreateTopics", 7, create, correlation_id=4711, client_id="someone")
    good = ("CreateTopics", 7)
    for version in versions_of("CreateTopics"):
        frame = encode_request("CreateTopics", version, create, correlation_id=version)
        ask(f"CreateTopics {version}", frame, ("CreateTopics", version))
    ask("refused inside", encode_request("CreateTopics", 7, {**create, "Topics": [topic_spec("/")]}), good)
    twice = {**create, "Topics": [topic_spec("a"), topic_spec("a")]}
    ask("twice inside", encode_request("CreateTopics", 7, twice), good)
    gone = encode_request("DeleteTopics", 6, {"Topics": [{"Name": "raw-nothing"}], "TimeoutMs": 1000})
    ask("DeleteTopics", gone, ("DeleteTopics", 6))
    ask("UnregisterBroker", encode_request("UnregisterBroker", 0, {"BrokerId": 77}), ("UnregisterBroker", 0))
    elect = encode_request("ElectLeaders", 2, {"ElectionType": 7, "TopicPartitions": None, "TimeoutMs": 1000})
    ask("ElectLeaders of no kind", elect, ("ElectLeaders", 2))
    quorum = encode_request("DescribeQuorum", 2, {"Topics": []})
    ask("DescribeQuorum", quorum, ("DescribeQuorum", 2))

    for api in NOT_FORWARDED:
        version = versions_of(api)[-1]
        ask(api, encode_request(api, version, {}), (api, version))
    ask("an Envelope in it", encode_request("Envelope", 0, {"RequestData": asked}))
    ask("Metadata that is cut short", encode_request("Metadata", 12, {})[:-3])
    ask("a version to come", frame_of_version("CreateTopics", 99, asked[4:]))
    ask("a version that was", frame_of_version("CreateTopics", 0, asked[4:]))
    ask("a negative version", frame_of_version("CreateTopics", 65535, asked[4:]))
    ask("a version to come of Metadata", frame_of_version("Metadata", 99, asked[4:]))
    ask("nothing", b"")
    ask("half a key", asked[:1])
    ask("half a header", asked[:9])
    ask("a header alone", asked[: asked.index(b"someone") + 8])
    ask("half a request", asked[:-7])
    ask("all but a byte", asked[:-1])
    ask("more than a request", asked + b"more", good)
    ask("noise", bytes(range(1, 200)))

    ask("no principal", asked, good, None)
    ask("an empty principal", asked, good, b"")
    ask("half a principal", asked, good, principal()[:-3])
    ask("a principal of a future version", asked, good, b"\0\1" + principal()[2:])
    ask("a principal of a negative version", asked, good, b"\xff\xff" + principal()[2:])
    ask("more than a principal", asked, good, principal() + b"more")
    ask("a principal of an unknown type", asked, good, principal("Robot", "R2"))
    ask("a principal without a name", asked, good, principal("", ""))
    for size in (0, 1, 3, 5, 16, 17):
        ask(f"an address of {size} bytes", asked, good, address=bytes(size))
    ask("all wrong", b"", None, None, b"")
    ask("principal and address wrong", asked, good, None, b"")
    ask("address and data wrong", b"", None, principal(), b"")
    ask("address and API wrong", encode_request("Metadata", 12, {}), None, principal(), b"")
    ask("principal and API wrong", encode_request("Metadata", 12, {}), None, None)
    seen["at the broker"] = on_new_connection(
        broker, "Envelope", 0, RequestData=asked, RequestPrincipal=principal(), ClientHostAddress=LOCAL
    )
    return seen


NOT_FORWARDED = (
    "ApiVersions",
    "Metadata",
    "Produce",
    "Fetch",
    "FetchSnapshot",
    "DescribeConfigs",
    "DescribeCluster",
    "BrokerRegistration",
    "BrokerHeartbeat",
    "AlterPartition",
    "ControllerRegistration",
    "AssignReplicasToDirs",
    "Vote",
)

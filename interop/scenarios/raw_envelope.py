"""Envelope requests: some as brokers forward them, and some invalid."""

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
    """Return a frame with this API key and version, followed by the bytes `rest`."""
    return (api_keys()[api] << 16 | version).to_bytes(4, "big") + rest


def principal(kind: str = "User", name: str = "ANONYMOUS", *, by_token: bool = False) -> bytes:
    """Return a principal as Apache Kafka writes it: version 0, two compact strings, a flag, no tags."""
    texts = b"".join(bytes([len(text) + 1]) + text.encode() for text in (kind, name))
    return b"\0\0" + texts + bytes([by_token]) + b"\0"


def topic_spec(name: str) -> Fields:
    return {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1}


@scenario(seconds=120)
def forwarded_requests(broker: Broker) -> Any:
    """Send Envelope requests that contain allowed APIs, other APIs, and invalid bytes."""
    seen: dict[str, Any] = {}

    def request(
        label: str,
        data: bytes,
        inner: tuple[str, int] | None = None,
        identity: bytes | None = principal(),
        address: bytes = LOCAL,
    ) -> None:
        fields = {"RequestData": data, "RequestPrincipal": identity, "ClientHostAddress": address}
        with RawClient(controller_of(broker)) as client:
            response = client.outcome(encode_request("Envelope", 0, fields), "Envelope", 0)
        if inner is not None and not isinstance(response, str) and response["ResponseData"]:
            try:
                correlation_id, body = decode_response(*inner, response["ResponseData"])
            except Truncated as truncated:
                response["ResponseData"] = str(truncated)
            else:
                for created in body.get("Topics", ()):
                    created.pop("Configs", None)
                response["ResponseData"] = [correlation_id, comparable(body)]
        seen[label] = comparable(response)

    create = {"Topics": [topic_spec("raw-envelope")], "timeoutMs": 10_000, "validateOnly": True}
    requested = encode_request("CreateTopics", 7, create, correlation_id=4711, client_id="someone")
    good = ("CreateTopics", 7)
    for version in versions_of("CreateTopics"):
        frame = encode_request("CreateTopics", version, create, correlation_id=version)
        request(f"CreateTopics {version}", frame, ("CreateTopics", version))
    request(
        "refused inside", encode_request("CreateTopics", 7, {**create, "Topics": [topic_spec("/")]}), good
    )
    twice = {**create, "Topics": [topic_spec("a"), topic_spec("a")]}
    request("twice inside", encode_request("CreateTopics", 7, twice), good)
    removed = encode_request("DeleteTopics", 6, {"Topics": [{"Name": "raw-nothing"}], "TimeoutMs": 1000})
    request("DeleteTopics", removed, ("DeleteTopics", 6))
    request(
        "UnregisterBroker", encode_request("UnregisterBroker", 0, {"BrokerId": 77}), ("UnregisterBroker", 0)
    )
    elect = encode_request("ElectLeaders", 2, {"ElectionType": 7, "TopicPartitions": None, "TimeoutMs": 1000})
    request("ElectLeaders of no kind", elect, ("ElectLeaders", 2))
    quorum = encode_request("DescribeQuorum", 2, {"Topics": []})
    request("DescribeQuorum", quorum, ("DescribeQuorum", 2))

    for api in NOT_FORWARDED:
        version = versions_of(api)[-1]
        request(api, encode_request(api, version, {}), (api, version))
    request("an Envelope in it", encode_request("Envelope", 0, {"RequestData": requested}))
    request("Metadata that is cut short", encode_request("Metadata", 12, {})[:-3])
    request("a future version", frame_of_version("CreateTopics", 99, requested[4:]))
    request("a version that was", frame_of_version("CreateTopics", 0, requested[4:]))
    request("a negative version", frame_of_version("CreateTopics", 65535, requested[4:]))
    request("a future version of Metadata", frame_of_version("Metadata", 99, requested[4:]))
    request("nothing", b"")
    request("half a key", requested[:1])
    request("half a header", requested[:9])
    request("a header alone", requested[: requested.index(b"someone") + 8])
    request("half a request", requested[:-7])
    request("all but a byte", requested[:-1])
    request("more than a request", requested + b"more", good)
    request("noise", bytes(range(1, 200)))

    request("no principal", requested, good, None)
    request("an empty principal", requested, good, b"")
    request("half a principal", requested, good, principal()[:-3])
    request("a principal of a future version", requested, good, b"\0\1" + principal()[2:])
    request("a principal of a negative version", requested, good, b"\xff\xff" + principal()[2:])
    request("more than a principal", requested, good, principal() + b"more")
    request("a principal of an unknown type", requested, good, principal("Robot", "R2"))
    request("a principal without a name", requested, good, principal("", ""))
    for size in (0, 1, 3, 5, 16, 17):
        request(f"an address of {size} bytes", requested, good, address=bytes(size))
    request("all wrong", b"", None, None, b"")
    request("principal and address wrong", requested, good, None, b"")
    request("address and data wrong", b"", None, principal(), b"")
    request("address and API wrong", encode_request("Metadata", 12, {}), None, principal(), b"")
    request("principal and API wrong", encode_request("Metadata", 12, {}), None, None)
    seen["at the broker"] = on_new_connection(
        broker, "Envelope", 0, RequestData=requested, RequestPrincipal=principal(), ClientHostAddress=LOCAL
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

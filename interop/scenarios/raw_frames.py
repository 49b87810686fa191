"""Malformed frames: the broker responds with an error or closes the connection."""

from __future__ import annotations

import struct
from typing import Any

from interop.batches import Batch
from interop.brokers import Broker
from interop.raw import by_api, comparable, create_topic, on_new_connection
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.wire import Layout, api_keys, definitions, encode_request, versions_of


@scenario()
def api_versions(broker: Broker) -> Any:
    """Send each version of ApiVersions and record the advertised APIs and features."""
    seen: dict[str, Any] = {}
    for version in versions_of("ApiVersions"):
        fields = {"ClientSoftwareName": "interop", "ClientSoftwareVersion": "1.0"} if version >= 3 else {}
        with RawClient(broker.bootstrap) as client:
            response = client.call("ApiVersions", version, **fields)
        seen[f"v{version}"] = {**comparable(response), "ApiKeys": by_api(response)}
        # Features are in the order of a Java map.
        for features in ("SupportedFeatures", "FinalizedFeatures"):
            entries = seen[f"v{version}"].pop(features, [])
            seen[f"v{version}"][features] = {entry.pop("Name"): entry for entry in entries}
        if version < 4:
            # The scenario records the version ranges only for version 4, because they are nearly the same.
            seen[f"v{version}"]["ApiKeys"] = "as v4 but for zero minima"
    return seen


@scenario()
def api_versions_unsupported_version(broker: Broker) -> Any:
    """Send unsupported versions. The response must have the format of version 0 and error 35."""
    seen = {}
    for version in (5, 6, 99, 32767):
        frame = struct.pack(">hhih", api_keys()["ApiVersions"], version, 7, -1) + b"\0\0\0"
        with RawClient(broker.bootstrap) as client:
            client.send_frame(frame)
            reply = client.read_frame()
            body, _ = Layout("ApiVersionsResponse", 0).decode(reply, 4)
            seen[str(version)] = {"size": len(reply), "body": {**body, "ApiKeys": by_api(body)}}
            # The connection remains usable.
            seen[f"after {version}"] = client.call("ApiVersions", 0)["ErrorCode"]
    return seen


@scenario()
def api_versions_software_names(broker: Broker) -> Any:
    """Send client software names (KIP-511). The broker must return INVALID_REQUEST for invalid names."""
    return {
        name: on_new_connection(
            broker, "ApiVersions", 3, ClientSoftwareName=name, ClientSoftwareVersion="1.0"
        )["ErrorCode"]
        for name in ("interop", "", "-a", "a b", "a-", "a.b-c", "ä", "a/b")
    }


@scenario(seconds=300)
def unsupported_versions(broker: Broker) -> Any:
    """Send each API in `APIS` in the versions just below and above its version range, and in version 1000."""
    seen: dict[str, Any] = {}
    for api in sorted(APIS):
        valid = versions_of(api)
        for version in (valid.start - 1, valid.stop, 1000):
            if version < 0:
                continue
            frame = struct.pack(">hhih", api_keys()[api], version, 7, -1) + b"\0" * 16
            with RawClient(broker.bootstrap) as client:
                client.socket.settimeout(5)
                seen[f"{api} {version}"] = outcome_of(client, frame)
    return seen


@scenario()
def unknown_apis(broker: Broker) -> Any:
    seen = {}
    for key in (-1, 4, 5, 6, 7, 9999, 32767):
        for version in (0, 1):
            with RawClient(broker.bootstrap) as client:
                client.socket.settimeout(5)
                seen[f"{key} v{version}"] = outcome_of(
                    client, struct.pack(">hhih", key, version, 7, -1) + b"\0" * 64
                )
    return seen


@scenario()
def frame_sizes(broker: Broker) -> Any:
    """Send frame sizes that are negative, too small, or larger than socket.request.max.bytes (20,000,000).

    The last two are the start of an HTTP request and of a TLS handshake.
    """
    seen = {}
    for size in (-1, -(2**31), 0, 1, 7, 20_000_001, 2**31 - 1, 0x47455420, 0x16030102):
        with RawClient(broker.bootstrap) as client:
            client.send_bytes(struct.pack(">i", size) + b"\0" * min(max(size, 0), 64))
            client.socket.settimeout(2)
            seen[str(size)] = outcome_of(client, None)
    return seen


@scenario()
def incomplete_frame(broker: Broker) -> Any:
    """Send half a frame. The broker must still serve other connections."""
    frame = encode_request("ApiVersions", 0, {})
    with RawClient(broker.bootstrap) as slow, RawClient(broker.bootstrap) as other:
        slow.send_bytes(struct.pack(">i", len(frame)) + frame[:5])
        others = other.call("ApiVersions", 0)["ErrorCode"]
        slow.send_bytes(frame[5:])
        return {"other": others, "slow": slow.answer("ApiVersions", 0)["ErrorCode"]}


@scenario()
def one_byte_at_a_time(broker: Broker) -> Any:
    frame = encode_request("Metadata", 9, {"Topics": []})
    with RawClient(broker.bootstrap) as client:
        for byte in struct.pack(">i", len(frame)) + frame:
            client.send_bytes(bytes([byte]))
        return len(client.receive("Metadata", 9)["Brokers"])


@scenario(seconds=240)
def truncated_requests(broker: Broker) -> Any:
    """Send requests of each API in `APIS` that lack the last byte, and requests that end in the header."""
    seen: dict[str, Any] = {}
    for api in sorted(APIS):
        version = min(versions_of(api)[-1], NEWEST.get(api, 99))
        frame = encode_request(api, version, FILLED.get(api, {}))
        for name, cut in (("by one", len(frame) - 1), ("header", 6)):
            with RawClient(broker.bootstrap) as client:
                client.socket.settimeout(5)
                seen[f"{api} v{version} {name}"] = outcome_of(client, frame[:cut])
    return seen


@scenario()
def trailing_bytes(broker: Broker) -> Any:
    """Send extra bytes after a request's body."""
    seen = {}
    for api, version in (
        ("Metadata", 4),
        ("Metadata", 12),
        ("ApiVersions", 0),
        ("ApiVersions", 3),
        ("ListGroups", 4),
    ):
        fields = (
            {"ClientSoftwareName": "a", "ClientSoftwareVersion": "1"}
            if (api, version) == ("ApiVersions", 3)
            else {}
        )
        frame = encode_request(api, version, fields) + b"\0\0\0"
        with RawClient(broker.bootstrap) as client:
            client.socket.settimeout(5)
            seen[f"{api} v{version}"] = outcome_of(client, frame)
    return seen


@scenario()
def invalid_lengths(broker: Broker) -> Any:
    """Send array counts and string lengths that are negative or reach past the frame."""
    header_v1 = struct.pack(">hhih", 3, 4, 7, -1)
    header_v2 = struct.pack(">hhih", 3, 12, 7, -1) + b"\0"
    bodies = {
        "array of 2^31-1": header_v1 + struct.pack(">i", 2**31 - 1),
        "array of -2": header_v1 + struct.pack(">i", -2) + b"\1",
        "string of 100": header_v1 + struct.pack(">ih", 1, 100) + b"abc",
        "string of -2": header_v1 + struct.pack(">ih", 1, -2) + b"\1",
        "null in a list of names": header_v1 + struct.pack(">ih", 1, -1) + b"\1",
        "not UTF-8": header_v1 + struct.pack(">ih", 1, 2) + b"\xff\xfe\1",
        "compact array of 2^32-1": header_v2 + b"\xff\xff\xff\xff\x0f",
        "varint of six bytes": header_v2 + b"\xff\xff\xff\xff\xff\x01",
        "tagged field past the end": header_v2 + b"\1\1\0\1\5\x7fab",
        "unknown tagged field": header_v2 + b"\1\1\0\1\5\2ab",
        "client id of 100": struct.pack(">hhih", 3, 4, 7, 100) + b"abc",
        "client id of -2": struct.pack(">hhih", 3, 4, 7, -2) + struct.pack(">i", 0) + b"\1",
    }
    seen = {}
    for name, frame in bodies.items():
        with RawClient(broker.bootstrap) as client:
            client.socket.settimeout(5)
            seen[name] = outcome_of(client, frame)
    return seen


@scenario()
def responses_in_order(broker: Broker) -> Any:
    """Pipeline requests on one connection: responses keep their order, even if some requests wait."""
    with RawClient(broker.bootstrap) as client:
        sent = []
        for _ in range(5):
            sent.append(("Metadata", 9, client.send("Metadata", 9, Topics=[])))
            sent.append(("Fetch", 11, client.send("Fetch", 11, MaxWaitMs=200, MinBytes=1, Topics=[])))
            sent.append(("ApiVersions", 2, client.send("ApiVersions", 2)))
        order = []
        for api, version, correlation_id in sent:
            got = struct.unpack(">i", client.read_frame()[:4])[0]
            order.append([api, version, got == correlation_id])
        return order


@scenario()
def responses_before_close(broker: Broker) -> Any:
    """Send requests, then an invalid frame. The broker must respond to the requests before it disconnects."""
    topic = "raw-frames-before-the-end"
    good = encode_request("Metadata", 9, {"Topics": []})
    partitions = [{"Index": 0, "Records": Batch().encode()}]
    produced = {"Acks": -1, "TimeoutMs": 10_000, "TopicData": [{"Name": topic, "PartitionData": partitions}]}
    wait = {"MaxWaitMs": 300, "MinBytes": 1, "Topics": []}
    firsts = {
        "Metadata": [good],
        "two": [good, good],
        "Produce": [encode_request("Produce", 9, produced)],
        "Fetch": [good, encode_request("Fetch", 11, wait)],
    }
    lasts = {
        "version": framed(struct.pack(">hhih", 3, 99, 7, -1)),
        "api": framed(struct.pack(">hhih", 9999, 0, 7, -1)),
        "truncated": framed(good[:-2]),
        "size": struct.pack(">i", 20_000_001),
    }
    seen = {}
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic)
    for name, requested in firsts.items():
        for end, last in lasts.items():
            with RawClient(broker.bootstrap) as client:
                client.socket.settimeout(5)
                client.send_bytes(b"".join(map(framed, requested)) + last)
                seen[f"{name}, {end}"] = [outcome_of(client, None) for _ in range(len(requested) + 1)]
    return seen


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def outcome_of(client: RawClient, frame: bytes | None) -> str:
    """Send the frame, if there is one, and read a response of any format.

    Return ``answered``, ``closed``, or ``silence`` (a timeout).
    """
    try:
        if frame is not None:
            client.send_frame(frame)
        client.read_frame()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return "closed"
    except TimeoutError:
        return "silence"
    return "answered"


APIS = [
    "Produce",
    "Fetch",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "OffsetFetch",
    "FindCoordinator",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "DescribeGroups",
    "ListGroups",
    "SaslHandshake",
    "SaslAuthenticate",
    "ApiVersions",
    "CreateTopics",
    "DeleteTopics",
    "DeleteRecords",
    "InitProducerId",
    "OffsetForLeaderEpoch",
    "DescribeConfigs",
    "DescribeLogDirs",
    "CreatePartitions",
    "DeleteGroups",
    "IncrementalAlterConfigs",
    "OffsetDelete",
    "DescribeCluster",
    "DescribeTopicPartitions",
]
NEWEST: dict[str, int] = {}

# Fields for requests of some APIs, so that truncation affects a field and not only a count.
FILLED: dict[str, dict[str, Any]] = {
    "Metadata": {"Topics": [{"Name": "raw-frames"}]},
    "OffsetCommit": {"GroupId": "g"},
    "FindCoordinator": {"CoordinatorKeys": ["g"]},
}

assert set(APIS) <= {name.removesuffix("Request") for name in definitions()}

"""Fetch of the metadata log and FetchSnapshot, sent by observers with invalid, old and future state."""

from __future__ import annotations

from typing import Any

from interop.brokers import Broker
from interop.fake_broker import PATIENT, uuid
from interop.raw import comparable
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.tools_controller import METADATA, controller_of, with_named_ports
from interop.tools import another, until
from interop.wire import Fields, encode_request, versions_of

METADATA_ID = uuid(1)
OBSERVER = {"ReplicaId": 77, "ReplicaEpoch": -1}
IDLE_NODE = {**PATIENT, "metadata.max.idle.interval.ms": "0"}
"""Settings with which the controller writes no records of its own, so that the log end does not move."""
SMALL_SNAPSHOTS = {**IDLE_NODE, "metadata.log.max.record.bytes.between.snapshots": "1000"}


def summarize_response(own: Broker, response: Any, end: int) -> Any:
    """Replace ports, records, high watermarks and the log end offset `end` by comparable values."""
    if isinstance(response, str):
        return response
    for topic in response.get("Responses", ()):
        for partition in topic["Partitions"]:
            for name in ("HighWatermark", "LastStableOffset"):
                partition[name] = min(partition[name], 1)
            diverging = partition.get("DivergingEpoch", {})
            if diverging.get("EndOffset") == end:
                diverging["EndOffset"] = "end"
            partition["Has"] = bool(partition.pop("Records"))
    return comparable(with_named_ports(own, response))


@scenario(seconds=120)
def observer_fetches(broker: Broker) -> Any:
    """Send a Fetch as an observer with each error, alone and combined."""
    seen: dict[str, Any] = {}
    with another(broker, IDLE_NODE) as own, RawClient(controller_of(own)) as client:
        cluster_id = client.call("DescribeCluster", 1, EndpointType=2)["ClusterId"]
        [end] = log_ends(client)

        def send(label: str, version: int = 17, topics: Any = None, **fields: Any) -> None:
            changed = {name: fields.pop(name) for name in PARTITION if name in fields}
            one = {**PARTITION, **changed}
            if version < 18:
                one.pop("HighWatermark")
            if version < 12:
                one.pop("LastFetchedEpoch")
            named = {"Topic": METADATA} if version < 13 else {"TopicId": METADATA_ID}
            request = {
                "MaxWaitMs": 0,
                "MinBytes": 0,
                "MaxBytes": 1 << 20,
                "Topics": [{**named, "Partitions": [one]}] if topics is None else topics,
                **fields,
            }
            if version >= 15:
                request.setdefault("ReplicaState", OBSERVER)
            else:
                request["ReplicaId"] = request.pop("ReplicaState", OBSERVER)["ReplicaId"]
            with RawClient(controller_of(own)) as connection:
                response = connection.outcome(encode_request("Fetch", version, request), "Fetch", version)
            seen[label] = summarize_response(own, response, end)

        for version in versions_of("Fetch"):
            send(f"v{version}", version)
        send("of another cluster", ClusterId="other")
        send("of no cluster", ClusterId="")
        send("of this cluster", ClusterId=cluster_id)
        send("no topic", topics=[])
        send(
            "another topic",
            topics=[{"TopicId": uuid(4711), "Partitions": [PARTITION | {"HighWatermark": 0}]}],
        )
        send("no partition", topics=[{"TopicId": METADATA_ID, "Partitions": []}])
        send("two topics", topics=[{"TopicId": METADATA_ID, "Partitions": [PARTITION]}] * 2)
        send("two partitions", topics=[{"TopicId": METADATA_ID, "Partitions": [PARTITION] * 2}])
        send("another partition", Partition=1)
        send("a negative wait", MaxWaitMs=-1)
        send("a negative offset", FetchOffset=-1)
        send("a negative last fetched epoch", LastFetchedEpoch=-1)
        send("a future last fetched epoch", LastFetchedEpoch=2, CurrentLeaderEpoch=1)
        send("in an old epoch", CurrentLeaderEpoch=0, LastFetchedEpoch=0)
        send("in no epoch", CurrentLeaderEpoch=-1, LastFetchedEpoch=-1)
        send("in a future epoch", CurrentLeaderEpoch=7, LastFetchedEpoch=7)
        send("future epoch, old last fetched epoch", CurrentLeaderEpoch=7, LastFetchedEpoch=1)
        send("beyond the end", FetchOffset=1 << 40, LastFetchedEpoch=1)
        send("beyond the end, last fetched epoch 0", FetchOffset=1 << 40, LastFetchedEpoch=0)
        send("inside the log, last fetched epoch 0", FetchOffset=5, LastFetchedEpoch=0)
        send("inside the log", FetchOffset=5, LastFetchedEpoch=1)
        send("at the end", FetchOffset=end, LastFetchedEpoch=1)
        send("one beyond the end", FetchOffset=end + 1, LastFetchedEpoch=1)
        send("at the start, with a last fetched epoch", FetchOffset=0, LastFetchedEpoch=1)
        send("no bytes", MaxBytes=0)
        send("no bytes of the partition", PartitionMaxBytes=0)
        send("in a session", SessionId=4711, SessionEpoch=3)
        send("a new session", SessionEpoch=0)
        send("of a consumer", ReplicaState={"ReplicaId": -1, "ReplicaEpoch": -1})
        send("of a debugging consumer", ReplicaState={"ReplicaId": -2, "ReplicaEpoch": -1})
        send("of itself", ReplicaState={"ReplicaId": 1, "ReplicaEpoch": -1})
        send("of itself with a directory", ReplicaState={"ReplicaId": 1, "ReplicaEpoch": -1},
            ReplicaDirectoryId=uuid(500))  # fmt: skip
        send("of an observer with a directory", ReplicaDirectoryId=uuid(500))
        send("all committed is known", 18, FetchOffset=end, LastFetchedEpoch=1, HighWatermark=end)
        send("less is known", 18, FetchOffset=end, LastFetchedEpoch=1, HighWatermark=1, MaxWaitMs=10_000)
        send("nothing is known", 18, FetchOffset=end, LastFetchedEpoch=1, HighWatermark=-1, MaxWaitMs=10_000)
        send("read uncommitted and committed", IsolationLevel=1)
        described = client.call(
            "DescribeQuorum", 2, Topics=[{"TopicName": METADATA, "Partitions": [{"PartitionIndex": 0}]}]
        )["Topics"][0]["Partitions"][0]
        seen["observers"] = sorted(
            (each["ReplicaId"], each["ReplicaDirectoryId"], each["LogEndOffset"] - end)
            for each in described["Observers"]
        )
    return seen


PARTITION = {
    "Partition": 0,
    "CurrentLeaderEpoch": 1,
    "FetchOffset": 0,
    "LastFetchedEpoch": 0,
    "PartitionMaxBytes": 1 << 20,
    "ReplicaDirectoryId": bytes(16),
    "HighWatermark": (1 << 63) - 1,
}


def log_ends(client: RawClient) -> list[int]:
    """Wait until the high watermark of the metadata log no longer changes. Return a list with this offset."""
    requested = [{"TopicName": METADATA, "Partitions": [{"PartitionIndex": 0}]}]
    found = [-1]

    def is_still() -> bool:
        described = client.call("DescribeQuorum", 2, Topics=requested)["Topics"][0]["Partitions"][0]
        before, found[0] = found[0], described["HighWatermark"]
        return before == found[0]

    until(is_still)
    return found


@scenario(seconds=120)
def snapshots(broker: Broker) -> Any:
    """Send FetchSnapshot with each error, and fetch parts of an existing snapshot."""
    seen: dict[str, Any] = {}
    with another(broker, SMALL_SNAPSHOTS) as own, RawClient(own.bootstrap) as client:
        cluster_id = client.call("DescribeCluster", 0)["ClusterId"]
        home = own.log_dir / f"{METADATA}-0"

        def known() -> list[str]:
            return sorted(path.stem for path in home.glob("*-0000000001.checkpoint"))

        topics = [
            {"Name": f"raw-snapshots-{number}", "NumPartitions": 20, "ReplicationFactor": 1}
            for number in range(5)
        ]
        client.call("CreateTopics", 7, Topics=topics, timeoutMs=10_000)
        until(lambda: bool(known()))
        end_offset, epoch = map(int, known()[-1].split("-"))
        size_bytes = (home / f"{known()[-1]}.checkpoint").stat().st_size

        def send(label: str, version: int = 1, topics: Any = None, **fields: Any) -> None:
            changed = {name: fields.pop(name) for name in piece if name in fields}
            one = {**piece, **changed}
            given = [{"Name": METADATA, "Partitions": [one]}] if topics is None else topics
            request = {"ReplicaId": 77, "MaxBytes": 100, "Topics": given, **fields}
            with RawClient(controller_of(own)) as connection:
                response = connection.outcome(
                    encode_request("FetchSnapshot", version, request), "FetchSnapshot", version
                )
            for topic in () if isinstance(response, str) else response["Topics"]:
                for partition in topic["Partitions"]:
                    partition["SnapshotId"]["EndOffset"] -= end_offset
                    partition["Size"] -= size_bytes
                    partition["Position"] = (
                        "end" if partition["Position"] == size_bytes - 1 else partition["Position"]
                    )
                    partition["UnalignedRecords"] = min(len(partition["UnalignedRecords"] or b""), 200)
            seen[label] = (
                response if isinstance(response, str) else comparable(with_named_ports(own, response))
            )

        piece: Fields = {
            "Partition": 0,
            "CurrentLeaderEpoch": 1,
            "SnapshotId": {"EndOffset": end_offset, "Epoch": epoch},
            "Position": 0,
        }

        def is_served() -> bool:
            send("once the snapshot exists")
            return not seen["once the snapshot exists"]["Topics"][0]["Partitions"][0]["ErrorCode"]

        until(is_served)
        for version in versions_of("FetchSnapshot"):
            send(f"v{version}", version)
        send("of another cluster", ClusterId="other")
        send("of no cluster", ClusterId="")
        send("of this cluster", ClusterId=cluster_id)
        send("refused: another topic", topics=[{"Name": "raw-snapshots-0", "Partitions": [piece]}])
        send("refused: another topic, in no epoch",
            topics=[{"Name": "raw", "Partitions": [{**piece, "CurrentLeaderEpoch": -1}]}])  # fmt: skip
        send("refused: another partition", Partition=1)
        send("refused: a negative partition", Partition=-1)
        send("refused: in an old epoch", CurrentLeaderEpoch=0)
        send("refused: in no epoch", CurrentLeaderEpoch=-1)
        send("refused: in a future epoch", CurrentLeaderEpoch=9)
        send(
            "refused: unknown end offset",
            SnapshotId={"EndOffset": end_offset - 1, "Epoch": epoch},
        )
        send("refused: unknown epoch", SnapshotId={"EndOffset": end_offset, "Epoch": epoch + 1})
        send("refused: of a negative offset", SnapshotId={"EndOffset": -1, "Epoch": -1})
        send("refused: of the bootstrap", SnapshotId={"EndOffset": 0, "Epoch": 0})
        send("refused: a negative position", Position=-1)
        send("in the middle", Position=7)
        send("the last byte", Position=size_bytes - 1)
        send("refused: at the end", Position=size_bytes)
        send("refused: beyond the end", Position=size_bytes + 1)
        send(
            "refused: beyond the end of an unknown snapshot",
            Position=1 << 40,
            SnapshotId={"EndOffset": 1, "Epoch": 0},
        )
        send("no bytes", MaxBytes=0)
        send("a byte", MaxBytes=1)
        send("all bytes", MaxBytes=(1 << 31) - 1)
        send("of a consumer", ReplicaId=-1)
        send("of a directory", topics=[
            {"Name": METADATA, "Partitions": [{**piece, "ReplicaDirectoryId": uuid(500)}]}])  # fmt: skip
    return seen

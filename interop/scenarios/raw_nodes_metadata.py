"""Fetch of the metadata log and FetchSnapshot by observers with invalid, old and future state."""

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
"""The controller writes no records of its own, so the log end does not move."""
SMALL_SNAPSHOTS = {**IDLE_NODE, "metadata.log.max.record.bytes.between.snapshots": "1000"}


def summarize_response(own: Broker, answer: Any, end: int) -> Any:
    """Return epochs, offsets and errors of a response, and whether it has records."""
    if isinstance(answer, str):
        return answer
    for topic in answer.get("Responses", ()):
        for partition in topic["Partitions"]:
            for name in ("HighWatermark", "LastStableOffset"):
                partition[name] = min(partition[name], 1)
            diverging = partition.get("DivergingEpoch", {})
            if diverging.get("EndOffset") == end:
                diverging["EndOffset"] = "end"
            partition["Has"] = bool(partition.pop("Records"))
    return comparable(with_named_ports(own, answer))


@scenario(seconds=120)
def observer_fetches(broker: Broker) -> Any:
    """Send a Fetch as an observer with each error, alone and combined."""
    seen: dict[str, Any] = {}
    with another(broker, IDLE_NODE) as own, RawClient(controller_of(own)) as client:
        cluster_id = client.call("DescribeCluster", 1, EndpointType=2)["ClusterId"]
        [end] = log_ends(client)

        def ask(label: str, version: int = 17, topics: Any = None, **fields: Any) -> None:
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
            with RawClient(controller_of(own)) as asking:
                answer = asking.outcome(encode_request("Fetch", version, request), "Fetch", version)
            seen[label] = summarize_response(own, answer, end)

        for version in versions_of("Fetch"):
            ask(f"v{version}", version)
        ask("of another cluster", ClusterId="other")
        ask("of no cluster", ClusterId="")
        ask("of this cluster", ClusterId=cluster_id)
        ask("no topic", topics=[])
        ask(
            "another topic",
            topics=[{"TopicId": uuid(4711), "Partitions": [PARTITION | {"HighWatermark": 0}]}],
        )
        ask("no partition", topics=[{"TopicId": METADATA_ID, "Partitions": []}])
        ask("two topics", topics=[{"TopicId": METADATA_ID, "Partitions": [PARTITION]}] * 2)
        ask("two partitions", topics=[{"TopicId": METADATA_ID, "Partitions": [PARTITION] * 2}])
        ask("another partition", Partition=1)
        ask("a negative wait", MaxWaitMs=-1)
        ask("a negative offset", FetchOffset=-1)
        ask("a negative epoch before it", LastFetchedEpoch=-1)
        ask("an epoch before it that is to come", LastFetchedEpoch=2, CurrentLeaderEpoch=1)
        ask("in an old epoch", CurrentLeaderEpoch=0, LastFetchedEpoch=0)
        ask("in no epoch", CurrentLeaderEpoch=-1, LastFetchedEpoch=-1)
        ask("in an epoch to come", CurrentLeaderEpoch=7, LastFetchedEpoch=7)
        ask("in an epoch to come, of old ones", CurrentLeaderEpoch=7, LastFetchedEpoch=1)
        ask("beyond the end", FetchOffset=1 << 40, LastFetchedEpoch=1)
        ask("beyond the end, of no epoch", FetchOffset=1 << 40, LastFetchedEpoch=0)
        ask("within it, of no epoch", FetchOffset=5, LastFetchedEpoch=0)
        ask("within it", FetchOffset=5, LastFetchedEpoch=1)
        ask("at the end", FetchOffset=end, LastFetchedEpoch=1)
        ask("one beyond the end", FetchOffset=end + 1, LastFetchedEpoch=1)
        ask("at its beginning, in an epoch", FetchOffset=0, LastFetchedEpoch=1)
        ask("no bytes", MaxBytes=0)
        ask("no bytes of the partition", PartitionMaxBytes=0)
        ask("in a session", SessionId=4711, SessionEpoch=3)
        ask("a new session", SessionEpoch=0)
        ask("of nobody", ReplicaState={"ReplicaId": -1, "ReplicaEpoch": -1})
        ask("of a consumer that debugs", ReplicaState={"ReplicaId": -2, "ReplicaEpoch": -1})
        ask("of itself", ReplicaState={"ReplicaId": 1, "ReplicaEpoch": -1})
        ask("of itself with a directory", ReplicaState={"ReplicaId": 1, "ReplicaEpoch": -1},
            ReplicaDirectoryId=uuid(500))  # fmt: skip
        ask("of an observer with a directory", ReplicaDirectoryId=uuid(500))
        ask("all committed is known", 18, FetchOffset=end, LastFetchedEpoch=1, HighWatermark=end)
        ask("less is known", 18, FetchOffset=end, LastFetchedEpoch=1, HighWatermark=1, MaxWaitMs=10_000)
        ask("nothing is known", 18, FetchOffset=end, LastFetchedEpoch=1, HighWatermark=-1, MaxWaitMs=10_000)
        ask("read uncommitted and committed", IsolationLevel=1)
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
    """Return the log end offset once it does not change any more."""
    asked = [{"TopicName": METADATA, "Partitions": [{"PartitionIndex": 0}]}]
    found = [-1]

    def is_still() -> bool:
        described = client.call("DescribeQuorum", 2, Topics=asked)["Topics"][0]["Partitions"][0]
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

        def ask(label: str, version: int = 1, topics: Any = None, **fields: Any) -> None:
            changed = {name: fields.pop(name) for name in piece if name in fields}
            one = {**piece, **changed}
            given = [{"Name": METADATA, "Partitions": [one]}] if topics is None else topics
            request = {"ReplicaId": 77, "MaxBytes": 100, "Topics": given, **fields}
            with RawClient(controller_of(own)) as asking:
                answer = asking.outcome(
                    encode_request("FetchSnapshot", version, request), "FetchSnapshot", version
                )
            for topic in () if isinstance(answer, str) else answer["Topics"]:
                for partition in topic["Partitions"]:
                    partition["SnapshotId"]["EndOffset"] -= end_offset
                    partition["Size"] -= size_bytes
                    partition["Position"] = (
                        "end" if partition["Position"] == size_bytes - 1 else partition["Position"]
                    )
                    partition["UnalignedRecords"] = min(len(partition["UnalignedRecords"] or b""), 200)
            seen[label] = answer if isinstance(answer, str) else comparable(with_named_ports(own, answer))

        piece: Fields = {
            "Partition": 0,
            "CurrentLeaderEpoch": 1,
            "SnapshotId": {"EndOffset": end_offset, "Epoch": epoch},
            "Position": 0,
        }

        def is_served() -> bool:
            ask("once it is known")
            return not seen["once it is known"]["Topics"][0]["Partitions"][0]["ErrorCode"]

        until(is_served)
        for version in versions_of("FetchSnapshot"):
            ask(f"v{version}", version)
        ask("of another cluster", ClusterId="other")
        ask("of no cluster", ClusterId="")
        ask("of this cluster", ClusterId=cluster_id)
        ask("refused: another topic", topics=[{"Name": "raw-snapshots-0", "Partitions": [piece]}])
        ask("refused: another topic, in no epoch",
            topics=[{"Name": "raw", "Partitions": [{**piece, "CurrentLeaderEpoch": -1}]}])  # fmt: skip
        ask("refused: another partition", Partition=1)
        ask("refused: a negative partition", Partition=-1)
        ask("refused: in an old epoch", CurrentLeaderEpoch=0)
        ask("refused: in no epoch", CurrentLeaderEpoch=-1)
        ask("refused: in an epoch to come", CurrentLeaderEpoch=9)
        ask(
            "refused: of an offset that there is not",
            SnapshotId={"EndOffset": end_offset - 1, "Epoch": epoch},
        )
        ask(
            "refused: of an epoch that there is not", SnapshotId={"EndOffset": end_offset, "Epoch": epoch + 1}
        )
        ask("refused: of a negative offset", SnapshotId={"EndOffset": -1, "Epoch": -1})
        ask("refused: of the bootstrap", SnapshotId={"EndOffset": 0, "Epoch": 0})
        ask("refused: a negative position", Position=-1)
        ask("in the middle", Position=7)
        ask("the last byte", Position=size_bytes - 1)
        ask("refused: at the end", Position=size_bytes)
        ask("refused: behind the end", Position=size_bytes + 1)
        ask(
            "refused: behind the end of no snapshot",
            Position=1 << 40,
            SnapshotId={"EndOffset": 1, "Epoch": 0},
        )
        ask("no bytes", MaxBytes=0)
        ask("a byte", MaxBytes=1)
        ask("all bytes", MaxBytes=(1 << 31) - 1)
        ask("of nobody", ReplicaId=-1)
        ask("of a directory", topics=[
            {"Name": METADATA, "Partitions": [{**piece, "ReplicaDirectoryId": uuid(500)}]}])  # fmt: skip
    return seen

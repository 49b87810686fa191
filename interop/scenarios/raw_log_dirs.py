"""Several log directories: replica placement, moves between directories, and directory failures.

Each scenario starts its own broker with two directories.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop.batches import Batch, Record
from interop.brokers import Broker
from interop.raw import WAIT_S, comparable, create_topic, fetch, produce
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_topics import create, topic, until
from interop.wire import versions_of

LOG_DIR_OFFLINE = 56
NOT_LEADER = 6
LIMIT = "replica.alter.log.dirs.io.max.bytes.per.second"
BATCH_BYTES = 64 * 1024
ENTRIES = re.compile(r"^(?P<name>.+-\d+)(?:\.[0-9a-f]{32}(?P<suffix>-future|-delete|-stray))?$")


class LogDirBroker:
    """A broker with two log directories, A and B, and requests about the partitions in each directory."""

    def __init__(self, like: Broker, **overrides: str) -> None:
        self.broker = type(like)({key.replace("_", "."): value for key, value in overrides.items()})
        self.paths = {"A": self.broker.directory / "a", "B": self.broker.directory / "b"}
        self.broker.properties["log.dirs"] = ",".join(map(str, self.paths.values()))

    def name_of(self, path: str) -> str:
        return next((name for name, known in self.paths.items() if str(known) == path), path)

    def client(self) -> RawClient:
        return RawClient(self.broker.bootstrap)

    def describe(self, client: RawClient, *topics: str, version: int = 5) -> Any:
        """Send DescribeLogDirs. Return the directories, each with its partitions of these topics."""
        seen: dict[str, Any] = {}
        response = client.call("DescribeLogDirs", version, Topics=None)
        for directory in response["Results"]:
            entry = {
                key: value for key, value in comparable(directory).items() if key not in ("LogDir", "Topics")
            }
            for one in directory["Topics"]:
                if one["Name"] in topics:
                    for partition in one["Partitions"]:
                        index = partition.pop("PartitionIndex")
                        entry[f"{one['Name']}-{index}"] = comparable(partition)
            seen[self.name_of(directory["LogDir"])] = entry
        return seen

    def directory_of(self, client: RawClient, name: str, index: int = 0) -> str:
        """Return the name of the current replica's directory, or "". A future replica is ignored."""
        for directory in client.call("DescribeLogDirs", 4, Topics=None)["Results"]:
            for one in directory["Topics"]:
                for partition in one["Partitions"]:
                    if (one["Name"], partition["PartitionIndex"]) == (name, index) and not partition[
                        "IsFutureKey"
                    ]:
                        return self.name_of(directory["LogDir"])
        return ""

    def partition_counts(self, client: RawClient, *topics: str) -> dict[str, int]:
        """Return the number of partitions of the topics in each directory."""
        found = dict.fromkeys(self.paths, 0)
        for directory in client.call("DescribeLogDirs", 4, Topics=None)["Results"]:
            found[self.name_of(directory["LogDir"])] = sum(
                len(one["Partitions"]) for one in directory["Topics"] if one["Name"] in topics
            )
        return found

    def move(
        self, client: RawClient, directories: dict[str, dict[str, list[int]]], version: int = 2
    ) -> dict[str, int]:
        """Send AlterReplicaLogDirs and return the error of each partition.

        `directories` has the target directories by name or path, each with its partitions by topic.
        """
        dirs = [
            {
                "Path": str(self.paths.get(where, where)),
                "Topics": [{"Name": name, "Partitions": indexes} for name, indexes in topics.items()],
            }
            for where, topics in directories.items()
        ]
        response = client.call("AlterReplicaLogDirs", version, Dirs=dirs)
        return {
            f"{one['TopicName']}-{partition['PartitionIndex']}": partition["ErrorCode"]
            for one in sorted(response["Results"], key=lambda one: one["TopicName"])
            for partition in sorted(one["Partitions"], key=lambda partition: partition["PartitionIndex"])
        }

    def directory_names(self, topic_name: str) -> dict[str, list[str]]:
        """Return the names of a topic's partition directories, without their random parts."""
        found: dict[str, list[str]] = {}
        for where, path in self.paths.items():
            found[where] = []
            for entry in sorted(path.iterdir()) if path.is_dir() else []:
                matched = ENTRIES.match(entry.name)
                if matched is not None and matched["name"].rpartition("-")[0] == topic_name:
                    found[where].append(matched["name"] + (matched["suffix"] or ""))
        return found


@contextmanager
def log_dir_broker(like: Broker, **overrides: str) -> Iterator[LogDirBroker]:
    found = LogDirBroker(like, **overrides)
    found.broker.start()
    try:
        yield found
    finally:
        found.broker.discard()


def other_directory(place: str) -> str:
    return "B" if place == "A" else "A"


def records_and_end(client: RawClient, name: str, partition: int = 0) -> Any:
    """Fetch from offset 0. Return the number of batches, the offset after them, and the last error code."""
    offset, batches = 0, 0
    while True:
        response = fetch(client, name, offset, partition=partition)
        data = response["Responses"][0]["Partitions"][0]
        if data["ErrorCode"] or not data["Records"]:
            return {"error": data["ErrorCode"], "batches": batches, "end": offset}
        records = data["Records"]
        position = 0
        while position + 12 <= len(records):
            size = 12 + int.from_bytes(records[position + 8 : position + 12], "big")
            if position + size > len(records):
                break
            base = int.from_bytes(records[position : position + 8], "big")
            offset = base + int.from_bytes(records[position + 23 : position + 27], "big") + 1
            batches += 1
            position += size


def fill(client: RawClient, name: str, count: int, partition: int = 0) -> None:
    for index in range(count):
        value = bytes([index % 251]) * BATCH_BYTES
        batch = Batch([Record(value)], base_timestamp=1_700_000_000_000 + index)
        response = produce(client, name, batch.encode(), partition=partition)
        assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, response


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Wait for a condition. Return whether it became true before the timeout."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@scenario(seconds=120)
def partition_placement(broker: Broker) -> Any:
    """Create partitions. Each must be placed in the directory with the fewest partitions."""
    seen: dict[str, Any] = {}
    with log_dir_broker(broker) as own, own.client() as client:
        create_topic(client, "four", 4)
        seen["four"] = own.partition_counts(client, "four")
        create_topic(client, "one", 1)
        create_topic(client, "three", 3)
        seen["eight"] = own.partition_counts(client, "four", "one", "three")
        seen["moved"] = own.move(client, {"A": {"four": [0, 1, 2, 3]}})
        assert becomes_true(lambda: own.partition_counts(client, "four") == {"A": 4, "B": 0})
        create_topic(client, "more", 4)
        seen["after a move"] = sorted(own.partition_counts(client, "four", "one", "three", "more").values())
        response = client.call("DeleteTopics", 4, TopicNames=["four"], TimeoutMs=10_000)
        seen["deleted"] = response["Responses"][0]["ErrorCode"]
        assert becomes_true(lambda: own.partition_counts(client, "four") == {"A": 0, "B": 0})
        create_topic(client, "last", 8)
        seen["after a deletion"] = sorted(
            own.partition_counts(client, "one", "three", "more", "last").values()
        )
    return seen


@scenario(seconds=120)
def replica_moves(broker: Broker) -> Any:
    """Send invalid moves, then move a replica to the other directory and back."""
    seen: dict[str, Any] = {}
    with log_dir_broker(broker) as own, own.client() as client:
        create_topic(client, "t", 2)
        home = own.directory_of(client, "t")
        away = other_directory(home)
        for version in versions_of("AlterReplicaLogDirs"):
            seen[f"v{version} unknown directory"] = own.move(client, {"/nowhere": {"t": [0]}}, version)
            seen[f"v{version} relative"] = own.move(client, {away.lower(): {"t": [0]}}, version)
            seen[f"v{version} unknown topic"] = own.move(client, {"A": {"nothing": [0, 3]}}, version)
            seen[f"v{version} unknown partition"] = own.move(client, {"A": {"t": [7, -1]}}, version)
            seen[f"v{version} current directory"] = own.move(client, {home: {"t": [0]}}, version)
            seen[f"v{version} nothing"] = own.move(client, {}, version)
            seen[f"v{version} no topics"] = own.move(client, {"A": {}}, version)
            seen[f"v{version} no partitions"] = own.move(client, {"A": {"t": []}}, version)
        seen["with a slash"] = own.move(client, {f"{own.paths[away]}/": {"t": [0]}})
        seen["long name"] = own.move(client, {"A": {"n" * 249: [0]}})
        seen["names"] = own.move(client, {"A": {"bad name": [0], "": [0]}})
        fill(client, "t", 40)
        seen["before"] = records_and_end(client, "t")
        seen["there"] = own.move(client, {away: {"t": [0]}})
        assert becomes_true(lambda: own.directory_of(client, "t") == away)
        seen["after"] = records_and_end(client, "t")
        described = own.describe(client, "t")
        seen["described"] = {"home": described[home], "away": described[away]}
        assert becomes_true(lambda: own.directory_names("t")[home] in ([], ["t-1"]))
        fill(client, "t", 3)
        seen["back"] = own.move(client, {home: {"t": [0]}})
        assert becomes_true(lambda: own.directory_of(client, "t") == home)
        seen["at home"] = records_and_end(client, "t")
        seen["two at once"] = own.move(client, {"A": {"t": [0, 1]}, "B": {"t": [0, 1]}})
        seen["moved before the topic exists"] = own.move(client, {away: {"later": [0, 1, 2, 3]}})
        create_topic(client, "later", 4)
        counts = own.partition_counts(client, "later")
        seen["later"] = {"home": counts[home], "away": counts[away]}
    return seen


@scenario(seconds=120)
def moves_with_log_start_inside_a_batch(broker: Broker) -> Any:
    """Move logs whose start offset is inside a batch to the other directory and back."""
    seen: dict[str, Any] = {}
    with log_dir_broker(broker) as own, own.client() as client:
        create_topic(client, "t")
        home = own.directory_of(client, "t")
        for _ in range(3):
            batch = Batch([Record(b"v" * 100) for _ in range(10)])
            response = produce(client, "t", batch.encode())
            assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, response
        for start, where in (
            (5, other_directory(home)),
            (10, home),
            (25, other_directory(home)),
            (29, home),
            (30, other_directory(home)),
        ):
            before = {"PartitionIndex": 0, "Offset": start}
            deleted = client.call(
                "DeleteRecords", 2, Topics=[{"Name": "t", "Partitions": [before]}], TimeoutMs=10_000
            )
            seen[f"{start}: deleted"] = comparable(deleted)
            seen[f"{start}: move"] = own.move(client, {where: {"t": [0]}})
            assert becomes_true(lambda where=where: own.directory_of(client, "t") == where)  # type: ignore[misc]
            seen[f"{start}: moved"] = comparable(fetch(client, "t", start))
            seen[f"{start}: too early"] = comparable(fetch(client, "t", start - 1))
    return seen


def throttle_moves(client: RawClient, bytes_per_second: int | None) -> None:
    """Throttle moves, or remove the throttle if the rate is None.

    With 1 byte per second, the future replica gets one fetch and then waits.
    """
    change = {"Name": LIMIT, "ConfigOperation": 0, "Value": str(bytes_per_second)}
    if bytes_per_second is None:
        change = {"Name": LIMIT, "ConfigOperation": 1, "Value": None}
    requested = {"ResourceType": 4, "ResourceName": "1", "Configs": [change]}
    response = client.call("IncrementalAlterConfigs", 1, Resources=[requested], ValidateOnly=False)
    assert response["Responses"][0]["ErrorCode"] == 0, response


@scenario(seconds=240)
def slow_moves(broker: Broker) -> Any:
    """Throttle a move, describe and cancel it, and restart the broker. Delete the topic during a move."""
    seen: dict[str, Any] = {}
    with log_dir_broker(broker) as own:
        with own.client() as client:
            create_topic(client, "t")
            home = own.directory_of(client, "t")
            away = other_directory(home)

            def record_state(label: str) -> None:
                described = own.describe(client, "t")
                names = own.directory_names("t")
                for place in described.values():
                    for partition in place.values():
                        if isinstance(partition, dict) and partition["IsFutureKey"]:
                            partition["OffsetLag"] = partition["OffsetLag"] > 0
                            del partition["PartitionSize"]
                seen[label] = {
                    "home": [described[home], names[home]],
                    "away": [described[away], [name for name in names[away] if not name.endswith("-delete")]],
                }

            fill(client, "t", 100)
            throttle_moves(client, 1)
            seen["started"] = own.move(client, {away: {"t": [0]}})
            record_state("in progress")
            fill(client, "t", 5)
            seen["started again"] = own.move(client, {away: {"t": [0]}})
            record_state("still in progress")
            seen["written meanwhile"] = records_and_end(client, "t")
            seen["cancelled"] = own.move(client, {home: {"t": [0]}})
            record_state("cancelled")
            seen["and again"] = own.move(client, {away: {"t": [0]}})
            record_state("in progress again")
        own.broker.stop()
        names = own.directory_names("t")
        seen["stopped"] = [names[home], [name for name in names[away] if not name.endswith("-delete")]]
        own.broker.start()
        with own.client() as client:
            until(lambda: records_and_end(client, "t")["error"] == 0)
            record_state("after a restart")
            throttle_moves(client, None)
            assert becomes_true(lambda: own.directory_of(client, "t") == away)
            until(lambda: records_and_end(client, "t")["end"] == 105)
            seen["moved"] = records_and_end(client, "t")
            assert becomes_true(lambda: own.directory_names("t")[home] == [])
            throttle_moves(client, 1)
            seen["started before the deletion"] = own.move(client, {home: {"t": [0]}})
            response = client.call("DeleteTopics", 4, TopicNames=["t"], TimeoutMs=10_000)
            seen["deleted"] = response["Responses"][0]["ErrorCode"]
            assert becomes_true(lambda: own.directory_names("t") == {"A": [], "B": []})
    return seen


@scenario(seconds=120)
def cordoned(broker: Broker) -> Any:
    """Cordon a directory (KIP-1066). No new partition may be placed there."""
    seen: dict[str, Any] = {}
    with log_dir_broker(broker) as own, own.client() as client:
        create_topic(client, "before", 2)

        def cordon(resource: str, value: str | None) -> Any:
            change = {
                "Name": "cordoned.log.dirs",
                "ConfigOperation": 0 if value is not None else 1,
                "Value": value,
            }
            requested = {"ResourceType": 4, "ResourceName": resource, "Configs": [change]}
            response = client.call("IncrementalAlterConfigs", 1, Resources=[requested], ValidateOnly=False)
            return [entry["ErrorCode"] for entry in response["Responses"]]

        def described() -> dict[str, Any]:
            return {where: entry["IsCordoned"] for where, entry in own.describe(client).items()}

        seen["unknown"] = cordon("1", "/nowhere")
        seen["set"] = cordon("1", str(own.paths["B"]))
        becomes_true(lambda: described() == {"A": False, "B": True})
        seen["described"] = described()
        create_topic(client, "t", 4)
        seen["placed"] = own.partition_counts(client, "t")
        seen["moved into"] = own.move(client, {"B": {"t": [0]}})
        seen["moved before"] = own.move(client, {"B": {"before": [0, 1]}})
        seen["all"] = cordon("1", "*")
        becomes_true(lambda: described() == {"A": True, "B": True})
        seen["all described"] = described()
        seen["refused"] = comparable(create(client, topic("refused")), words=False)
        seen["no more partitions"] = comparable(
            client.call(
                "CreatePartitions", 3, TimeoutMs=10_000, ValidateOnly=False,
                Topics=[{"Name": "t", "Count": 5, "Assignments": None}],
            ),
            words=False,
        )  # fmt: skip
        seen["none"] = cordon("1", None)
        becomes_true(lambda: described() == {"A": False, "B": False})
        seen["none described"] = described()
        create_topic(client, "after", 3)
        seen["created after uncordoning"] = sorted(own.partition_counts(client, "t", "after").values())
    return seen


def responses_for_partition(client: RawClient, name: str, topic_id: bytes) -> dict[str, Any]:
    """Send requests about the topic's first partition, some in several versions. Return the responses."""
    seen: dict[str, Any] = {}
    record = Batch([Record(b"more")], base_timestamp=1_700_000_000_000).encode()
    for version in (3, 12):
        seen[f"Produce {version}"] = comparable(produce(client, name, record, version=version))
    for version in (4, 12):
        seen[f"Fetch {version}"] = comparable(fetch(client, name, 0, version=version))
    seen["Fetch 13"] = comparable(fetch(client, topic_id, 0, version=13))
    for timestamp in (-1, -2, -3, 0):
        partition = {"PartitionIndex": 0, "Timestamp": timestamp, "CurrentLeaderEpoch": -1}
        seen[f"ListOffsets {timestamp}"] = comparable(
            client.call("ListOffsets", 7, ReplicaId=-1, Topics=[{"Name": name, "Partitions": [partition]}])
        )
    seen["DeleteRecords"] = comparable(
        client.call("DeleteRecords", 2, TimeoutMs=5_000,
                    Topics=[{"Name": name, "Partitions": [{"PartitionIndex": 0, "Offset": 0}]}])
    )  # fmt: skip
    seen["OffsetForLeaderEpoch"] = comparable(
        client.call("OffsetForLeaderEpoch", 4, ReplicaId=-1, Topics=[
            {"Topic": name, "Partitions": [{"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": 0}]}])
    )  # fmt: skip
    for version in (0, 1, 5, 12):
        response = client.call("Metadata", version, Topics=[{"Name": name}], AllowAutoTopicCreation=False)
        seen[f"Metadata {version}"] = comparable(response["Topics"])
    response = client.call("DescribeTopicPartitions", 0, Topics=[{"Name": name}], ResponsePartitionLimit=10)
    seen["DescribeTopicPartitions"] = comparable(response["Topics"])
    return seen


def normalize_offline_error(response: Any) -> Any:
    """Replace the error code of an offline partition by one name.

    If a partition was offline when the broker started, Apache Kafka returns KAFKA_STORAGE_ERROR, or
    NOT_LEADER_OR_FOLLOWER with CurrentLeader in the response. Which error Apache Kafka returns depends on how
    the replica manager learned of the partition.
    """
    if isinstance(response, list):
        return [normalize_offline_error(one) for one in response]
    if not isinstance(response, dict):
        return response
    return {
        key: "refused"
        if key == "ErrorCode" and value in (LOG_DIR_OFFLINE, NOT_LEADER)
        else normalize_offline_error(value)
        for key, value in response.items()
        if key != "CurrentLeader"
    }


@scenario(seconds=240)
def failed_log_dir(broker: Broker) -> Any:
    """Make a directory fail. Record its partitions, the other partitions, and the state after a restart."""
    seen: dict[str, Any] = {}
    with log_dir_broker(broker, log_flush_offset_checkpoint_interval_ms="200") as own:
        path = own.paths["B"]
        aside = Path(f"{path}.aside")
        with own.client() as client:
            ids = {name: create_topic(client, name) for name in ("x", "y")}
            lost, kept = ("x", "y") if own.directory_of(client, "x") == "B" else ("y", "x")
            fill(client, lost, 3)
            fill(client, kept, 3)
            path.rename(aside)
            path.write_text("no directory any more")
            seen["noticed"] = becomes_true(lambda: own.describe(client)["B"]["ErrorCode"] == LOG_DIR_OFFLINE)
            until(lambda: client.call("Metadata", 9, Topics=[{"Name": lost}], AllowAutoTopicCreation=False)
                  ["Topics"][0]["Partitions"][0]["LeaderId"] == -1)  # fmt: skip
            described = own.describe(client, lost, kept)
            seen["described"] = {"A": described["A"].get(f"{kept}-0"), "B": described["B"]}
            seen["lost"] = responses_for_partition(client, lost, ids[lost])
            seen["kept"] = responses_for_partition(client, kept, ids[kept])
            seen["moved out"] = list(own.move(client, {"A": {lost: [0]}}).values())
            seen["moved in"] = list(own.move(client, {"B": {kept: [0]}}).values())
            create_topic(client, "new", 4)
            seen["new"] = own.partition_counts(client, "new")
        own.broker.stop()
        own.broker.start()
        with own.client() as client:
            until(lambda: records_and_end(client, kept)["error"] == 0)
            seen["still described"] = own.describe(client)
            seen["still lost"] = normalize_offline_error(responses_for_partition(client, lost, ids[lost]))
            seen["still kept"] = records_and_end(client, kept)
        own.broker.stop()
        path.unlink()
        aside.rename(path)
        own.broker.start()
        with own.client() as client:
            until(lambda: records_and_end(client, lost)["end"] == 3)
            seen["found again"] = records_and_end(client, lost)
            record = Batch([Record(b"more")], base_timestamp=1_700_000_000_000).encode()
            seen["written again"] = comparable(produce(client, lost, record))
            seen["kept all the while"] = records_and_end(client, kept)
    return seen


@scenario(seconds=120)
def failed_metadata_log_dir(broker: Broker) -> Any:
    """Make the directory of the metadata log fail. The broker must stop."""
    with log_dir_broker(broker, log_flush_offset_checkpoint_interval_ms="200") as own:
        with own.client() as client:
            create_topic(client, "t", 4)
        path = own.paths["A"]
        path.rename(f"{path}.aside")
        path.write_text("no directory any more")
        assert own.broker.process is not None
        status = own.broker.process.wait(60)
        own.broker.process = None
        return {"status": status}

"""Moves of partitions between the two log directories with AlterReplicaLogDirs (KIP-113)."""

from __future__ import annotations

import time
from pathlib import Path

from interop.raw_client import RawClient

MOVE_SECONDS = 30.0


def log_dirs_by_partition(client: RawClient) -> dict[str, list[str]]:
    """Return the log directories of each partition. A partition has two while it is being moved."""
    answer = client.call("DescribeLogDirs", 4, Topics=None)
    found: dict[str, list[str]] = {}
    for result in answer["Results"]:
        for topic in result["Topics"]:
            for entry in topic["Partitions"]:
                name = f"{topic['Name']}-{entry['PartitionIndex']}"
                found.setdefault(name, []).append(result["LogDir"])
    return found


def move_to_the_other(client: RawClient, topics: list[str], log_dirs: list[Path]) -> None:
    """Move the first partition of each topic to its other log directory, and wait until it was moved."""
    before = log_dirs_by_partition(client)
    targets: dict[str, str] = {}
    for topic in topics:
        (place,) = before[f"{topic}-0"]
        targets[topic] = next(str(path) for path in log_dirs if str(path) != place)
    dirs = [
        {"Path": target, "Topics": [{"Name": topic, "Partitions": [0]}]} for topic, target in targets.items()
    ]
    answer = client.call("AlterReplicaLogDirs", 2, Dirs=dirs)
    codes = [one["ErrorCode"] for result in answer["Results"] for one in result["Partitions"]]
    assert codes == [0] * len(topics), answer
    deadline = time.monotonic() + MOVE_SECONDS
    while True:
        now = log_dirs_by_partition(client)
        if all(now[f"{topic}-0"] == [target] for topic, target in targets.items()):
            return
        assert time.monotonic() < deadline, f"not moved: {now}"
        time.sleep(0.05)

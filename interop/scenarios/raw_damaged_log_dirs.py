"""Starts with damaged log directories: errors, and operation without the damaged directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interop.brokers import Broker
from interop.raw import create_topic
from interop.scenario import scenario
from interop.scenarios.raw_log_dirs import (
    LogDirBroker,
    becomes_true,
    fill,
    log_dir_broker,
    other_directory,
    records_and_end,
)
from interop.scenarios.raw_topics import until

COPIES = ("0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210")
CHECKPOINTS = ("recovery-point", "log-start", "replication")


def fails_to_start(own: LogDirBroker) -> bool:
    """Start the stopped broker and return whether the start failed. If the broker starts, stop it again."""
    try:
        own.broker.start()
    except RuntimeError:
        own.broker.process = None
        return True
    own.broker.stop()
    return False


def partition_directories(own: LogDirBroker) -> list[str]:
    return sorted(
        str(found) for path in own.paths.values() for found in path.iterdir() if found.name.startswith("t-")
    )


@scenario(seconds=240)
def duplicate_partitions(broker: Broker) -> Any:
    """Copy a partition to the other directory, or make two future replicas. The broker must fail to start."""
    seen: dict[str, Any] = {}
    with log_dir_broker(broker) as own:
        with own.client() as client:
            create_topic(client, "t")
            fill(client, "t", 3)
            home = own.directory_of(client, "t")
        own.broker.stop()
        source, away = own.paths[home] / "t-0", own.paths[other_directory(home)]
        damages: dict[str, list[Path]] = {
            "directories": [away / "t-0"],
            "copies": [away / f"t-0.{copy}-future" for copy in COPIES],
        }
        for label, paths in damages.items():
            for path in paths:
                shutil.copytree(source, path)
            before = partition_directories(own)
            logged = len(own.broker.log_text())
            seen[label] = {"refused": fails_to_start(own), "untouched": partition_directories(own) == before}
            both = [source, *paths][-2:]
            seen[label]["both are named"] = all(str(path) in own.broker.log_text()[logged:] for path in both)
            for path in paths:
                shutil.rmtree(path)
        own.broker.start()
        with own.client() as client:
            until(lambda: records_and_end(client, "t")["error"] == 0)
            seen["whole again"] = records_and_end(client, "t")
    return seen


@scenario(seconds=300)
def corrupt_checkpoints(broker: Broker) -> Any:
    """Corrupt, delete and empty each checkpoint file. Only a corrupt file must take its directory offline.

    If this is the directory of the metadata log, the broker must fail to start.
    """
    seen: dict[str, Any] = {}
    with log_dir_broker(broker) as own:
        with own.client() as client:
            create_topic(client, "x")
            create_topic(client, "y")
            beside, within = ("x", "y") if own.directory_of(client, "x") == "A" else ("y", "x")
            for name in (beside, within):
                fill(client, name, 3)
        own.broker.stop()

        def start(label: str, expected: Callable[[], bool]) -> None:
            own.broker.start()
            with own.client() as client:
                until(lambda: records_and_end(client, beside)["error"] == 0)
                assert becomes_true(lambda: (records_and_end(client, within)["error"] == 0) == expected())
                seen[label] = {
                    "directories": {
                        where: entry["ErrorCode"] for where, entry in own.describe(client).items()
                    },
                    "beside": records_and_end(client, beside),
                    "within": records_and_end(client, within)["end"],
                }
            own.broker.stop()

        for name in CHECKPOINTS:
            path = own.paths["B"] / f"{name}-offset-checkpoint"
            path.write_text("xx")
            start(f"{name} garbled", lambda: False)
            path.unlink()
            start(f"{name} removed", lambda: True)
            path.write_text("")
            start(f"{name} empty", lambda: True)
        first = own.paths["A"] / "replication-offset-checkpoint"
        whole = first.read_bytes()
        first.write_text("0\n7\nx 0 1\n")
        seen["beside the metadata log"] = fails_to_start(own)
        first.write_bytes(whole)
        start("at last", lambda: True)
    return seen

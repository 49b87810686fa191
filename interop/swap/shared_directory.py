"""A data directory and a ``server.properties`` file that brokers use in turn."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from interop.brokers import CLUSTER_ID, ApacheKafka, Broker, Kwire, run_tool

SETTLE_S = 1.5
"""The wait before a kill, in seconds. It is longer than the checkpoint intervals set below."""
SETTINGS = {
    "log.segment.delete.delay.ms": "2000",
    # A broker that was killed takes log start offsets and high watermarks from its last checkpoint.
    "log.flush.start.offset.checkpoint.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    # The broker must write metadata snapshots during a turn.
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "metadata.log.segment.ms": "3000",
    "metadata.max.retention.ms": "3000",
    "log.cleaner.backoff.ms": "1000",
    "log.retention.check.interval.ms": "2000",
    # The session of a killed broker must time out soon, but not the session of a broker on a busy machine.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "5000",
    "group.max.session.timeout.ms": "600000",
}
TORN_BATCH = bytes(6) + b"\x7f\xff" + bytes(3) + b"\x51" + b"torn by a crash"
"""The beginning of a batch. The rest of this batch was never written."""


class StandaloneApacheKafka(ApacheKafka):
    """Apache Kafka, formatted for a dynamic quorum (KIP-853) with this node as the only voter."""

    def prepare(self) -> None:
        run_tool("kafka.tools.StorageTool", *format_standalone(self), check=True)


class StandaloneKwire(Kwire):
    """kwire, formatted with its own command for a dynamic quorum with this node as the only voter."""

    def prepare(self) -> None:
        command = [*self.command()[:-2], *format_standalone(self)]
        subprocess.run(command, check=True, capture_output=True, timeout=60, env=self.environment)


def format_standalone(broker: Broker) -> list[str]:
    """Return the format arguments, which are the same for both tools."""
    return ["format", "-s", "-t", CLUSTER_ID, "-c", str(broker.properties_path)]


class Shared:
    """A directory with two log directories. At most one broker runs on it at a time."""

    def __init__(self, name: str, *, dynamic_quorum: bool = False) -> None:
        """Create the brokers. With `dynamic_quorum`, the first broker formats with ``--standalone``."""
        self.directory = Path(tempfile.mkdtemp(prefix=f"interop-swap-{name}-"))
        apache: Broker
        kwire: Broker
        if dynamic_quorum:
            apache = StandaloneApacheKafka(SETTINGS, directory=self.directory)
            kwire = StandaloneKwire(directory=self.directory)
            voter = apache.properties.pop("controller.quorum.voters")
            apache.properties["controller.quorum.bootstrap.servers"] = voter.partition("@")[2]
        else:
            apache, kwire = ApacheKafka(SETTINGS, directory=self.directory), Kwire(directory=self.directory)
        self.log_dirs = [self.directory / "disk1", self.directory / "disk2"]
        apache.properties["log.dirs"] = ",".join(str(log_dir) for log_dir in self.log_dirs)
        kwire.port, kwire.controller_port = apache.port, apache.controller_port
        kwire.properties = apache.properties
        self._brokers: dict[str, Broker] = {apache.name: apache, kwire.name: kwire}
        self.turn = 0
        self.broker: Broker = apache

    def start(self, name: str) -> Broker:
        """Start this broker, with a new log file."""
        assert self.broker.process is None
        self.turn += 1
        self.broker = self._brokers[name]
        self.broker.log_path = self.directory / f"turn-{self.turn}-{name}.log"
        self.broker.start()
        return self.broker

    def end(self, how: str) -> None:
        """End the turn with ``stop``, ``kill`` or ``torn``.

        ``torn`` kills the broker and appends incomplete batches to two logs.
        """
        if how == "stop":
            assert self.broker.stop() in (0, 143), self.broker.log_text()[-3000:]
            return
        time.sleep(SETTLE_S)
        self.broker.kill()
        if how == "torn":
            for partition in ("__cluster_metadata-0", "swap-plain-0"):
                newest = max(self.files(f"{partition}/*.log"))
                with newest.open("ab") as log:
                    log.write(TORN_BATCH)

    def files(self, pattern: str) -> list[Path]:
        """Return the files in both log directories that match a pattern such as ``*-0/*.log``."""
        return sorted(path for log_dir in self.log_dirs for path in log_dir.glob(pattern))

    def discard(self) -> None:
        for broker in self._brokers.values():
            broker.discard()
        if not os.environ.get("INTEROP_KEEP"):
            shutil.rmtree(self.directory, ignore_errors=True)


COMPLAINT = re.compile(r"\b(WARN|WARNING|ERROR|FATAL|CRITICAL)\b")


AHEAD = re.compile(r"lastModifiedTime=(\d+), largestRecordTimestamp=(\d+)\) contains future timestamp")
TICK_MS = 10
"""The maximum lag of a file's modification time. Linux takes this time from the last clock tick."""


def log_messages_by_shape(log: str) -> dict[str, str]:
    """Return an example of each shape of warning and error. Variable parts are masked in a shape."""
    return {
        shape(line): line for line in log.splitlines() if COMPLAINT.search(line) and not is_of_a_tick(line)
    }


def is_of_a_tick(line: str) -> bool:
    """Return whether the line warns of a record that is at most `TICK_MS` newer than its segment file.

    The resolution of modification times causes such a warning, which says nothing about the broker.
    """
    found = AHEAD.search(line)
    return found is not None and int(found[2]) - int(found[1]) <= TICK_MS


def shape(line: str) -> str:
    line = re.sub(r"(/[\w.=-]+)+", "<path>", line)
    line = re.sub(r"\b[\w-]{22}\b", "<id>", line)
    return re.sub(r"-?\d+", "<n>", line)

"""The processes of a job: the driver with its JVM, the executors and the Python workers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from interop.reference import HERE, SPARK_SUFFIX, TARGET, spark_jars, spark_python

DRIVER, EXECUTOR, BROKER = "driver", "executor", "broker"
VICTIMS: Final = (DRIVER, EXECUTOR, BROKER)
EACH: Final = "each"
"""Kills driver, executor and broker in one trial."""
EXECUTOR_CLASS: Final = "CoarseGrainedExecutorBackend"
WORKER_MODULE: Final = "pyspark.daemon"
POLL_S: Final = 0.05
WAIT_S: Final = 30.0
SMALL_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
"""JVM options for a fast start. Full JIT compilation would take ten of a driver's thirty seconds."""
CLASSES: Final = TARGET / f"spark{SPARK_SUFFIX}.jsa"
"""A class data sharing archive of Spark's classes, which halves the time of a trial."""


def environment(jvm_options: str = "") -> dict[str, str]:
    """Return the environment of a job. Without JVM options, its JVM uses the class data archive `CLASSES`."""
    if not jvm_options and CLASSES.exists():
        jvm_options = f"-XX:SharedArchiveFile={CLASSES}"
    return {
        **os.environ,
        "PYTHONPATH": str(HERE.parent),
        "PYSPARK_PYTHON": spark_python(),
        "KWIRE_SPARK_JARS": str(spark_jars()[0].parent),
        "JDK_JAVA_OPTIONS": f"{SMALL_JVM} {jvm_options}",
    }


class Process(NamedTuple):
    pid: int
    parent: int
    command: str


class JobProcess:
    """A running job, whose output goes to a file."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, log: Path
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self, seconds: float) -> int | None:
        """Wait until the job ends. Return its exit status, or None if the time is over."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def tail(self, characters: int = 2000) -> str:
        return self.log.read_text(errors="replace")[-characters:]

    def all(self) -> list[Process]:
        """Return all running processes of the job, including orphans.

        Python workers have a process group of their own, so the processes are found by their session. No
        process of Spark leaves the session.
        """
        found = []
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                stat = Path(entry.path, "stat").read_text(errors="replace")
                command = (
                    Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            state, parent, _, session = stat.rpartition(")")[2].split()[:4]
            if int(session) == self.process.pid and state != "Z":
                found.append(Process(int(entry.name), int(parent), command))
        return found

    def executors(self) -> list[Process]:
        """Return the executor JVMs, which run tasks for the driver."""
        return [process for process in self.all() if EXECUTOR_CLASS in process.command]

    def workers(self) -> list[Process]:
        """Return the Python workers, which run tasks for an executor. A daemon forks them."""
        found = [process for process in self.all() if WORKER_MODULE in process.command]
        daemons = {process.pid for process in found}
        return [process for process in found if process.parent in daemons]

    def kill_driver(self, rng: Random) -> str:
        """Kill the driver's Python process, its JVM, or both, and return which. Executors keep running."""
        jvms = [process.pid for process in self.all() if process.parent == self.process.pid]
        victim = rng.choice(("Python and JVM", "Python and JVM", "Python", "JVM"))
        pids = {"Python": [self.process.pid], "JVM": jvms}.get(victim) or [self.process.pid, *jvms]
        for pid in pids:
            _kill(pid)
        return f"the driver's {victim}"

    def kill_executor(self, rng: Random) -> str:
        """Kill an executor or a Python worker. Return a description, or "" if the job ended first."""
        wants_worker = rng.random() < 0.4
        while not self.has_ended:
            found = self.workers() if wants_worker else self.executors()
            if found:
                _kill(rng.choice(found).pid)
                return "a Python worker" if wants_worker else "the executor"
            time.sleep(POLL_S)
        return ""

    def end(self, seconds: float = 0) -> list[str]:
        """Kill the processes that still run after this time. Return their command lines."""
        deadline = time.monotonic() + seconds
        while (left := self.all()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for process in left:
            _kill(process.pid)
        self.process.wait(WAIT_S)
        return [process.command[:100] for process in left]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the process has already ended

"""A trial: start a job, kill processes, restart the job until it succeeds, and check the results."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from interop.brokers import Kwire
from interop.pipeline_kills.checker import AGAIN, FAILED, STUCK, UNREADABLE, Finding
from interop.pipeline_kills.jobs import JOBS, Job, KillSetup, toml
from interop.pipeline_kills.kill_points import KillPoint, choose_kill_point
from interop.pipeline_kills.processes import (
    BROKER,
    CLASSES,
    DRIVER,
    EACH,
    EXECUTOR,
    JobProcess,
    environment,
)
from interop.pipeline_kills.reading import Unreadable, read_ends, read_topics
from interop.pipeline_kills.workload import BOOKINGS, EVENTS, FLIGHTS, fill
from interop.reference import spark_jars, spark_python
from kwire.wire.plural import plural

JOB_S: Final = 420.0
"""The time limit of a run, in seconds. All clients have given up after two minutes."""
LEAVE_S: Final = 90.0
"""The time in which a JVM must exit after its driver has ended, in seconds."""
MOST_STARTS: Final = 5
WATCH_S: Final = 0.001
LONGEST_PAUSE_S: Final = 1.5
LONGEST_OUTAGE_S: Final = 3.0
FLIGHTS_REPLAYED: Final = 6_000
EXECUTORS: Final = "local-cluster[1,2,1024]"
"""A Spark master with executors in separate JVMs, so that an executor can be killed."""
LOCAL: Final = "local[2]"
PLANS: Final = {
    DRIVER: [[DRIVER]],
    EXECUTOR: [[EXECUTOR]],
    BROKER: [[BROKER]],
    EACH: [[DRIVER], [EXECUTOR, BROKER]],
}
"""By victim of a trial, the processes to kill: one list for each start of the job that is disturbed."""
BROKER_SETTINGS: Final = {"log.cleaner.enable": "false"}


class Report(NamedTuple):
    job: str
    victim: str
    seed: int
    killed: list[str]
    """Descriptions of the killed processes, with their kill points."""
    missed: list[str]
    """Descriptions of the kills that did not happen, because the job ended before its kill point."""
    starts: int
    """The number of starts until the job succeeded."""
    seconds: float
    findings: list[Finding]
    log: str
    """The end of the job's output if there is a finding, otherwise empty."""

    def __str__(self) -> str:
        summary = f"{self.job} {self.victim} {self.seed}: killed {', '.join(self.killed) or 'nothing'}"
        summary += f", not {', '.join(self.missed)}" if self.missed else ""
        summary += f"; {self.starts} starts, {self.seconds:.0f} s"
        wrong = "".join(f"\n  {finding}" for finding in self.findings)
        return f"{summary}{wrong or ', clean'}" + (f"\n{self.log}" if self.findings else "")


@contextmanager
def prepare_setup() -> Iterator[KillSetup]:
    """Start a broker, create the source topics and an archive of them.

    Raises RuntimeError if a job fails or the archive is wrong.
    """
    spark_jars()
    directory = Path(tempfile.mkdtemp(prefix="interop-kills-"))
    broker = Kwire(BROKER_SETTINGS)
    try:
        broker.start()
        config = {"replay": {"topic": EVENTS, "limit": FLIGHTS_REPLAYED, "client": _client(broker)}}
        run_to_end("replay", config, directory / "replay")
        fill(broker.bootstrap, read_topics(broker.bootstrap, [EVENTS]))
        topics = [FLIGHTS, BOOKINGS]
        found = KillSetup(
            broker,
            directory,
            read_topics(broker.bootstrap, topics),
            read_ends(broker.bootstrap, topics),
            directory / "prepared" / "archive",
        )
        job = JOBS["archive"](found, directory / "prepared", "prepared")
        written = directory / "classes.jsa"
        jvm_options = "" if CLASSES.exists() else f"-XX:ArchiveClassesAtExit={written}"
        ended = run_to_end(job.command, job.config(), job.work_directory, jvm_options)
        if ended and written.exists():
            shutil.move(written, CLASSES)
        wrong = job.check()
        if wrong:
            raise RuntimeError(f"the archive is wrong without any kill: {wrong}")
        yield found
    finally:
        broker.discard()
        if not os.environ.get("INTEROP_KEEP"):
            shutil.rmtree(directory, ignore_errors=True)


def _client(broker: Kwire) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap}


def job_environment(directory: Path, jvm_options: str = "") -> dict[str, str]:
    """Return the environment variables of a job that keeps Spark's work files below `directory`.

    `jvm_options` are additional options of the job's JVMs, separated by spaces.
    """
    return {
        **environment(jvm_options),
        "SPARK_WORKER_DIR": str(directory / "workers"),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def start(
    command: str, config: Mapping[str, Any], directory: Path, master: str = LOCAL, jvm_options: str = ""
) -> JobProcess:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{command}.toml"
    path.write_text(toml(config), encoding="utf-8")
    arguments = [
        spark_python(),
        "-m",
        "kwire.pipeline.cli",
        command,
        "--config",
        str(path),
        "--master",
        master,
    ]
    return JobProcess(
        arguments, job_environment(directory, jvm_options), directory, directory / f"{command}.log"
    )


def run_to_end(command: str, config: Mapping[str, Any], directory: Path, jvm_options: str = "") -> bool:
    """Run a job. Return whether its JVM exited after the job had ended.

    Raises RuntimeError if the job fails.
    """
    process = start(command, config, directory, jvm_options=jvm_options)
    try:
        status = process.wait(JOB_S)
        if status != 0:
            raise RuntimeError(f"{command} ended with {status}: {process.tail()}")
        return not process.end(LEAVE_S)
    finally:
        process.end()


def run(setup: KillSetup, name: str, victim: str, seed: int, *, audited: bool) -> Report:
    """Run a trial of the job `name`. With `audited`, also run the pipeline's audit on the results."""
    begun = time.monotonic()
    rng = Random(f"{name}/{victim}/{seed}")
    trial = f"{name}-{victim}-{seed}"
    directory = Path(tempfile.mkdtemp(prefix=f"{trial}-", dir=setup.directory))
    job = JOBS[name](setup, directory, trial)
    kills = [
        [
            (victim, choose_kill_point(job.steps(rng), rng, LONGEST_PAUSE_S))
            for victim in together
            if victim in job.victims
        ]
        for together in PLANS[victim]
    ]
    done = _Trial(job, kills, rng)
    findings = done.run(audited)
    log = done.log() if findings else ""
    if not findings and not os.environ.get("INTEROP_KEEP"):
        shutil.rmtree(directory, ignore_errors=True)
    seconds = time.monotonic() - begun
    return Report(name, victim, seed, done.killed, done.missed, done.starts, seconds, findings, log)


class _Trial:
    def __init__(self, job: Job, kills: list[list[tuple[str, KillPoint]]], rng: Random) -> None:
        self.job = job
        self.kills = kills
        """For each start of the job, the victims and their kill points in order."""
        self.rng = rng
        self.killed: list[str] = []
        self.missed: list[str] = []
        self.starts = 0
        self._findings: list[Finding] = []

    def run(self, audited: bool) -> list[Finding]:
        if not self._until_done():
            return self._findings
        try:
            before = self.job.snapshot()
        except Unreadable as error:
            return [*self._findings, Finding(UNREADABLE, str(error))]
        self._findings += self.job.check()
        process = self._start([])
        self._end(process, "a run when all was done")
        try:
            after = self.job.snapshot()
        except Unreadable as error:
            return [*self._findings, Finding(UNREADABLE, str(error))]
        if before != after:
            self._findings.append(
                Finding(AGAIN, f"a run when all was done changed {_changes(before, after)}")
            )
            self._findings += self.job.check()
        if audited:
            self._audit()
        return self._findings

    def log(self) -> str:
        return "".join(
            path.read_text(errors="replace")[-6000:] for path in self.job.work_directory.glob("*.log")
        )

    def _start(self, kills: list[list[tuple[str, KillPoint]]]) -> JobProcess:
        """Start the job. If an executor will be killed, run the executors in separate JVMs."""
        victims = {victim for together in kills for victim, _ in together}
        master = EXECUTORS if EXECUTOR in victims else LOCAL
        return start(self.job.command, self.job.config(), self.job.work_directory, master)

    def _until_done(self) -> bool:
        running: list[JobProcess] = []
        try:
            for self.starts in range(1, MOST_STARTS + 1):
                process = self._start(self.kills[self.starts - 1 :])
                running.append(process)
                for victim, kill_point in (
                    self.kills[self.starts - 1] if self.starts <= len(self.kills) else ()
                ):
                    who = self._kill(process, victim, kill_point)
                    summary = f"{who or victim} {kill_point}"
                    (self.killed if who else self.missed).append(summary)
                status = process.wait(JOB_S)
                if status is None:
                    self._findings.append(Finding(STUCK, f"start {self.starts} took over {JOB_S:.0f} s"))
                    return False
                if status == 0:
                    return True
            self._findings.append(Finding(FAILED, f"{self.starts} starts, the last one with {status}"))
            return False
        finally:
            for process in running:
                self._leave(process)

    def _kill(self, process: JobProcess, victim: str, kill_point: KillPoint) -> str:
        """Wait for the kill point and kill the victim. Return a description, or "" if the job ended first."""
        while not kill_point.is_reached():
            if process.has_ended:
                return ""
            time.sleep(WATCH_S)
        time.sleep(kill_point.pause_s)
        if process.has_ended:
            return ""
        if victim == DRIVER:
            return process.kill_driver(self.rng)
        if victim == EXECUTOR:
            return process.kill_executor(self.rng)
        broker = self.job.setup.broker
        broker.kill()
        time.sleep(self.rng.uniform(0, LONGEST_OUTAGE_S))
        broker.start()
        return "the broker"

    def _end(self, process: JobProcess, what: str) -> None:
        status = process.wait(JOB_S)
        if status is None:
            self._findings.append(Finding(STUCK, f"{what} took over {JOB_S:.0f} s"))
        elif status != 0:
            self._findings.append(Finding(FAILED, f"{what} ended with {status}"))
        self._leave(process)

    def _leave(self, process: JobProcess) -> None:
        left = process.end(LEAVE_S if process.has_ended else 0)
        if left and not self._findings:
            self._findings.append(Finding(STUCK, f"left behind: {left}"))

    def _audit(self) -> None:
        config = self.job.audit()
        if not config:
            return
        process = start("audit", config, self.job.work_directory)
        self._end(process, "the audit")


def _changes(before: Any, after: Any) -> str:
    if isinstance(before, dict):
        return str({key: (before.get(key), after[key]) for key in after if before.get(key) != after[key]})
    changed = sorted(set(before) ^ set(after))
    return f"{plural(len(changed), 'file')}, {changed[:2]}"

"""The demo of the pipeline: `make pipeline-demo`, or `python -m kwire.pipeline.demo DIRECTORY`.

Starts two brokers, and runs all jobs except `compact` and `mirror` with `kwire pipeline <job> --config
<file>`. The directory keeps the configurations, the jobs' output, the brokers' data, the archive and the
reports. With `--source` and `--target`, the demo uses existing brokers of kwire or Apache Kafka.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

MARK: Final = ".kwire-demo"
"""A file that marks the directory of an earlier demo. The demo may delete such a directory."""
START_SECONDS: Final = 30.0
JOB_SECONDS: Final = 600.0
SHORT_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options that disable the optimizing compiler. It would take ten seconds of a job's half a minute."""
REPORTS: Final = {
    "profile.html": "profile of the topic",
    "audit-archive.html": "audit of the topic and its archive",
    "audit-restored.html": "audit of the archive and the restored topic",
}


class DemoError(Exception):
    """The demo failed. The message has the reason."""


class Step(NamedTuple):
    """A job to run, and its configuration."""

    job: str
    name: str
    """The name of the step's files, without the extension."""
    description: str
    config: Mapping[str, Any]


def toml(config: Mapping[str, Any], path: Sequence[str] = ()) -> str:
    """Format a table as TOML. `path` has the names of the parent tables and of the table itself."""
    plain = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in plain.items()]
    text = "".join(f"{line}\n" for line in lines)
    if path and (plain or not config):
        text = f"[{'.'.join(json.dumps(part) for part in path)}]\n{text}\n"
    for key, value in config.items():
        if isinstance(value, Mapping):
            text += toml(value, (*path, key))
    return text


def steps(directory: Path, source: str, target: str, limit: int) -> list[Step]:
    """Return the steps of the demo.

    `source` and `target` are bootstrap servers. `limit` is the number of flights; 0 for all.
    """

    def topic(bootstrap: str) -> dict[str, Any]:
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "flights"}
        return {"format": "kafka", "options": options}

    archive = str(directory / "archive")
    archived = {"format": "archive", "directory": archive}
    return [
        Step(
            "replay",
            "replay",
            "write a year of departures from New York to a topic",
            {
                "replay": {
                    "topic": "flights",
                    "limit": limit,
                    "client": {"bootstrap.servers": source},
                }
            },
        ),
        Step(
            "archive",
            "archive",
            "archive the topic as Parquet",
            {"input": topic(source), "archive": {"directory": archive, "trigger": "availableNow"}},
        ),
        Step(
            "profile",
            "profile",
            "profile the topic",
            {"profile": {"report": str(directory / "profile.html")}, "side": topic(source)},
        ),
        Step(
            "windows",
            "windows",
            "aggregate by carrier and hour into a compacted topic",
            {
                "input": topic(source),
                "windows": {
                    "topic": "flights.hourly",
                    "checkpoint": str(directory / "windows"),
                    "group": "carrier",
                    "window": "1 hour",
                    "watermark": "1 day",
                    "trigger": "availableNow",
                    "aggregates": {
                        "flights": "count",
                        "mean_arrival_delay": "avg:arr_delay",
                        "cancelled": "nulls:dep_time",
                    },
                    "client": {"bootstrap.servers": source},
                },
            },
        ),
        Step(
            "audit",
            "audit-archive",
            "compare the topic with its archive",
            {
                "audit": {"window": "30 days", "report": str(directory / "audit-archive.html")},
                "left": topic(source),
                "right": archived,
            },
        ),
        Step(
            "restore",
            "restore",
            "restore the archive to a topic of the other broker",
            {"restore": {"directory": archive, "job": "demo", "client": {"bootstrap.servers": target}}},
        ),
        Step(
            "audit",
            "audit-restored",
            "compare the archive with the restored topic",
            {
                "audit": {"window": "30 days", "report": str(directory / "audit-restored.html")},
                "left": archived,
                "right": topic(target),
            },
        ),
    ]


@contextlib.contextmanager
def broker(data: Path, log: Path) -> Iterator[str]:
    """Run a broker during the block, and yield its address. Raises DemoError if the broker does not start."""
    port = _free_port()
    bootstrap = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "kwire", "serve", "--data", str(data)]
    command += ["--set", f"listeners=PLAINTEXT://{bootstrap}"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"the broker did not start; see {log}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield bootstrap
    finally:
        process.terminate()
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(step: Step, directory: Path, master: str) -> tuple[str, float]:
    """Run a job, and return its output and duration in seconds. Raises DemoError if the job fails."""
    config = directory / f"{step.name}.toml"
    config.write_text(toml(step.config), encoding="utf-8")
    command = [sys.executable, "-m", "kwire.pipeline.cli", step.job, "--config", str(config)]
    if step.job != "replay":
        command += ["--master", master]
    given = os.environ.get("JDK_JAVA_OPTIONS", "")
    environment = {**os.environ, "JDK_JAVA_OPTIONS": f"{SHORT_JVM} {given}".strip()}
    begun = time.monotonic()
    log = directory / f"{step.name}.log"
    with log.open("wb") as errors:
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                check=False,
                timeout=JOB_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise DemoError(f"{step.name} did not end after {JOB_SECONDS:.0f} s; see {log}") from None
    (directory / f"{step.name}.out").write_text(done.stdout, encoding="utf-8")
    if done.returncode:
        last = (done.stdout + log.read_text(encoding="utf-8", errors="replace")).strip().splitlines()
        raise DemoError(f"{step.name} failed: {last[-1] if last else f'exit status {done.returncode}'}")
    return done.stdout.strip(), time.monotonic() - begun


def index(directory: Path, done: Sequence[tuple[Step, str, float]]) -> Path:
    """Write an HTML page with links to the reports, and return its path."""
    rows = "".join(
        f"<tr><td>{html.escape(step.job)}</td><td>{html.escape(step.description)}</td>"
        f"<td><pre>{html.escape(output)}</pre></td><td>{seconds:.1f} s</td>"
        f'<td><a href="{step.name}.toml">{step.name}.toml</a></td></tr>'
        for step, output, seconds in done
    )
    links = "".join(
        f'<li><a href="{name}">{html.escape(description)}</a></li>'
        for name, description in REPORTS.items()
        if (directory / name).exists()
    )
    page = directory / "index.html"
    page.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>kwire: the pipeline</title>"
        "<style>body{font:16px system-ui;margin:2rem auto;max-width:70rem}td{padding:.3rem .8rem;"
        "vertical-align:top}pre{margin:0}</style>"
        f"<h1>The pipeline, from one end to the other</h1><ul>{links}</ul><table>{rows}</table></html>\n",
        encoding="utf-8",
    )
    return page


def demo(
    directory: Path, limit: int, master: str, source: str | None = None, target: str | None = None
) -> Path:
    """Run all steps, and return the path of the page with the results.

    Starts a broker for each of `source` and `target` that is None. Deletes the files of an earlier demo.
    Raises DemoError if the directory has other files, or if a step fails.
    """
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARK).exists():
            raise DemoError(
                f"{directory} is not empty, and not from an earlier demo: choose another directory"
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()
    done: list[tuple[Step, str, float]] = []
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        if source is None:
            source = stack.enter_context(broker(directory / "source", directory / "source.log"))
        if target is None:
            target = stack.enter_context(broker(directory / "target", directory / "target.log"))
        for step in steps(directory, source, target, limit):
            print(f"{step.job}: {step.description}", flush=True)
            output, seconds = run(step, directory, master)
            for line in output.splitlines():
                print(f"    {line}")
            print(f"    {seconds:.1f} s", flush=True)
            done.append((step, output, seconds))
    page = index(directory, done)
    print(f"{time.monotonic() - begun:.0f} s in total; results: {page}")
    return page


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kwire.pipeline.demo", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("directory", type=Path, help="directory for all files")
    parser.add_argument("--limit", type=int, default=0, help="number of flights (default: all 336,776)")
    parser.add_argument("--master", default=f"local[{os.cpu_count() or 2}]", help="Spark's master")
    parser.add_argument("--source", metavar="HOST:PORT", help="an existing broker as the source")
    parser.add_argument(
        "--target", metavar="HOST:PORT", help="an existing broker as the target of the restore"
    )
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, lambda number, frame: sys.exit(128 + number)
        )  # leaving the blocks stops the brokers
    try:
        demo(options.directory.resolve(), options.limit, options.master, options.source, options.target)
    except DemoError as error:
        print(f"pipeline demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

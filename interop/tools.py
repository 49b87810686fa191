"""Apache Kafka's command line tools, many in one JVM: a start of Java costs more than most of them do.

`run` gives what a tool printed and how it ended; `said` the same as lines by which brokers can be compared.
"""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import tempfile
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from interop.brokers import SMALL_JVM, Broker
from interop.reference import HERE, Missing, kafka_jars

PROGRAM = HERE / "java" / "ToolRunner.java"
TOOLS = "org.apache.kafka.tools"
STOP_SECONDS = 10.0
NOISE = re.compile(r"at |Caused by|SLF4J|\.\.\. |\[[\w| -]+\] (ERROR|WARN|INFO) ")
"""Lines of stack traces and of logging, whose threads and times are the JVM's own."""


IMPATIENT = "default.api.timeout.ms=2000\nrequest.timeout.ms=1500\n"
"""For tools that would ask for a minute about what is not there."""


class Outcome(NamedTuple):
    """What a tool printed, and its exit status; -1 where it was not done in time."""

    stdout: str
    stderr: str
    status: int


class ToolRunner:
    """A JVM that runs one tool after another."""

    def __init__(self) -> None:
        java = shutil.which("java")
        if java is None or shutil.which("javac") is None:
            raise Missing(
                "this needs a JDK on the PATH, not only a JRE "
                "(Debian: apt-get install openjdk-17-jdk-headless)."
            )
        self._process = subprocess.Popen(
            [
                java,
                "-Xmx512m",
                *SMALL_JVM,
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-cp",
                f"{kafka_jars()}/*",
                str(PROGRAM),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, main: str, *arguments: str, stdin: str = "", timeout_s: float = 60.0) -> Outcome:
        """Run a tool's main method. RuntimeError where the JVM is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        texts = [b64encode(text.encode()).decode() for text in (stdin, main, *arguments)]
        line = "\t".join([str(int(timeout_s * 1000)), *texts]) + "\n"
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        answer = self._process.stdout.readline().decode().rstrip("\n").split("\t")
        if len(answer) != 3:
            raise RuntimeError(f"{PROGRAM.name} ended with {self._process.wait(STOP_SECONDS)}")
        status, stdout, stderr = answer
        return Outcome(b64decode(stdout).decode(), b64decode(stderr).decode(), int(status))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.wait(STOP_SECONDS)


_lock = threading.Lock()
_runners: list[ToolRunner] = []


def run(main: str, *arguments: str, stdin: str = "", timeout_s: float = 60.0) -> Outcome:
    """Run a tool in the JVM that all tools share. A tool that would not end takes that JVM with it."""
    with _lock:
        if _runners and not _runners[0].is_alive:
            _runners.clear()
        if not _runners:
            _runners.append(ToolRunner())
        outcome = _runners[0].run(main, *arguments, stdin=stdin, timeout_s=timeout_s)
        if outcome.status < 0:
            _runners.pop().close()
        return outcome


def close() -> None:
    """End the JVM, if there is one."""
    while _runners:
        _runners.pop().close()


atexit.register(close)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for what comes a little later, such as a broker that follows its metadata; not for ever."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


@contextmanager
def another(broker: Broker, overrides: dict[str, str] | None = None) -> Iterator[Broker]:
    """A broker of the same kind, of one's own, to do things to that would disturb others."""
    own = type(broker)(overrides)
    try:
        own.start()
        yield own
    finally:
        own.discard()


def said(main: str, broker: Broker, *arguments: str, stdin: str = "", timeout_s: float = 60.0) -> list[str]:
    """What a tool printed when it was pointed at a broker: steady lines, the exit status as the last."""
    return lines_of(
        run(main, "--bootstrap-server", broker.bootstrap, *arguments, stdin=stdin, timeout_s=timeout_s)
    )


@contextmanager
def a_file(text: str) -> Iterator[str]:
    """The path of a file for a tool to read."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "given"
        path.write_text(text)
        yield str(path)


def lines_of(outcome: Outcome) -> list[str]:
    """Both outputs as steady lines, without stack traces and logging; the exit status is the last one."""
    lines = [steady(line) for line in (outcome.stdout + "\n" + outcome.stderr).splitlines()]
    return [*(line for line in lines if line and not NOISE.match(line)), f"exit {outcome.status}"]


def steady(line: str) -> str:
    """A line without what differs from run to run: ports, ids, times, directories and runs of spaces."""
    line = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:<port>", line)
    line = re.sub(r"-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "-<uuid>", line)
    # 22 digits of base64, and no name in camel case that happens to be as long.
    camel = r"(?!(?:[A-Z][a-z]+)+(?![\w-]))"
    line = re.sub(rf"(?<![\w.$-]){camel}[A-Za-z0-9_-]{{22}}(?![\w-])", "<id>", line)
    line = re.sub(r"Configs: (\S+)", lambda found: "Configs: " + ",".join(sorted(found[1].split(","))), line)
    # Java tells of several options in the order of a hash map of objects.
    options = r"\[[a-z-]+\](?:, \[[a-z-]+\])+"
    line = re.sub(options, lambda found: ", ".join(sorted(found[0].split(", "))), line)
    # What Java's client says of a call that took too long depends on where it was by then.
    line = re.sub(r"Timed out waiting for a node assignment\. Call: .*", "Call(...)", line)
    line = re.sub(r"\b(\w*[cC]all)\(.*", r"\1(...)", line)
    line = re.sub(r"\[20\d\d-[^\]]*\]", "[<time>]", line)
    line = re.sub(r"/tmp/\S*?/data", "<dir>", line)
    return re.sub(r"\s+", " ", line).strip()


def errors_only(lines: list[str]) -> list[str]:
    """The names of Java exceptions and the exit status; the words are each broker's own."""
    found = re.findall(r"org\.apache\.kafka\.[\w.]*Exception", "\n".join(lines))
    return [*dict.fromkeys(found), lines[-1]]


def columns(lines: list[str], *kept: int) -> list[list[str]]:
    """Only these columns of a table that was printed, sorted; the exit status is the last line."""
    rows = [line.split(" ") for line in lines[:-1]]
    return [*sorted([row[index] for index in kept if index < len(row)] for row in rows), [lines[-1]]]

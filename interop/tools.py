"""Apache Kafka's command-line tools, all run in one JVM because a JVM per tool would start slowly.

`run` returns the output and the exit status of a tool. `said` returns the output as normalized lines that can
be compared between brokers.
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
"""Lines of stack traces and logs. They contain thread names and times, which differ from run to run."""


IMPATIENT = "default.api.timeout.ms=2000\nrequest.timeout.ms=1500\n"
"""Short timeouts for tools that otherwise retry for a minute if, for example, a topic does not exist."""


class Outcome(NamedTuple):
    """The output of a tool and its exit status, which is -1 if the tool exceeded its time limit."""

    stdout: str
    stderr: str
    status: int


class ToolRunner:
    """A JVM that runs tools one after another."""

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
        """Run a tool's main method.

        Raises RuntimeError if the JVM has ended.
        """
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
        self._process.kill()
        self._process.wait(STOP_SECONDS)


_lock = threading.Lock()
_runners: list[ToolRunner] = []


def run(main: str, *arguments: str, stdin: str = "", timeout_s: float = 60.0) -> Outcome:
    """Run a tool in the shared JVM. If the tool exceeds its time limit, the JVM is killed."""
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
    """End the shared JVM, if there is one."""
    while _runners:
        _runners.pop().close()


atexit.register(close)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until the condition is true, such as new metadata on a broker. At the timeout, just return."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


@contextmanager
def another(broker: Broker, overrides: dict[str, str] | None = None) -> Iterator[Broker]:
    """Start another broker of the same kind, for a scenario that would disturb the shared broker."""
    own = type(broker)(overrides)
    try:
        own.start()
        yield own
    finally:
        own.discard()


def said(main: str, broker: Broker, *arguments: str, stdin: str = "", timeout_s: float = 60.0) -> list[str]:
    """Run a tool against a broker. Return the normalized lines of its output, followed by the exit status."""
    return lines_of(
        run(main, "--bootstrap-server", broker.bootstrap, *arguments, stdin=stdin, timeout_s=timeout_s)
    )


@contextmanager
def a_file(text: str) -> Iterator[str]:
    """Write a temporary file for a tool and yield its path."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "given"
        path.write_text(text)
        yield str(path)


def lines_of(outcome: Outcome) -> list[str]:
    """Return the normalized output lines, without stack traces and logs, followed by the exit status."""
    lines = [steady(line) for line in (outcome.stdout + "\n" + outcome.stderr).splitlines()]
    return [*(line for line in lines if line and not NOISE.match(line)), f"exit {outcome.status}"]


def steady(line: str) -> str:
    """Replace ports, ids, times and directories in a line by constants, and collapse spaces."""
    line = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:<port>", line)
    line = re.sub(r"-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "-<uuid>", line)
    # 22 characters of base64 are a UUID, unless they are a CamelCase name of the same length.
    camel = r"(?!(?:[A-Z][a-z]+)+(?![\w-]))"
    line = re.sub(rf"(?<![\w.$-]){camel}[A-Za-z0-9_-]{{22}}(?![\w-])", "<id>", line)
    line = re.sub(r"Configs: (\S+)", lambda found: "Configs: " + ",".join(sorted(found[1].split(","))), line)
    # Java prints a list of options in the order of a hash map, which differs from run to run.
    options = r"\[[a-z-]+\](?:, \[[a-z-]+\])+"
    line = re.sub(options, lambda found: ", ".join(sorted(found[0].split(", "))), line)
    # The text of a timeout in the Java client depends on the state of the call when it timed out.
    line = re.sub(r"Timed out waiting for a node assignment\. Call: .*", "Call(...)", line)
    line = re.sub(r"\b(\w*[cC]all)\(.*", r"\1(...)", line)
    line = re.sub(r"\[20\d\d-[^\]]*\]", "[<time>]", line)
    line = re.sub(r"/tmp/\S*?/data", "<dir>", line)
    return re.sub(r"\s+", " ", line).strip()


def errors_only(lines: list[str]) -> list[str]:
    """Return the names of the Java exceptions in the lines, without their messages, and the exit status."""
    found = re.findall(r"org\.apache\.kafka\.[\w.]*Exception", "\n".join(lines))
    return [*dict.fromkeys(found), lines[-1]]


def columns(lines: list[str], *kept: int) -> list[list[str]]:
    """Return the columns with these numbers of a printed table, rows sorted, followed by the exit status."""
    rows = [line.split(" ") for line in lines[:-1]]
    return [*sorted([row[index] for index in kept if index < len(row)] for row in rows), [lines[-1]]]

"""Long-running Java programs, from ``interop/java`` or from Kafka's jars."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType

from interop.brokers import SMALL_JVM
from interop.reference import HERE, TARGET, Missing, alone_in_target, kafka_jars, require_java

CLASSES = TARGET / "java"
COMPILE_SECONDS = 120
STOP_SECONDS = 60


@cache
def compiled(name: str, jars: Path | None = None) -> Path:
    """Compile ``interop/java/NAME.java`` if it has changed, and return the directory of its class files.

    `jars` is the directory of the jars that it needs; by default those of Apache Kafka.
    Raises Missing without a JDK.
    """
    jars = jars or kafka_jars()
    with alone_in_target():
        return _compiled(name, jars)


def _compiled(name: str, jars: Path) -> Path:
    source, classes = HERE / "java" / f"{name}.java", CLASSES / name
    made_from = classes / "source"
    if made_from.exists() and made_from.read_text() == source.read_text():
        return classes
    javac = shutil.which("javac")
    if javac is None:
        raise Missing(
            "this needs a JDK on the PATH, not only a JRE (Debian: apt-get install openjdk-17-jdk-headless)."
        )
    classes.mkdir(parents=True, exist_ok=True)
    made_from.unlink(missing_ok=True)  # until the class files are complete again
    subprocess.run(
        [javac, "-cp", f"{jars}/*", "-d", str(classes), str(source)],
        check=True,
        timeout=COMPILE_SECONDS,
    )
    made_from.write_text(source.read_text())
    return classes


class JavaProgram:
    """A program in a separate JVM, killed at the end of the `with` block. `lines` keeps its output."""

    def __init__(
        self, main: str, *arguments: str, log: Path, classes: Path | None = None, heap: str = "-Xmx384m"
    ) -> None:
        """Start the program and append its standard error to ``log``."""
        path = f"{kafka_jars()}/*" if classes is None else f"{classes}:{kafka_jars()}/*"
        self.main = main
        self.log = log
        self.lines: list[str] = []
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    require_java(),
                    heap,
                    *SMALL_JVM,
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                    "-Dorg.slf4j.simpleLogger.showDateTime=true",
                    *("-cp", path, main),
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def __enter__(self) -> JavaProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def until(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait until the condition is true.

        Raises RuntimeError with `what` and the end of the log if the program ends first, or at the timeout.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            status = self.process.poll()
            if status is not None:
                raise RuntimeError(f"{what}, but {self.main} ended with {status}: {self.tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}, but not within {seconds:.0f} s: {self.tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the program has ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """Send SIGTERM, wait until the program has ended, and return its exit status."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS)

    def tail(self) -> str:
        return "\n".join(self.lines[-20:]) + self.log.read_text(errors="replace")[-4000:]

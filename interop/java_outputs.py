"""Programs in ``interop/java`` that print one line per input line, run with Apache Kafka's or other jars."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from interop.java_programs import compiled
from interop.reference import kafka_jars, require_java

RUN_SECONDS = 300


def java_outputs(program: str, questions: Iterable[str], jars: Path | None = None) -> list[str]:
    """Return the output lines of ``interop/java/PROGRAM.java``, one for each input line in `questions`.

    `jars` is the directory of the jars that the program needs; by default those of Apache Kafka.
    Raises Missing without a JDK, and RuntimeError if the program fails.
    """
    asked = list(questions)
    jars = jars or kafka_jars()
    run = subprocess.run(
        [
            require_java(),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *("-cp", f"{compiled(program, jars)}:{jars}/*"),
            program,
        ],
        input="".join(f"{question}\n" for question in asked),
        capture_output=True,
        encoding="utf-8",
        timeout=RUN_SECONDS,
        check=False,
    )
    if run.returncode != 0:
        raise RuntimeError(f"{program} ended with {run.returncode}:\n{run.stderr[-2000:]}")
    answers = run.stdout.splitlines()
    assert len(answers) == len(asked)
    return answers

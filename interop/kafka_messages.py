"""The message definitions in Apache Kafka's jars, and the bytes that its generated classes write."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from functools import cache
from typing import NamedTuple

from interop.reference import HERE, Missing, kafka_jars

PROGRAM = HERE / "java" / "MessageBytes.java"
RUN_SECONDS = 300


class KafkaMessage(NamedTuple):
    """The JSON text of a message definition, and the name of the Java class that Kafka generates from it."""

    definition: str
    class_name: str


@cache
def kafka_messages() -> dict[str, KafkaMessage]:
    """Return every message that Apache Kafka's jars define, by message name."""
    found: dict[str, KafkaMessage] = {}
    for jar in sorted(kafka_jars().glob("kafka-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            paths = archive.namelist()
            converters = [path for path in paths if path.endswith("JsonConverter.class")]
            classes = {
                path.rpartition("/")[2].removesuffix("JsonConverter.class"): path for path in converters
            }
            for path in paths:
                name = path.rpartition("/")[2].removesuffix(".json")
                made = classes.get(name, classes.get(name + "Data"))
                if path.startswith(("common/message/", "common/metadata/")) and made is not None:
                    class_name = made.removesuffix("JsonConverter.class").replace("/", ".")
                    found[name] = KafkaMessage(archive.read(path).decode(), class_name)
    return found


def _run(*arguments: str, given: str = "") -> list[str]:
    java, javac = shutil.which("java"), shutil.which("javac")
    if java is None or javac is None:
        raise Missing(
            "this needs a JDK on the PATH, not only a JRE (Debian: apt-get install openjdk-17-jdk-headless)."
        )
    run = subprocess.run(
        [java, "-cp", f"{kafka_jars()}/*", str(PROGRAM), *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    if run.returncode != 0:
        raise RuntimeError(f"{PROGRAM.name} ended with {run.returncode}:\n{run.stderr[-2000:]}")
    return run.stdout.splitlines()


def java_bytes(questions: list[tuple[str, int, str]]) -> list[str]:
    """Return the encoding of each (class, version, JSON value) by Kafka's Java class, in hexadecimal."""
    answers = _run(given="".join(f"{name}\t{version}\t{value}\n" for name, version, value in questions))
    assert len(answers) == len(questions)
    for answer, question in zip(answers, questions, strict=True):
        assert not answer.startswith("error"), f"{question}: {answer}"
    return answers


def java_errors() -> list[str]:
    """Return Kafka's error codes, one per line: the code, its name, and whether the error is retriable."""
    return _run("errors")

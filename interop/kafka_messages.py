"""The message definitions inside Apache Kafka's jars, and what its generated classes make of values."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from base64 import b64encode
from functools import cache
from typing import Any, NamedTuple

from interop.reference import HERE, Missing, kafka_jars
from kwire.primitives import Uuid, uuid_to_text
from tests.kwire import kafka_json
from tests.kwire.interpreter import Value
from tests.kwire.kafka_json import Definition, Entry, Struct

PROGRAM = HERE / "java" / "MessageBytes.java"
RUN_SECONDS = 300


class KafkaMessage(NamedTuple):
    """A definition in a jar, and the Java class that was generated from it."""

    definition: Definition
    class_name: str


@cache
def kafka_messages() -> dict[str, KafkaMessage]:
    """Every message that Apache Kafka's jars define, by name."""
    found: dict[str, KafkaMessage] = {}
    for jar in sorted(kafka_jars().glob("kafka-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            paths = archive.namelist()
            classes = {
                path.rpartition("/")[2].removesuffix("JsonConverter.class"): path
                for path in paths
                if path.endswith("JsonConverter.class")
            }
            for path in paths:
                name = path.rpartition("/")[2].removesuffix(".json")
                made = classes.get(name, classes.get(name + "Data"))
                if path.startswith(("common/message/", "common/metadata/")) and made is not None:
                    definition = kafka_json.parse(archive.read(path).decode())
                    class_name = made.removesuffix("JsonConverter.class").replace("/", ".")
                    found[name] = KafkaMessage(definition, class_name)
    return found


def to_json(value: Value, shape: Struct, version: int) -> dict[str, Any]:
    """A plain value as Kafka's JSON converters read it."""

    def one(entry: Entry, given: Any) -> Any:
        if given is None:
            return None
        if entry.struct is not None:
            return to_json(given, entry.struct, version)
        if entry.element == "uuid":
            return uuid_to_text(Uuid(given))
        if entry.element in ("bytes", "records"):
            return b64encode(given).decode()
        return given

    return {
        entry.json_name: [one(entry, each) for each in value[entry.name]]
        if entry.is_list and value[entry.name] is not None
        else one(entry, value[entry.name])
        for entry in shape.at(version)
    }


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


def java_bytes(questions: list[tuple[KafkaMessage, int, Value]]) -> list[bytes | str]:
    """The bytes that Java writes for each value, or why it writes none."""
    lines = [
        f"{message.class_name}\t{version}\t{json.dumps(to_json(value, message.definition.struct, version))}\n"
        for message, version, value in questions
    ]
    answers = _run(given="".join(lines))
    assert len(answers) == len(questions)
    return [answer if answer.startswith("error ") else bytes.fromhex(answer) for answer in answers]


def java_errors() -> dict[int, tuple[str, bool]]:
    """Kafka's error codes: their names, and whether a client may retry."""
    rows = (line.split("\t") for line in _run("errors"))
    return {int(code): (name, retriable == "true") for code, name, retriable in rows}

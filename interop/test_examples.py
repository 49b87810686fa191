"""The Spark examples of docs/start.md and docker/, run unchanged except for the address."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from confluent_kafka import Consumer

from interop.brokers import Broker
from interop.reference import HERE, spark_jars, spark_python
from interop.scenarios.clients_confluent import producer_of

ADDRESS = "127.0.0.1:9092"
START = (HERE.parent / "docs" / "start.md").read_text(encoding="utf-8")
[FILE] = re.findall(r"^`spark-submit .* (\S+\.py)`", START, re.MULTILINE)
"""The file name in the guide's `spark-submit` command. A bad name could shadow a module."""
[EXAMPLE] = (
    code
    for code in re.findall(r"^```python\n(.*?)^```", START, re.DOTALL | re.MULTILINE)
    if "pyspark" in code
)
VALUES = [f"order {number}" for number in range(3)]


COPY_SECONDS = 150.0
COPY = HERE.parent / "docker" / "spark" / "copy_topic.py"


def environment(directory: Path) -> dict[str, str]:
    """Return an environment in which Spark has the Kafka connector and keeps its files in `directory`."""
    return {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": f"--jars {','.join(map(str, spark_jars()))} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory),
    }


def write(broker: Broker, topic: str) -> None:
    producer = producer_of(broker)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def test_spark_example_of_the_guide_runs(kind: type[Broker], tmp_path: Path) -> None:
    broker = kind()
    broker.start()
    try:
        write(broker, "orders")
        example = tmp_path / FILE
        example.write_text(EXAMPLE.replace(ADDRESS, broker.bootstrap), encoding="utf-8")
        ran = subprocess.run(
            [spark_python(), str(example)],
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
    finally:
        broker.discard()
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert sorted(re.findall(r"^\|\s*(order \d)\|$", ran.stdout, re.MULTILINE)) == VALUES, ran.stdout


def test_spark_job_of_the_compose_file_copies_records(kind: type[Broker], tmp_path: Path) -> None:
    broker = kind()
    broker.start()
    try:
        write(broker, "greetings")
        with (
            (tmp_path / "said").open("w") as output,
            subprocess.Popen(
                [spark_python(), str(COPY), broker.bootstrap, str(tmp_path / "checkpoint")],
                stdout=output,
                stderr=output,
                cwd=tmp_path,
                env=environment(tmp_path),
            ) as job,
        ):
            try:
                found = read(broker, "copied", job)
            finally:
                job.kill()
    finally:
        broker.discard()
    assert found == VALUES, (tmp_path / "said").read_text()[-3000:]


def read(broker: Broker, topic: str, writer: subprocess.Popen[bytes]) -> list[str]:
    """Read as many values as the writer writes, or fewer if the writer ends early or takes too long."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[str] = []
    deadline = time.monotonic() + COPY_SECONDS
    while len(found) < len(VALUES) and time.monotonic() < deadline and writer.poll() is None:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append((message.value() or b"").decode())
    consumer.close()
    return found

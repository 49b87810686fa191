"""The example for Spark in docs/start.md runs as it stands, but for the address, with either broker."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from confluent_kafka import Producer

from interop.brokers import Broker
from interop.reference import HERE, spark_jars, spark_python

ADDRESS = "127.0.0.1:9092"
START = (HERE.parent / "docs" / "start.md").read_text(encoding="utf-8")
[EXAMPLE] = (
    code
    for code in re.findall(r"^```python\n(.*?)^```", START, re.DOTALL | re.MULTILINE)
    if "pyspark" in code
)
VALUES = [f"order {number}" for number in range(3)]


def test_spark_copies_and_shows_what_a_client_has_written(kind: type[Broker], tmp_path: Path) -> None:
    broker = kind()
    broker.start()
    try:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for value in VALUES:
            producer.produce("orders", value)
        assert producer.flush(30) == 0
        ran = subprocess.run(
            [spark_python(), "-c", EXAMPLE.replace(ADDRESS, broker.bootstrap)],
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
            cwd=tmp_path,
            env={
                **os.environ,
                "PYSPARK_SUBMIT_ARGS": f"--jars {','.join(map(str, spark_jars()))} pyspark-shell",
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_LOCAL_DIRS": str(tmp_path),
            },
        )
    finally:
        broker.discard()
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert sorted(re.findall(r"^\|\s*(order \d)\|$", ran.stdout, re.MULTILINE)) == VALUES, ran.stdout

"""The Spark session of the programs, and their communication with the scenario.

The scenario passes the settings in one argument, as JSON. The program prints JSON lines. If the scenario has
to do something in between, the program prints a request and waits for a line on its standard input. The
program and its JVM end when standard input is closed.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

_answers: queue.Queue[str] = queue.Queue()


def settings() -> dict[str, Any]:
    """Return the settings of the scenario. From now on, the program ends when standard input is closed."""
    threading.Thread(target=_listen, daemon=True).start()
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def _listen() -> None:
    for line in sys.stdin:
        _answers.put(line)
    os._exit(3)


def print_event(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def ask(what: str) -> None:
    """Request an action from the scenario, and wait until the scenario has done it."""
    print_event(ask=what)
    _answers.get()


def session(jars: list[str], directory: str, more: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session with two cores and one gigabyte. It writes files only below `directory`."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("interop")
        .config("spark.jars", ",".join(jars))
        .config("spark.driver.memory", "1g")
        .config(
            "spark.driver.extraJavaOptions",
            f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={directory}",
        )
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", directory)
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.ui.enabled", "false")
    )
    for name, value in (more or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def reader(spark: SparkSession, bootstrap: str, **options: Any) -> DataFrame:
    """Return a DataFrame for a batch read with format("kafka")."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return source.options(**spark_options(options)).load()


def stream(spark: SparkSession, bootstrap: str, **options: Any) -> DataFrame:
    """Return a DataFrame for a streaming read with format("kafka")."""
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return source.options(**spark_options(options)).load()


def spark_options(options: dict[str, Any]) -> dict[str, str]:
    """Return options as Spark expects them: mappings as JSON, and ``kafka_x_y`` renamed to ``kafka.x.y``."""
    return {
        name.replace("_", "."): json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in options.items()
    }


def digest(rows: Iterable[Any]) -> str:
    """Return a hash of rows that does not depend on their order. Values are text, numbers and bytes."""
    lines = sorted(repr(_steady(row)) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _steady(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, list | tuple):
        return [_steady(item) for item in value]
    return value


def outcome(action: Callable[[], Any]) -> Any:
    """Return the result of the action. If it raises, return the names of Spark's and Kafka's errors."""
    try:
        return action()
    except Exception as problem:
        text = str(problem)
        conditions = re.findall(r"\[([A-Z][A-Z_0-9]+(?:\.[A-Z_0-9]+)*)\]", text)
        classes = re.findall(r"org\.apache\.(?:kafka|spark)\.[a-z0-9.]*([A-Z]\w*(?:Exception|Error))\b", text)
        named = [*dict.fromkeys([*conditions, *classes])]
        said = re.sub(r"^.*terminated with exception: ", "", text.splitlines()[0])
        return {
            "error": type(problem).__name__,
            "named": named,
            "said": ""
            if "Py4J" in type(problem).__name__
            else re.sub(r"spark-(\w+)-\d", r"spark-\1-N", said),
        }

"""Apache Kafka's jars, Spark's connector, Avro's library, and a Python interpreter with PySpark.

Each of them is downloaded once into ``interop/target``. If the machine lacks a requirement, the functions
raise Missing with one sentence about the requirement.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
TARGET = HERE / "target"
KAFKA_JARS = TARGET / "kafka"
OLD_KAFKA = "4.0.0"
"""The oldest version whose nodes can share a cluster with Apache Kafka 4.3.1."""
OLD_KAFKA_JARS = TARGET / "kafka-old"
NODE_KAFKA = os.environ.get("INTEROP_KAFKA", "")
"""The version of Apache Kafka's nodes in the cluster scenarios. Default: the version of `kafka_jars`."""
NODE_SUFFIX = f"-{NODE_KAFKA}" if NODE_KAFKA else ""
"""The end of the names of files in ``interop/target`` that depend on this version."""
OTHER_SPARK = os.environ.get("INTEROP_SPARK", "")
"""The version of Spark, if it is not SPARK."""
SPARK = OTHER_SPARK or "4.2.0"  # as in requirements/spark.lock
SPARK_SUFFIX = f"-{OTHER_SPARK}" if OTHER_SPARK else ""
"""The end of the names of files in ``interop/target`` that depend on Spark's version."""
SPARK_JARS = TARGET / f"spark{SPARK_SUFFIX}"
AVRO_JARS = TARGET / "avro"
METRICS_JARS = TARGET / "metrics"
SPARK_VENV = TARGET / f"venv{SPARK_SUFFIX}"
SPARK_PACKAGES = [f"pyspark=={SPARK}", "pandas<3", "pyarrow"]


class Missing(Exception):
    """The machine lacks a requirement of interop. The message is one sentence for the user."""


@contextmanager
def alone_in_target() -> Iterator[None]:
    """Hold the lock on ``interop/target``, so that no other process downloads or builds there meanwhile.

    If the process gets SIGTERM or SIGHUP meanwhile, the block raises SystemExit. So ``subprocess.run`` kills
    the program that it has started.
    """
    TARGET.mkdir(exist_ok=True)
    with (TARGET / ".lock").open("w") as lock, _exit_on_signals():
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set handlers
        yield
        return
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def require_java() -> str:
    """Return the path of the ``java`` command. Raises Missing if it is not on the PATH."""
    java = shutil.which("java")
    if java is None:
        raise Missing(
            "interop needs Java 17 or newer on the PATH (Debian: apt-get install openjdk-17-jre-headless)."
        )
    return java


def fetch_jars(pom: Path, destination: Path, *settings: str) -> Path:
    """Return `destination`, which contains the dependencies of a pom. Maven downloads them on first use.

    `settings` are arguments of Maven. Raises Missing if Maven is missing or fails.
    """
    complete = destination / ".complete"
    wanted = "\n".join([pom.read_text(), *settings])
    if complete.exists() and complete.read_text() == wanted:
        return destination
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing(
            "interop needs Maven (mvn) on the PATH to fetch Apache Kafka (Debian: apt-get install maven)."
        )
    complete.unlink(missing_ok=True)  # first, because the removal of the directory may be interrupted
    shutil.rmtree(destination, ignore_errors=True)
    run = subprocess.run(
        [
            maven,
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={destination}",
            *settings,
        ],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if run.returncode != 0:
        raise Missing(
            f"Maven could not fetch the dependencies of {pom.name}: {run.stdout[-500:]}{run.stderr[-500:]}"
        )
    complete.write_text(wanted)
    return destination


@cache
def kafka_jars() -> Path:
    require_java()
    with alone_in_target():
        return fetch_jars(HERE / "pom.xml", KAFKA_JARS)


@cache
def old_kafka_jars() -> Path:
    """Return the directory of the jars of Apache Kafka `OLD_KAFKA`."""
    require_java()
    with alone_in_target():
        return fetch_jars(HERE / "pom.xml", OLD_KAFKA_JARS, f"-Dkafka.version={OLD_KAFKA}")


@cache
def node_jars() -> Path:
    """Return the directory of the jars of Apache Kafka's nodes in the cluster scenarios."""
    if not NODE_KAFKA:
        return kafka_jars()
    require_java()
    with alone_in_target():
        pom, destination = HERE / "cluster" / "pom.xml", TARGET / f"kafka{NODE_SUFFIX}"
        return fetch_jars(pom, destination, f"-Dkafka.version={NODE_KAFKA}")


@cache
def spark_jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector, without those that PySpark already contains."""
    require_java()
    with alone_in_target():
        pom = HERE.parent / "kwire" / "pipeline" / "pom.xml"
        jars = sorted(fetch_jars(pom, SPARK_JARS, f"-Dspark.version={SPARK}").glob("*.jar"))
    # PySpark contains the Scala library, Spark tags and logging jars. A second copy of a jar breaks class
    # loading.
    return [jar for jar in jars if not jar.name.startswith(("scala-library", "spark-tags", "slf4j-api"))]


@cache
def avro_jars() -> Path:
    """Return the directory of the jars of Avro's Java library."""
    require_java()
    with alone_in_target():
        return fetch_jars(HERE / "avro" / "pom.xml", AVRO_JARS)


@cache
def jmx_exporter_jar() -> Path:
    """Return the jar of the Java agent that exports Apache Kafka's metrics to Prometheus."""
    require_java()
    with alone_in_target():
        return next(fetch_jars(HERE / "metrics" / "pom.xml", METRICS_JARS).glob("*.jar"))


@cache
def kafka_clients_jar() -> Path:
    """Return the kafka-clients jar, which contains the message definitions."""
    return next(kafka_jars().glob("kafka-clients-*.jar"))


@cache
def spark_python() -> str:
    """Return the path of a Python with PySpark: this interpreter, or one in target/ (installed if needed)."""
    if not OTHER_SPARK and importlib.util.find_spec("pyspark") is not None:
        return sys.executable
    python = SPARK_VENV / "bin" / "python"
    marker = SPARK_VENV / ".complete"
    with alone_in_target():
        if not marker.exists():
            for command in (
                [sys.executable, "-m", "venv", str(SPARK_VENV)],
                [str(python), "-m", "pip", "install", "-q", *SPARK_PACKAGES],
            ):
                run = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
                if run.returncode != 0:
                    raise Missing(f"PySpark could not be installed: {run.stderr[-500:]}")
            marker.write_text("\n".join(SPARK_PACKAGES))
    return str(python)

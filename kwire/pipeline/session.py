"""Spark sessions for the jobs: find Java and the Kafka connector's jars, and limit logging to errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from kwire.pipeline.config import METRICS_VARIABLE, MissingDependencyError
from kwire.pipeline.spark_errors import summarize_maven
from kwire.wire import java_properties

JARS_KEY: Final = "spark.jars"
JARS_VARIABLE: Final = "KWIRE_SPARK_JARS"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""An environment variable that is set if `spark-submit` has already started and configured the JVM."""
SUBMIT_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""The environment variable with options for a new JVM. Options in Spark's settings take precedence."""
CONNECTOR: Final = "spark-sql-kafka-0-10"
PROVIDER: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
POM: Final = Path(__file__).with_name("pom.xml")

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.shuffle.partitions": "8",
    # Disable speculation, because tasks write to topics, and a second attempt would fence the first attempt.
    "spark.speculation": "false",
    # Spark's default is INT96. Other readers convert it to nanoseconds, which end in the year 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
LOGGING: Final = Path(__file__).with_name("log4j2.properties")
JAVA_OPTIONS: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Options that disable redundant checks of each Arrow value. The checks take 10 % of the time of a count."""


def session(
    name: str,
    *,
    master: str | None = None,
    needs_kafka: bool = True,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Create a session for a job, and report the progress of its streams.

    `master` defaults to that of `spark-submit`, or else to `local[*]`. With `needs_kafka`, the session has
    the Kafka connector. The connector's jars come from the directory KWIRE_SPARK_JARS, from Spark's own jars,
    or from Maven, which downloads them once. With `spark-submit`, pass them with --packages. The metrics of
    streams are written to the file KWIRE_PIPELINE_METRICS, if it is set. Raises MissingDependencyError if
    Java or the connector is missing, or ConfigError if the metrics cannot be written.
    """
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is None and SUBMITTED not in os.environ:
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
    builder = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    if needs_kafka and SUBMITTED not in os.environ:
        jars = connector_jars()
        if jars:
            builder = builder.config(JARS_KEY, ",".join([*_own_jars(settings or {}), *map(str, jars)]))
    with _java_options():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if needs_kafka and SUBMITTED in os.environ:
        _check_connector(spark)
    from kwire.pipeline.listener import ProgressListener
    from kwire.pipeline.progress import Metrics
    from kwire.pipeline.source import SegmentSource

    spark.dataSource.register(SegmentSource)
    metrics = os.environ.get(METRICS_VARIABLE)
    spark.streams.addListener(ProgressListener(name, Metrics(Path(metrics)) if metrics else None))
    return spark


@contextmanager
def _java_options() -> Iterator[None]:
    """Add the jobs' options to a JVM that is started during the block.

    The user's own options come later and take precedence. A Spark setting, in contrast, would replace the
    option in the user's spark-defaults.conf.
    """
    given = os.environ.get(SUBMIT_OPTIONS)
    logging = (
        "" if (_configuration() / LOGGING.name).exists() else f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"
    )
    os.environ[SUBMIT_OPTIONS] = " ".join(filter(None, (JAVA_OPTIONS, logging, given)))
    try:
        yield
    finally:
        if given is None:
            del os.environ[SUBMIT_OPTIONS]
        else:
            os.environ[SUBMIT_OPTIONS] = given


def _check_connector(spark: SparkSession) -> None:
    """Raise MissingDependencyError if spark-submit started the JVM without the Kafka connector."""
    from py4j.protocol import Py4JJavaError

    loader = spark.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(PROVIDER)
    except Py4JJavaError:
        raise MissingDependencyError(
            f"spark-submit has no Kafka connector: add "
            f"--packages org.apache.spark:{CONNECTOR}_2.13:{spark.version}"
        ) from None


def find_java() -> str:
    """Return the path of the `java` command that Spark will start.

    Raises MissingDependencyError if there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME ({home})" if home else "the PATH"
        raise MissingDependencyError(
            f"Spark needs Java 17 or newer, and none was found in {where}: install it "
            f"(Debian: apt-get install openjdk-17-jre-headless)"
        )
    return found


def connector_jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector, or no jars if Spark already has them.

    Downloads the jars with Maven if necessary. Raises MissingDependencyError if this fails.
    """
    given = os.environ.get(JARS_VARIABLE)
    if given:
        jars = sorted(Path(given).glob("*.jar"))
        if not any(CONNECTOR in jar.name for jar in jars):
            raise MissingDependencyError(
                f"{JARS_VARIABLE} is {given}, which does not contain a {CONNECTOR} jar"
            )
        return _needed(jars)
    import pyspark

    home = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
    if any((home / "jars").glob(f"{CONNECTOR}*.jar")):
        return []
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        / "kwire"
        / f"spark-{pyspark.__version__}"
    )
    if not (cache / ".complete").exists():
        _fetch(cache, pyspark.__version__)
    return _needed(sorted(cache.glob("*.jar")))


def _configuration() -> Path:
    """Return the directory of the user's Spark configuration."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
    return Path(os.environ.get("SPARK_CONF_DIR", home / "conf"))


def _own_jars(settings: Mapping[str, str]) -> list[str]:
    """Return the user's own `spark.jars`, because the job's setting replaces the one in spark-defaults.conf.

    Raises MissingDependencyError if spark-defaults.conf cannot be read.
    """
    given = settings.get(JARS_KEY)
    if given is None:
        defaults = _configuration() / "spark-defaults.conf"
        try:
            given = java_properties.load(defaults.read_text("utf-8")).get(JARS_KEY, "")
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise MissingDependencyError(f"{defaults} cannot be read: {error}") from None
    return [jar for jar in (part.strip() for part in given.split(",")) if jar]


def _needed(jars: list[Path]) -> list[Path]:
    # These jars are part of PySpark.
    return [jar for jar in jars if not jar.name.startswith(("scala-library", "spark-tags", "slf4j-api"))]


def _fetch(cache: Path, version: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingDependencyError(
            f"Spark's Kafka connector is missing: set {JARS_VARIABLE} to a directory with its jars, or "
            f"install Maven, which downloads them once "
            f"(Debian: apt-get install maven)"
        )
    print(f"downloading Spark's Kafka connector into {cache} (once)", file=sys.stderr)
    cache.mkdir(parents=True, exist_ok=True)
    command = [
        maven,
        "-q",
        "-B",
        "-f",
        str(POM),
        "dependency:copy-dependencies",
        f"-Dspark.version={version}",
        f"-DoutputDirectory={cache}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingDependencyError(
            f"Maven failed to download Spark's Kafka connector {version}: "
            f"{summarize_maven(done.stdout + done.stderr) or f'exit code {done.returncode}'}"
        )
    (cache / ".complete").touch()

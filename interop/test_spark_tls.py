"""Spark's Kafka source and sink, and a job of the pipeline, with TLS and client certificates."""

from __future__ import annotations

from pathlib import Path

from interop.brokers import Broker
from interop.pipeline.job_runs import Jobs, read
from interop.scenarios.spark import SparkJob, create_retained_topic
from interop.tls import encrypted

TOPIC, SUFFIX = "flights", ".copy"
VALUES = sorted(f"value-{number}" for number in range(100))


def test_spark_and_a_mirror_use_the_properties_of_java(kind: type[Broker], tmp_path: Path) -> None:
    """The mirror also uses librdkafka, to which it passes the stores of the Java client."""
    with encrypted(kind) as tls:
        create_retained_topic(tls.broker, TOPIC, 2)
        properties = {
            "bootstrap.servers": tls.bootstrap["MUTUAL"],
            **dict(line.split("=", 1) for line in tls.of_java(tls.key_store()).splitlines()),
        }
        program = SparkJob(
            "encrypted", tls.broker, tmp_path, properties=properties, topic=TOPIC, count=len(VALUES)
        )
        with program as job:
            assert job.expect("seen") == VALUES
        options = {f"kafka.{key}": value for key, value in properties.items()}
        mirror = {
            "job": "tls",
            "checkpoint": str(tmp_path / "mirror"),
            "suffix": SUFFIX,
            "client": properties,
        }
        Jobs(tmp_path).run(
            "mirror",
            {"input": {"format": "kafka", "options": {**options, "subscribe": TOPIC}}, "mirror": mirror},
        )
        copied = read(tls.broker, TOPIC + SUFFIX).values()
        assert sorted((one.value or b"").decode() for found in copied for one in found.values()) == VALUES

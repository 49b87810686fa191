"""Kafka Streams with exactly_once_v2, as a user with the ACLs of docs/security.md."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from interop.brokers import Broker
from interop.java_programs import JavaProgram, compiled
from interop.raw_client import RawClient
from interop.sasl import PLAIN, PLAIN_MODULE, USERS, secured
from interop.scenario import scenario
from interop.scenarios.clients_confluent import make_topic, producer_of
from interop.scenarios.tools_acls import ACLS, AUTHORIZER, wait_for_broker
from interop.tools import said, until

APP, INPUT, OUTPUT = "words-app", "lines", "counts"
ALICE: Final = ("--allow-principal", "User:alice")
PREFIX: Final = (f"{APP}-", "--resource-pattern-type", "prefixed")
RIGHTS: Final = (
    ("--operation", "Read", "--topic", INPUT),
    ("--operation", "Write", "--topic", OUTPUT),
    ("--operation", "Read", "--group", APP),
    (
        *("--operation", "Create", "--operation", "Read", "--operation", "Write", "--operation", "Delete"),
        *("--topic", *PREFIX),
    ),
    ("--operation", "Write", "--transactional-id", *PREFIX),
)
"""The row of Kafka Streams in docs/security.md, as arguments of kafka-acls."""
LINE: Final = "one two two"
WAIT_S: Final = 90.0


def end_offset(bootstrap: str) -> int:
    """Return the end offset of the output for consumers with read_committed."""
    with RawClient(bootstrap) as client:
        topics = [{"Name": OUTPUT, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}]
        response = client.call("ListOffsets", 7, ReplicaId=-1, IsolationLevel=1, Topics=topics)
    offset: int = response["Topics"][0]["Partitions"][0]["Offset"]
    return offset


@scenario(seconds=240)
def word_count(broker: Broker) -> Any:
    """Count words as alice: first without the rights to the internal topics, then with them."""
    with (
        secured(broker, (PLAIN,), AUTHORIZER) as one,
        tempfile.TemporaryDirectory(prefix="interop-streams-", ignore_cleanup_errors=True) as name,
    ):
        for topic in (INPUT, OUTPUT):
            make_topic(one.broker, topic)
        for right in (*RIGHTS[:3], RIGHTS[4]):
            said(ACLS, one.broker, "--add", *ALICE, *right)
        wait_for_broker(one.broker)
        producer = producer_of(one.broker)
        producer.produce(INPUT, value=LINE)
        assert producer.flush(30) == 0
        settings = {
            "application.id": APP,
            "bootstrap.servers": one.bootstrap,
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": 100,
            "consumer.auto.offset.reset": "earliest",
            "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
            "default.value.serde": "org.apache.kafka.common.serialization.Serdes$LongSerde",
            "state.dir": name,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": PLAIN,
            "sasl.jaas.config": f'{PLAIN_MODULE} required username="alice" password="{USERS["alice"]}";',
        }
        properties = Path(name) / "streams.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

        def program() -> JavaProgram:
            log, classes = Path(name) / "log", compiled("WordCount")
            return JavaProgram("WordCount", str(properties), INPUT, OUTPUT, log=log, classes=classes)

        with program() as denied:
            until(lambda: denied.process.poll() is not None, WAIT_S)
        refused = "TopicAuthorizationException" in (Path(name) / "log").read_text()
        said(ACLS, one.broker, "--add", *ALICE, *RIGHTS[3])
        wait_for_broker(one.broker)
        with program() as allowed:
            allowed.until(lambda: end_offset(one.broker.bootstrap) >= 3, "the counts", WAIT_S)
        topics = AdminClient({"bootstrap.servers": one.broker.bootstrap}).list_topics(timeout=30).topics
        return {"denied": refused, "topics": sorted(name for name in topics if name.startswith(APP))}

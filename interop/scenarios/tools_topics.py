"""kafka-topics with all options, kafka-get-offsets, kafka-delete-records and kafka-log-dirs."""

from __future__ import annotations

import json
import re
from typing import Any

from interop.brokers import Broker
from interop.scenario import scenario
from interop.tools import IMPATIENT, TOOLS, a_file, run, said, steady, until

TOPICS = f"{TOOLS}.TopicCommand"


def produce_lines(broker: Broker, topic: str, count: int) -> None:
    """Produce the lines 0, 1, 2, ... with the console producer."""
    text = "".join(f"{number}\n" for number in range(count))
    said(f"{TOOLS}.ConsoleProducer", broker, "--topic", topic, stdin=text)


@scenario(seconds=120)
def create(broker: Broker) -> Any:
    """Create topics with all options, with errors."""
    seen: dict[str, Any] = {}
    for label, arguments in {
        "plain": ("--topic", "tools-create"),
        "again": ("--topic", "tools-create"),
        "unless there": ("--topic", "tools-create", "--if-not-exists"),
        "partitions": ("--topic", "tools-create-3", "--partitions", "3", "--replication-factor", "1"),
        "assigned": ("--topic", "tools-assigned", "--replica-assignment", "1,1"),
        "assigned to an unknown broker": ("--topic", "tools-nobody", "--replica-assignment", "1,7"),
        "assigned twice": ("--topic", "tools-twice", "--replica-assignment", "1:1"),
        "assigned unevenly": ("--topic", "tools-uneven", "--replica-assignment", "1,1:2"),
        "assigned and counted": (
            *("--topic", "tools-both", "--replica-assignment", "1"),
            *("--partitions", "1"),
        ),
        "configured": (
            *("--topic", "tools-configured", "--config", "retention.ms=1000"),
            *("--config", "cleanup.policy=compact"),
        ),
        "collides": ("--topic", "tools.create"),
        "collision chars": ("--topic", "tools_own_name"),
        "collides with it": ("--topic", "tools.own.name"),
        "too many replicas": ("--topic", "tools-2", "--replication-factor", "2"),
        "no replicas": ("--topic", "tools-0", "--replication-factor", "0"),
        "no partitions": ("--topic", "tools-0", "--partitions", "0"),
        "negative partitions": ("--topic", "tools-0", "--partitions", "-1"),
        "too many partitions": ("--topic", "tools-many", "--partitions", "10001"),
        "unknown setting": ("--topic", "tools-0", "--config", "no.such.key=1"),
        "bad setting": ("--topic", "tools-0", "--config", "retention.ms=soon"),
        "setting without value": ("--topic", "tools-0", "--config", "retention.ms="),
        "dot": ("--topic", "."),
        "dots": ("--topic", ".."),
        "empty": ("--topic", ""),
        "space": ("--topic", "a b"),
        "long": ("--topic", "x" * 250),
        "metadata": ("--topic", "__cluster_metadata"),
        "internal": ("--topic", "__consumer_offsets"),
        "no topic": (),
    }.items():
        seen[label] = said(TOPICS, broker, "--create", *arguments)
    wanted = ("tools-create-3", "tools-assigned", "tools-configured", "tools-create")
    for name in wanted:
        seen[f"describe {name}"] = said(TOPICS, broker, "--describe", "--topic", name)
    return seen


@scenario(seconds=120)
def list_and_describe(broker: Broker) -> Any:
    """List and describe topics with each filter, including unknown topics."""
    seen: dict[str, Any] = {}
    for name, more in (("tools-look-a", ()), ("tools-look-b", ("--config", "segment.ms=60000"))):
        said(TOPICS, broker, "--create", "--topic", name, "--partitions", "2", *more)
    for label, arguments in {
        "list": ("--list", "--topic", "tools-look-.*"),
        "list without internal": ("--list", "--exclude-internal", "--topic", "__.*|tools-look-a"),
        "list nothing": ("--list", "--topic", "tools-nothing"),
        "describe": ("--describe", "--topic", "tools-look-.*"),
        "describe overrides": ("--describe", "--topics-with-overrides", "--topic", "tools-look-.*"),
        "describe under replicated": (
            *("--describe", "--under-replicated-partitions"),
            *("--topic", "tools-look-.*"),
        ),
        "describe unavailable": ("--describe", "--unavailable-partitions", "--topic", "tools-look-.*"),
        "describe under min isr": ("--describe", "--under-min-isr-partitions", "--topic", "tools-look-.*"),
        "describe at min isr": ("--describe", "--at-min-isr-partitions", "--topic", "tools-look-.*"),
        "describe nothing": ("--describe", "--topic", "tools-nothing"),
        "describe nothing, if": ("--describe", "--topic", "tools-nothing", "--if-exists"),
        "describe an unknown id": ("--describe", "--topic-id", "AAECAwQFBgcICQoLDA0ODw"),
        "describe no id": ("--describe", "--topic-id", "nonsense"),
        "describe in pages": (
            *("--describe", "--topic", "tools-look-.*"),
            *("--partition-size-limit-per-response", "1"),
        ),
    }.items():
        seen[label] = sorted(said(TOPICS, broker, *arguments))
    internal = said(TOPICS, broker, "--describe", "--topic", "__consumer_offsets")
    seen["describe internal"] = internal[:1]
    described = run(TOPICS, "--bootstrap-server", broker.bootstrap, "--describe", "--topic", "tools-look-a")
    found = re.search(r"TopicId: (\S+)", described.stdout)
    assert found is not None, described
    seen["describe by id"] = said(TOPICS, broker, "--describe", "--topic-id", found[1])
    return seen


GROWN = {"grow": 4, "grow all": 5, "grow assigned": 7}
"""The number of partitions after each change."""


def wait_for_partitions(broker: Broker, topic: str, count: int) -> None:
    """Wait until the topic has this many partitions in the broker's own metadata."""
    until(lambda: len(said(TOPICS, broker, "--describe", "--topic", topic)) == count + 2)


@scenario(seconds=120)
def change(broker: Broker) -> Any:
    """Alter and delete existing and unknown topics."""
    seen: dict[str, Any] = {}
    for name in ("tools-change", "tools-change-too"):
        said(TOPICS, broker, "--create", "--topic", name, "--partitions", "2")
    for label, arguments in {
        "grow": ("--alter", "--topic", "tools-change", "--partitions", "4"),
        "same": ("--alter", "--topic", "tools-change", "--partitions", "4"),
        "shrink": ("--alter", "--topic", "tools-change", "--partitions", "1"),
        "grow all": ("--alter", "--topic", "tools-change.*", "--partitions", "5"),
        "grow assigned": (
            *("--alter", "--topic", "tools-change", "--partitions", "7"),
            *("--replica-assignment", "1,1,1,1,1,1,1"),
        ),
        "grow to an unknown broker": (
            *("--alter", "--topic", "tools-change", "--partitions", "8"),
            *("--replica-assignment", "1,1,1,1,1,1,1,9"),
        ),
        "grow nothing": ("--alter", "--topic", "tools-nothing", "--partitions", "2"),
        "grow nothing, if": ("--alter", "--topic", "tools-nothing", "--partitions", "2", "--if-exists"),
        "settings": ("--alter", "--topic", "tools-change", "--config", "retention.ms=1"),
        "describe": ("--describe", "--topic", "tools-change"),
        "delete": ("--delete", "--topic", "tools-change"),
        "delete again": ("--delete", "--topic", "tools-change"),
        "delete if": ("--delete", "--topic", "tools-change", "--if-exists"),
        "delete all": ("--delete", "--topic", "tools-change-.*"),
        "list": ("--list", "--topic", "tools-change.*"),
    }.items():
        seen[label] = said(TOPICS, broker, *arguments)
        if label == "delete":
            until(lambda: len(said(TOPICS, broker, "--list", "--topic", "tools-change")) == 1)
        elif label == "delete all":
            until(lambda: len(said(TOPICS, broker, "--list", "--topic", "tools-change-.*")) == 1)
        elif label in GROWN:
            wait_for_partitions(broker, "tools-change", GROWN[label])
    return seen


@scenario(seconds=120)
def offsets(broker: Broker) -> Any:
    """Run kafka-get-offsets with each selection and kind of time."""
    tool = f"{TOOLS}.GetOffsetShell"
    seen: dict[str, Any] = {}
    said(TOPICS, broker, "--create", "--topic", "tools-offsets", "--partitions", "1")
    said(TOPICS, broker, "--create", "--topic", "tools-offsets-2", "--partitions", "2")
    produce_lines(broker, "tools-offsets", 10)
    for when in (
        *("-1", "latest", "-2", "-4", "-5", "-6", "-7", "0", "4102444800000", "nonsense"),
        *("earliest", "earliest-local", "latest-tiered", "earliest-pending-upload"),
    ):
        seen[when] = sorted(said(tool, broker, "--topic", "tools-offsets.*", "--time", when))
    for label, arguments in {
        "partition": ("--topic", "tools-offsets-2", "--partitions", "0", "--time", "-2"),
        "partitions": ("--topic", "tools-offsets-2", "--partitions", "0,1,7"),
        "pairs": ("--topic-partitions", "tools-offs.*:0-1,tools-nothing:0", "--time", "-2"),
        "nothing": ("--topic", "tools-nothing"),
        "without internal": ("--exclude-internal-topics", "--topic", "tools-offsets", "--time", "-2"),
        "both": ("--topic", "a", "--topic-partitions", "b"),
    }.items():
        seen[label] = sorted(said(tool, broker, *arguments))
    for when in ("-3", "max-timestamp"):
        lines = said(tool, broker, "--topic", "tools-offsets", "--time", when)
        seen[when] = sorted(re.sub(r":\d+$", ":<n>", line) for line in lines)
    return seen


@scenario(seconds=120)
def delete_records(broker: Broker) -> Any:
    """Delete records up to an offset, up to the end, beyond the end, and of unknown partitions."""
    tool = f"{TOOLS}.DeleteRecordsCommand"
    seen: dict[str, Any] = {}
    said(TOPICS, broker, "--create", "--topic", "tools-records")
    compacted = ("--config", "cleanup.policy=compact")
    said(TOPICS, broker, "--create", "--topic", "tools-compacted", *compacted)
    produce_lines(broker, "tools-records", 10)

    def delete(*partitions: tuple[str, int, int]) -> list[str]:
        requested = [{"topic": name, "partition": index, "offset": at} for name, index, at in partitions]
        wanted = json.dumps({"partitions": requested, "version": 1})
        with a_file(wanted) as path, a_file(IMPATIENT) as settings:
            return said(tool, broker, "--offset-json-file", path, "--command-config", settings)

    seen["some"] = delete(("tools-records", 0, 3))
    seen["fewer"] = delete(("tools-records", 0, 1))
    seen["beyond"] = delete(("tools-records", 0, 11))
    seen["negative"] = delete(("tools-records", 0, -2))
    seen["to the end"] = delete(("tools-records", 0, -1))
    seen["no partitions left"] = delete(("tools-records", 0, 10))
    seen["another partition"] = delete(("tools-records", 1, 0))
    seen["another topic"] = delete(("tools-nothing", 0, 0))
    seen["compacted"] = delete(("tools-compacted", 0, 0))
    seen["internal"] = delete(("__consumer_offsets", 0, 0))
    seen["mixed"] = sorted(delete(("tools-records", 0, 10), ("tools-nothing", 0, 0)))
    seen["twice"] = delete(("tools-records", 0, 10), ("tools-records", 0, 10))
    with a_file(json.dumps({"partitions": [{"topic": "a"}]})) as path:
        seen["half a file"] = said(tool, broker, "--offset-json-file", path)[-1]
    consumer = f"{TOOLS}.consumer.ConsoleConsumer"
    produce_lines(broker, "tools-records", 2)
    seen["remaining topics"] = said(
        consumer, broker, "--topic", "tools-records", "--from-beginning", "--max-messages", "2"
    )
    return seen


@scenario(seconds=120)
def log_dirs(broker: Broker) -> Any:
    """Run kafka-log-dirs for all brokers, an unknown broker and some topics."""
    tool = f"{TOOLS}.LogDirsCommand"
    seen: dict[str, Any] = {}
    said(TOPICS, broker, "--create", "--topic", "tools-dirs", "--partitions", "2")
    produce_lines(broker, "tools-dirs", 5)
    for label, arguments in {
        "topic": ("--topic-list", "tools-dirs"),
        "broker": ("--topic-list", "tools-dirs", "--broker-list", "1"),
        "another broker": ("--broker-list", "1,7"),
        "another topic": ("--topic-list", "tools-nothing"),
    }.items():
        with a_file(IMPATIENT) as settings:
            lines = said(tool, broker, "--describe", "--command-config", settings, *arguments)
        for index, line in enumerate(lines):
            if line.startswith("{"):
                lines[index] = normalize_log_dirs(line)
        seen[label] = lines
    everything = said(tool, broker, "--describe")
    [line] = [line for line in everything if line.startswith("{")]
    names = {
        partition["partition"].rpartition("-")[0]
        for one in json.loads(line)["brokers"]
        for directory in one["logDirs"]
        for partition in directory["partitions"]
    }
    seen["all"] = [name for name in ("tools-dirs", "__consumer_offsets") if name in names]
    seen["the metadata log"] = "__cluster_metadata" in names
    return seen


def normalize_log_dirs(line: str) -> str:
    """Return the JSON output of kafka-log-dirs, with sorted partitions and without sizes."""
    found = json.loads(line)
    for one in found["brokers"]:
        for directory in one["logDirs"]:
            directory["logDir"] = steady(directory["logDir"])
            directory["partitions"].sort(key=lambda partition: str(partition["partition"]))
            for partition in directory["partitions"]:
                del partition["size"]
    return json.dumps(found)

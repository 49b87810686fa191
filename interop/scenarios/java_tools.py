"""Apache Kafka's own command line tools."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from interop.brokers import Broker, run_tool, start_tool
from interop.scenario import scenario
from interop.tools import until

TOOLS = "org.apache.kafka.tools"


def tool_output(
    main: str, broker: Broker, *arguments: str, stdin: str = "", timeout_s: float = 60.0
) -> list[str]:
    """Run a tool against the broker. Return its normalized output lines, followed by its exit status."""
    return command_output(
        main, "--bootstrap-server", broker.bootstrap, *arguments, stdin=stdin, timeout_s=timeout_s
    )


def command_output(main: str, *arguments: str, stdin: str = "", timeout_s: float = 60.0) -> list[str]:
    run = run_tool(main, *arguments, stdin=stdin, timeout_s=timeout_s)
    lines = [normalize_line(line) for line in (run.stdout + run.stderr).splitlines()]
    kept = [line for line in lines if line and not line.startswith(("\tat ", "Caused by", "SLF4J"))]
    return [*kept, f"exit {run.returncode}"]


def normalize_line(line: str) -> str:
    """Replace ids, ports, times and directories in an output line by placeholders, and collapse spaces."""
    line = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:<port>", line)
    line = re.sub(r"-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "-<uuid>", line)
    line = re.sub(r"\b[A-Za-z0-9_-]{22}\b(?=\s|$)", "<id>", line)
    # The tool prints configurations in the order of a Java map.
    line = re.sub(r"Configs: (\S+)", lambda found: "Configs: " + ",".join(sorted(found[1].split(","))), line)
    line = re.sub(r"^\d+ \[", "[", line)
    line = re.sub(r"\[20\d\d-[^\]]*\]", "[<time>]", line)
    line = re.sub(r"/tmp/\S*?/data", "<dir>", line)
    return re.sub(r"\s+", " ", line).strip()


def errors_only(lines: list[str]) -> list[str]:
    """Return only exception names and exit status, because the messages differ between brokers."""
    found = re.findall(r"org\.apache\.kafka\.[\w.]*Exception", "\n".join(lines))
    return [*dict.fromkeys(found), lines[-1]]


def console_produce(broker: Broker, topic: str, lines: list[str], *arguments: str) -> list[str]:
    text = "".join(f"{line}\n" for line in lines)
    return tool_output(f"{TOOLS}.ConsoleProducer", broker, "--topic", topic, *arguments, stdin=text)


@scenario(seconds=240)
def topics(broker: Broker) -> Any:
    """Create, list, describe, alter and delete topics with kafka-topics, with errors."""
    tool, name = f"{TOOLS}.TopicCommand", "java-topics"
    seen: dict[str, Any] = {}
    seen["create"] = tool_output(
        tool,
        broker,
        *("--create", "--topic", name, "--partitions", "3", "--replication-factor", "1"),
        *("--config", "retention.ms=3600000"),
    )
    seen["create again"] = errors_only(tool_output(tool, broker, "--create", "--topic", name))
    seen["create unless there"] = tool_output(tool, broker, "--create", "--topic", name, "--if-not-exists")
    seen["create with a bad name"] = errors_only(tool_output(tool, broker, "--create", "--topic", "a b"))
    described = ("--describe", "--topic", name)

    def until_described(lines: int) -> None:
        """Wait until the description has `lines` lines: the broker may apply a change after its response."""
        until(lambda: len(tool_output(tool, broker, *described)) == lines)

    until_described(lines=3 + 2)
    seen["describe"] = tool_output(tool, broker, *described)
    seen["grow"] = tool_output(tool, broker, "--alter", "--topic", name, "--partitions", "5")
    seen["shrink"] = errors_only(tool_output(tool, broker, "--alter", "--topic", name, "--partitions", "1"))
    until_described(lines=5 + 2)
    seen["describe grown"] = tool_output(tool, broker, *described)
    seen["under-replicated"] = tool_output(tool, broker, *described, "--under-replicated-partitions")
    listed = tool_output(tool, broker, "--list")
    seen["list"] = [line for line in listed if line in (name, "exit 0")]
    seen["delete"] = tool_output(tool, broker, "--delete", "--topic", name)
    until(lambda: not any("PartitionCount" in line for line in tool_output(tool, broker, *described)))
    seen["describe deleted"] = errors_only(tool_output(tool, broker, *described))
    return seen


@scenario(seconds=240)
def console(broker: Broker) -> Any:
    """Run the console clients with keys and headers, in a group, and from an offset of a partition."""
    topic, group = "java-console", "java-console-group"
    consumer = f"{TOOLS}.consumer.ConsoleConsumer"
    tool_output(f"{TOOLS}.TopicCommand", broker, "--create", "--topic", topic, "--partitions", "1")
    seen: dict[str, Any] = {}
    plain = [f"line {index}" for index in range(20)]
    seen["produce"] = console_produce(broker, topic, plain)
    parsing = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    seen["produce with keys"] = console_produce(
        broker, topic, ["h1:a,h2:b\tkey\tvalue", "h3:c\tkey2\tvalue2"], *parsing
    )
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        seen[f"produce {codec}"] = console_produce(
            broker, topic, [f"in {codec}"], "--compression-codec", codec
        )
    shown = [f"print.{what}=true" for what in ("key", "headers", "offset", "partition")]
    formatting = [part for what in shown for part in ("--formatter-property", what)]
    seen["consume"] = tool_output(
        consumer, broker, "--topic", topic, "--from-beginning", "--max-messages", "26", *formatting
    )
    seen["consume from 18"] = tool_output(
        consumer, broker, "--topic", topic, "--partition", "0", "--offset", "18", "--max-messages", "3"
    )
    seen["consume in a group"] = tool_output(
        consumer, broker, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "10"
    )
    seen["continue in the group"] = tool_output(
        consumer, broker, "--topic", topic, "--group", group, "--max-messages", "4"
    )
    return seen


@scenario(seconds=300)
def consumer_groups(broker: Broker) -> Any:
    """List, describe, reset and delete groups with kafka-consumer-groups."""
    topic, group = "java-groups", "java-groups-group"
    tool = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    tool_output(f"{TOOLS}.TopicCommand", broker, "--create", "--topic", topic, "--partitions", "1")
    console_produce(broker, topic, [f"{index}" for index in range(10)])
    consumer = f"{TOOLS}.consumer.ConsoleConsumer"
    tool_output(
        consumer, broker, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "10"
    )
    seen: dict[str, Any] = {}
    seen["list"] = [line for line in tool_output(tool, broker, "--list") if line in (group, "exit 0")]
    seen["describe"] = sorted(tool_output(tool, broker, "--describe", "--group", group))
    seen["state"] = tool_output(tool, broker, "--describe", "--group", group, "--state")
    seen["members"] = tool_output(tool, broker, "--describe", "--group", group, "--members")
    whole = ("--reset-offsets", "--group", group, "--topic", topic)
    for how in (
        ("--to-earliest",),
        ("--to-latest",),
        ("--to-offset", "1"),
        ("--shift-by", "-1"),
        ("--to-datetime", "2020-01-01T00:00:00.000"),
        ("--to-current",),
    ):
        seen[" ".join(how)] = sorted(tool_output(tool, broker, *whole, *how, "--execute"))
    seen["dry run"] = sorted(tool_output(tool, broker, *whole, "--to-latest", "--dry-run"))
    seen["delete offsets"] = sorted(
        tool_output(tool, broker, "--delete-offsets", "--group", group, "--topic", topic)
    )
    seen["delete"] = tool_output(tool, broker, "--delete", "--group", group)
    seen["describe deleted"] = errors_only(tool_output(tool, broker, "--describe", "--group", group))
    return seen


@scenario(seconds=240)
def group_in_use(broker: Broker) -> Any:
    """Describe a group with an active console consumer, and try to reset its offsets, which must fail."""
    topic, group = "java-in-use", "java-in-use-group"
    tool = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    tool_output(f"{TOOLS}.TopicCommand", broker, "--create", "--topic", topic, "--partitions", "2")
    console_produce(broker, topic, ["one", "two", "three"])
    consumer = start_tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", group, "--from-beginning"),
        *("--command-property", "auto.commit.interval.ms=100"),
    )
    try:
        seen: dict[str, Any] = {}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            described = tool_output(tool, broker, "--describe", "--group", group, "--state")
            lag = tool_output(tool, broker, "--describe", "--group", group)
            total = sum(
                int(line.split()[5]) for line in lag if line.startswith(group) and line.split()[5].isdigit()
            )
            if any("Stable" in line for line in described) and total == 0 and len(lag) > 3:
                break
        seen["state"] = described
        seen["members"] = tool_output(tool, broker, "--describe", "--group", group, "--members", "--verbose")
        reset = tool_output(
            tool, broker, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"
        )
        seen["reset"] = [line for line in reset if "Assignments can only" in line or line.startswith("exit")]
        seen["delete"] = errors_only(tool_output(tool, broker, "--delete", "--group", group))
    finally:
        consumer.send_signal(signal.SIGTERM)
        output = consumer.communicate(timeout=30)[0]
    seen["consumed"] = sorted(output.decode().split())
    return seen


@scenario(seconds=240)
def offsets_and_records(broker: Broker) -> Any:
    """Run kafka-get-offsets with each kind of time, kafka-delete-records and kafka-log-dirs."""
    topic = "java-offsets"
    tool_output(f"{TOOLS}.TopicCommand", broker, "--create", "--topic", topic, "--partitions", "1")
    console_produce(broker, topic, [f"{index}" for index in range(12)])
    seen: dict[str, Any] = {}
    tool = f"{TOOLS}.GetOffsetShell"
    for when in (
        "-1",
        "-2",
        "-3",
        "earliest",
        "latest",
        "max-timestamp",
        "earliest-local",
        "0",
        "4102444800000",
    ):
        lines = tool_output(tool, broker, "--topic", topic, "--time", when)
        if when in ("-3", "max-timestamp"):
            # The records' timestamps come from the producer's clock, so the greatest one is not
            # deterministic.
            lines = [re.sub(r":\d+$", ":<n>", line) for line in lines]
        seen[when] = lines
    with tempfile.TemporaryDirectory() as directory:
        wanted = Path(directory) / "delete.json"
        partitions = [{"topic": topic, "partition": partition, "offset": -1} for partition in (0,)]
        wanted.write_text(json.dumps({"partitions": partitions, "version": 1}))
        deleted = tool_output(f"{TOOLS}.DeleteRecordsCommand", broker, "--offset-json-file", str(wanted))
        seen["delete records"] = [re.sub(r"\d+$", "<n>", line) for line in deleted if "partition" in line]
    dirs = tool_output(f"{TOOLS}.LogDirsCommand", broker, "--describe", "--topic-list", topic)
    found = next(json.loads(line) for line in dirs if line.startswith("{"))
    for entry in found["brokers"]:
        for directory_ in entry["logDirs"]:
            directory_["partitions"].sort(key=lambda partition: str(partition["partition"]))
            for partition in directory_["partitions"]:
                partition["size"] = "some" if partition["size"] else "none"
    seen["log dirs"] = found
    return seen


@scenario(seconds=240)
def performance(broker: Broker) -> Any:
    """Run the performance tools and check the numbers of records. Times and rates are not compared."""
    topic = "java-performance"
    tool_output(f"{TOOLS}.TopicCommand", broker, "--create", "--topic", topic, "--partitions", "3")
    produced = command_output(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", topic, "--num-records", "50000", "--record-size", "100", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap}", "linger.ms=5"),
    )
    consumed = tool_output(f"{TOOLS}.ConsumerPerformance", broker, "--topic", topic, "--num-records", "50000")
    rows = [line.split(", ") for line in consumed if line.startswith("20")]
    return {
        "produced": [line.split()[0] for line in produced if "records sent" in line][-1:],
        "produce exit": produced[-1],
        "consumed": [row[4] for row in rows],
        "consume exit": consumed[-1],
    }


@scenario(seconds=240)
def verifiable_clients(broker: Broker) -> Any:
    """Run kafka-verifiable-producer and -consumer. Every record must be acknowledged and consumed."""
    topic = "java-verifiable"
    tool_output(f"{TOOLS}.TopicCommand", broker, "--create", "--topic", topic, "--partitions", "2")
    produced = command_output(
        f"{TOOLS}.VerifiableProducer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--max-messages", "200", "--acks", "-1"),
    )
    events = [json.loads(line) for line in produced if line.startswith("{")]
    consumer = command_output(
        f"{TOOLS}.VerifiableConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group-id", "java-verifiable"),
        *("--reset-policy", "earliest", "--max-messages", "200", "--verbose"),
    )
    seen = [json.loads(line) for line in consumer if line.startswith("{")]
    values = [int(event["value"]) for event in seen if event["name"] == "record_data"]
    return {
        "acknowledged": sum(event["name"] == "producer_send_success" for event in events),
        "refused": sum(event["name"] == "producer_send_error" for event in events),
        "seen": len(set(values)),
        "twice": len(values) - len(set(values)),
        "assigned": [len(event["partitions"]) for event in seen if event["name"] == "partitions_assigned"],
        "committed": all(event.get("success") for event in seen if event["name"] == "offsets_committed"),
        "exits": [produced[-1], consumer[-1]],
    }


@scenario(seconds=240)
def configs(broker: Broker) -> Any:
    """Describe and alter configurations of a topic and a group, and describe the broker's."""
    topic = "java-configs"
    tool = "kafka.admin.ConfigCommand"
    tool_output(f"{TOOLS}.TopicCommand", broker, "--create", "--topic", topic, "--partitions", "1")
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    seen: dict[str, Any] = {}
    seen["describe"] = tool_output(tool, broker, "--describe", *of_topic)
    seen["alter"] = tool_output(
        tool, broker, "--alter", *of_topic, "--add-config", "retention.ms=1000,segment.ms=60000"
    )
    seen["describe altered"] = tool_output(tool, broker, "--describe", *of_topic)
    seen["delete"] = tool_output(tool, broker, "--alter", *of_topic, "--delete-config", "segment.ms")
    seen["all"] = sorted(tool_output(tool, broker, "--describe", *of_topic, "--all"))
    seen["bad value"] = errors_only(
        tool_output(tool, broker, "--alter", *of_topic, "--add-config", "retention.ms=soon")
    )
    of_group = ("--entity-type", "groups", "--entity-name", "java-configs")
    added = "consumer.session.timeout.ms=50000,share.isolation.level=read_committed"
    seen["group"] = sorted(tool_output(tool, broker, "--describe", *of_group, "--all"))
    seen["alter group"] = tool_output(tool, broker, "--alter", *of_group, "--add-config", added)
    seen["describe group"] = sorted(tool_output(tool, broker, "--describe", *of_group))
    of_all = tool_output(tool, broker, "--describe", "--entity-type", "groups")
    # Other scenarios have created groups, too.
    start = of_all.index("Dynamic configs for group java-configs are:")
    seen["groups"] = of_all[start : start + 3]
    refused = "streams.session.timeout.ms=1"
    seen["bad group value"] = tool_output(tool, broker, "--alter", *of_group, "--add-config", refused)
    seen["delete of group"] = tool_output(
        tool, broker, "--alter", *of_group, "--delete-config", "share.isolation.level"
    )
    seen["group after the deletion"] = sorted(tool_output(tool, broker, "--describe", *of_group))
    of_broker = tool_output(
        tool, broker, "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all"
    )
    seen["broker"] = sorted(line.partition("=")[0] for line in of_broker)
    return seen


@scenario(seconds=120)
def cluster(broker: Broker) -> Any:
    """Run kafka-broker-api-versions, kafka-cluster cluster-id and kafka-groups."""
    seen: dict[str, Any] = {}
    versions = tool_output(f"{TOOLS}.BrokerApiVersionsCommand", broker)
    seen["api versions"] = [versions[0].partition(" ->")[0], versions[-1]]
    identity = command_output(f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", broker.bootstrap)
    seen["cluster id"] = identity
    with contextlib.suppress(StopIteration):
        groups = tool_output(f"{TOOLS}.GroupsCommand", broker, "--list")
        seen["groups"] = [next(line for line in groups if line.startswith("GROUP")), groups[-1]]
    return seen


@scenario(seconds=120)
def acls(broker: Broker) -> Any:
    """List, add and remove ACLs with kafka-acls, on the broker and on its controller listener."""
    tool = f"{TOOLS}.AclCommand"
    ways = {
        "broker": ("--bootstrap-server", broker.bootstrap),
        "controller": ("--bootstrap-controller", f"127.0.0.1:{broker.controller_port}"),
    }
    of_topic = ("--topic", "java-acls", "--allow-principal", "User:alice")
    seen: dict[str, Any] = {}
    for name, way in ways.items():
        for label, arguments in {
            "list": ("--list",),
            "list of a topic": ("--list", "--topic", "java-acls", "--resource-pattern-type", "match"),
            "add": ("--add", *of_topic, "--operation", "Read"),
            "add for a producer": ("--add", *of_topic, "--producer", "--idempotent"),
            "remove": ("--remove", *of_topic, "--operation", "Read", "--force"),
            "remove all": ("--remove", "--topic", "java-acls", "--force"),
        }.items():
            seen[f"{label} on the {name}"] = command_output(tool, *way, *arguments)
    return seen

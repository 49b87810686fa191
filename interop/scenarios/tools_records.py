"""Tools for records and logs: console clients, latency, throughput, dumps, and coordinator records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from interop.brokers import Broker, start_tool
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_transactions import TransactionalId, wait_for_transaction_coordinator
from interop.tools import IMPATIENT, TOOLS, a_file, lines_of, run, said

TOPICS = f"{TOOLS}.TopicCommand"
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
PRODUCER = f"{TOOLS}.ConsoleProducer"
ADVICE = "The consumer rebalance protocol"


def create(broker: Broker, topic: str, *more: str) -> None:
    said(TOPICS, broker, "--create", "--topic", topic, *more)


def console_consume(broker: Broker, *arguments: str) -> list[str]:
    """Run a console consumer and return its normalized output lines."""
    return [line for line in said(CONSUMER, broker, *arguments) if not line.startswith(ADVICE)]


@scenario(seconds=120)
def console(broker: Broker) -> Any:
    """Produce and consume keys, headers and nulls, and consume from different offsets, with errors."""
    topic = "tools-console"
    create(broker, topic, "--partitions", "1")
    seen: dict[str, Any] = {}
    parsed = (
        *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
        *("--reader-property", "null.marker=NULL"),
    )
    seen["produce"] = said(
        PRODUCER, broker, "--topic", topic, *parsed, stdin="h:1\tk1\tv1\nNULL\tk2\tNULL\nh:1,h:2\tNULL\tv3\n"
    )
    seen["produce without a key"] = said(PRODUCER, broker, "--topic", topic, *parsed, stdin="v4\n")[-1]
    seen["produce synchronously"] = said(PRODUCER, broker, "--topic", topic, "--sync", stdin="v5\nv6\n")
    for acks in ("0", "1", "all"):
        seen[f"produce acks {acks}"] = said(
            PRODUCER, broker, "--topic", topic, "--request-required-acks", acks, stdin=f"acks {acks}\n"
        )
    shown = [f"print.{what}=true" for what in ("key", "headers", "offset", "partition", "value", "epoch")]
    formatting = [part for what in shown for part in ("--formatter-property", what)]
    beginning = ("--topic", topic, "--from-beginning", "--timeout-ms", "10000")
    seen["consume"] = console_consume(broker, *beginning, *formatting, "--max-messages", "8")
    committed = ("--isolation-level", "read_committed")
    seen["consume committed records"] = console_consume(broker, *beginning, *committed, "--max-messages", "2")
    for label, arguments in {
        "by name": ("--offset", "earliest", "--partition", "0", "--max-messages", "1"),
        "from the middle": ("--offset", "3", "--partition", "0", "--max-messages", "2"),
        "from the end": ("--offset", "latest", "--partition", "0", "--timeout-ms", "500"),
        "beyond the end": ("--offset", "700", "--partition", "0", "--timeout-ms", "1500"),
        "another partition": ("--offset", "0", "--partition", "7", "--timeout-ms", "1500"),
        "no partition": ("--offset", "0"),
        "skipping": ("--from-beginning", "--max-messages", "2", "--skip-message-on-error"),
    }.items():
        seen[label] = console_consume(broker, "--topic", topic, *arguments)
    some = ("--include", "tools-cons.*", "--from-beginning", "--max-messages", "2")
    seen["by pattern"] = console_consume(broker, *some)
    return seen


@scenario(seconds=120)
def coordinator_records(broker: Broker) -> Any:
    """Print committed offsets and group metadata from __consumer_offsets with Kafka's formatters."""
    topic, group = "tools-stored", "tools-stored-group"
    create(broker, topic)
    said(PRODUCER, broker, "--topic", topic, stdin="1\n2\n3\n")
    reading = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "3")
    console_consume(broker, *reading)
    newer = ("--command-property", "group.protocol=consumer")
    console_consume(broker, "--topic", topic, "--group", group + "-2", *reading[4:], *newer)
    with RawClient(broker.bootstrap) as client:
        wait_for_transaction_coordinator(client, group)
        one = TransactionalId(client, group)
        one.init()
        client.call("AddOffsetsToTxn", 3, **one.identity, GroupId=group + "-3")
        offset = {"PartitionIndex": 0, "CommittedOffset": 3, "CommittedMetadata": "in a transaction"}
        topics = [{"Name": topic, "Partitions": [offset]}]
        client.call("TxnOffsetCommit", 3, **one.identity, GroupId=group + "-3", Topics=topics)
        assert one.end(commit=True) == [0]
    seen: dict[str, Any] = {}
    for kind in ("Offsets", "GroupMetadata"):
        formatter = f"{TOOLS}.consumer.{kind}MessageFormatter"
        internal = ("--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "2500")
        outcome = run(CONSUMER, "--bootstrap-server", broker.bootstrap, *internal, "--formatter", formatter)
        records = [normalize_record(record) for record in json_objects(outcome.stdout)]
        seen[kind] = sorted({text for text in map(json.dumps, records) if group in text})
    return seen


def json_objects(text: str) -> Iterator[Any]:
    """Yield the JSON objects in a text."""
    decoder, position = json.JSONDecoder(), 0
    while (position := text.find("{", position)) >= 0:
        found, position = decoder.raw_decode(text, position)
        yield found


def normalize_record(record: Any, key: str = "") -> Any:
    """Replace times, ids, subscriptions and assignments in a coordinator's record by placeholders."""
    if isinstance(record, dict):
        return {name: normalize_record(value, name) for name, value in record.items()}
    if isinstance(record, list):
        return [normalize_record(one, key) for one in record]
    if key in ("commitTimestamp", "currentStateTimestamp", "expireTimestamp"):
        return "<time>" if record > 0 else record
    if key in ("memberId", "leader", "topicId", "subscription", "assignment") and record:
        return f"<{key}>"
    return record


@scenario(seconds=120)
def latency(broker: Broker) -> Any:
    """Run kafka-e2e-latency. The measured times are not compared."""
    create(broker, "tools-latency")
    arguments = ("--topic", "tools-latency", "--num-records", "100", "--producer-acks", "all")
    outcome = run(
        f"{TOOLS}.EndToEndLatency",
        *("--bootstrap-server", broker.bootstrap, *arguments, "--record-size", "100"),
    )
    lines = [re.sub(r"\d+(\.\d+)?", "<n>", line) for line in lines_of(outcome)[:-1]]
    return {"said": sorted(set(lines)), "exit": outcome.status}


@scenario(seconds=120)
def throughput(broker: Broker) -> Any:
    """Run the performance tools with several options. The measured figures are not compared."""
    topic = "tools-throughput"
    create(broker, topic, "--partitions", "2")
    seen: dict[str, Any] = {}
    props = ("--producer-props", f"bootstrap.servers={broker.bootstrap}")
    server = ("--topic", topic, "--throughput", "-1", *props)
    with a_file("one\ntwo\nthree\n") as payload:
        for label, arguments in {
            "plain": ("--num-records", "2000", "--record-size", "100"),
            "metrics": ("--num-records", "100", "--record-size", "100", "--print-metrics"),
            "payload": ("--num-records", "100", "--payload-file", payload),
            "monotonic": ("--num-records", "100", "--payload-monotonic"),
            "transactional": (
                *("--num-records", "500", "--record-size", "100"),
                *("--transactional-id", "tools-perf", "--transaction-duration-ms", "50"),
            ),
            "warm-up": ("--num-records", "200", "--record-size", "10", "--warmup-records", "100"),
            "nothing": ("--record-size", "100"),
        }.items():
            outcome = run(f"{TOOLS}.ProducerPerformance", *server, *arguments)
            sent = re.findall(r"^(\d+) records sent", outcome.stdout, re.MULTILINE)
            seen[label] = [sent[-1:], "warm" in outcome.stdout, outcome.status]
    for label, arguments in {
        "consumed": ("--num-records", "2000"),
        "consumed in detail": (
            "--num-records",
            "2000",
            "--show-detailed-stats",
            "--reporting-interval",
            "10",
        ),
        "consumed by name": ("--num-records", "2000", "--group", "tools-perf-group", "--hide-header"),
        "consumed nothing": (),
    }.items():
        lines = said(f"{TOOLS}.ConsumerPerformance", broker, "--topic", topic, *arguments)
        rows = [line.split(", ") for line in lines if line.startswith("20")]
        enough = bool(rows) and int(float(rows[-1][4])) >= 2000
        seen[label] = [enough, "MB.sec" in lines[0], lines[-1]]
    return seen


@scenario(seconds=120)
def dump_log(broker: Broker) -> Any:
    """Run kafka-dump-log on a log and its indexes while the broker has them open."""
    topic = "tools-dumped"
    create(broker, topic)
    said(PRODUCER, broker, "--topic", topic, stdin="".join(f"{number}\n" for number in range(5)))
    directory = broker.log_dir / f"{topic}-0"
    start = str(directory / ("0" * 20))
    seen: dict[str, Any] = {}
    for label, arguments in {
        "headers": ("--files", f"{start}.log"),
        "records": ("--print-data-log", "--files", f"{start}.log"),
        "deep": ("--deep-iteration", "--files", f"{start}.log"),
        "index": ("--index-sanity-check", "--files", f"{start}.index"),
        "indexes": ("--verify-index-only", "--files", f"{start}.index,{start}.timeindex"),
        "bounded": ("--max-bytes", "10", "--files", f"{start}.log"),
        "nothing": ("--files", f"{start}9.log"),
        "no file": (),
    }.items():
        outcome = run(f"{TOOLS}.DumpLogSegments", *arguments)
        text = re.sub(r"(CreateTime|crc|producerId|size|position): -?\d+", r"\1: <n>", outcome.stdout)
        seen[label] = lines_of(outcome._replace(stdout=text))
    return seen


@scenario(seconds=60)
def streams_reset(broker: Broker) -> Any:
    """Run kafka-streams-application-reset for an application that has only an input topic."""
    create(broker, "tools-reset-input")
    seen: dict[str, Any] = {}
    tool = f"{TOOLS}.StreamsResetter"
    with a_file(IMPATIENT) as settings:
        for label, arguments in {
            "dry run": ("--application-id", "tools-app", "--input-topics", "tools-reset-input", "--dry-run"),
            "unknown topic": (
                "--application-id",
                "tools-app",
                "--input-topics",
                "tools-nothing",
                "--dry-run",
            ),
            "reset": (
                *("--application-id", "tools-app", "--input-topics", "tools-reset-input"),
                *("--to-offset", "0", "--config-file", settings),
            ),
        }.items():
            seen[label] = [line for line in said(tool, broker, *arguments) if not line.startswith(ADVICE)]
    group = said(f"{TOOLS}.consumer.group.ConsumerGroupCommand", broker, "--describe", "--group", "tools-app")
    seen["group"] = sorted(group)
    return seen


@scenario(seconds=60)
def replica_verification(broker: Broker) -> Any:
    """Run kafka-replica-verification until it has printed its first report."""
    create(broker, "tools-replicas", "--partitions", "2")
    said(PRODUCER, broker, "--topic", "tools-replicas", stdin="1\n2\n3\n")
    tool = start_tool(
        f"{TOOLS}.ReplicaVerificationTool",
        *("--broker-list", broker.bootstrap, "--topics-include", "tools-replicas"),
        *("--report-interval-ms", "500", "--time", "-2"),
    )
    assert tool.stdout is not None
    try:
        lines = [tool.stdout.readline().decode() for _ in range(2)]
    finally:
        tool.kill()
        tool.communicate(timeout=30)
    steady = [re.sub(r"^\S+ \S+: ", "<time>: ", line.strip()) for line in lines]
    # No partition lags, so the tool may report any partition as the one with the maximum lag.
    return [re.sub(r"tools-replicas-\d at offset \d+", "<place>", line) for line in steady]

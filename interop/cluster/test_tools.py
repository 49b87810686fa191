"""Kafka's tools on a cluster of three nodes: the output for kwire must equal the output for Apache Kafka.

One broker is stopped and restarted between the tools.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

from interop.brokers import start_tool
from interop.cluster.nodes import CLUSTER_KINDS, RELEASE, Cluster, wait_until
from interop.scenario import compare, plain, table
from interop.tools import TOOLS, a_file, lines_of, run, steady

if TYPE_CHECKING:
    from interop.record import Record

TOPICS = f"{TOOLS}.TopicCommand"
REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CLUSTER = f"{TOOLS}.ClusterTool"
QUORUM = f"{TOOLS}.MetadataQuorumCommand"
ELECTION = f"{TOOLS}.LeaderElectionCommand"
OBSERVERS = re.compile(r"CurrentObservers: \[\{(.*)\}\]")
IN_SYNC = re.compile(r"(?<=Isr: )\d+(?:,\d+)+")
"""A list of in-sync replicas. Its order depends on the speed of followers; normalize_lines sorts it."""
SLOW = "20000"
"""A throttle in bytes per second, so low that a reassignment still runs when a tool describes it."""


class ToolSession:
    """A runner of tools against a cluster, which records the output of each tool in `seen`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.seen: dict[str, Any] = {}

    def run(self, main: str, *arguments: str, stdin: str = "", timeout_s: float = 60.0) -> list[str]:
        tool_options = tool_arguments(main, ("--bootstrap-server", self.cluster.bootstrap), arguments)
        return normalize_lines(lines_of(run(main, *tool_options, stdin=stdin, timeout_s=timeout_s)))

    def run_on_controller(self, main: str, *arguments: str) -> list[str]:
        tool_options = tool_arguments(
            main, ("--bootstrap-controller", self.cluster.controller_bootstrap), arguments
        )
        return normalize_lines(lines_of(run(main, *tool_options)))

    def record_output(self, label: str, main: str, *arguments: str, stdin: str = "") -> list[str]:
        """Run a tool and record its output."""
        lines = self.run(main, *arguments, stdin=stdin)
        self.seen[label] = lines
        return lines

    def record_when(self, label: str, main: str, *arguments: str, shows: Callable[[str], bool]) -> None:
        """Run a tool repeatedly until its output satisfies a condition, and record that output."""

        def is_so() -> bool:
            return shows("\n".join(self.record_output(label, main, *arguments)))

        wait_until(is_so, f"{label} never shows it")


def tool_arguments(main: str, address: tuple[str, ...], arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments in the order that the tool expects. ClusterTool expects the address at the end."""
    return (*arguments, *address) if main == CLUSTER else (*address, *arguments)


def is_at_rest(text: str) -> bool:
    """Return whether the described topic is neither being reassigned nor throttled."""
    return "Adding" not in text and "throttled" not in text


def normalize_lines(lines: list[str]) -> list[str]:
    """Return the lines without ports, unsupported features and other values that differ between runs."""
    lines = [re.sub(r"(127\.0\.0\.1) \d+", r"\1 <port>", line) for line in lines]
    lines = [
        re.sub(
            r"(?<=for partitions )(?:__consumer_offsets-\d, )*(t-2)(?:, __consumer_offsets-\d)*", r"\1", line
        )
        for line in lines
    ]
    lines = [IN_SYNC.sub(lambda found: ",".join(sorted(found[0].split(","))), line) for line in lines]
    lines = [line for line in lines if not line.startswith(("Feature: share.", "Feature: streams."))]
    lines = [
        OBSERVERS.sub(lambda found: f"CurrentObservers: {sorted(found[1].split('}, {'))}", line)
        for line in lines
    ]
    return [re.sub(r",retention\.ms=\d+00000", "", line) if "Configs: " in line else line for line in lines]


def a_plan(replicas: list[int], topic: str = "t-moved") -> str:
    moves = [{"topic": topic, "partition": 0, "replicas": replicas}]
    return json.dumps({"version": 1, "partitions": moves})


def describe_the_cluster(session: ToolSession) -> None:
    for label, arguments in {"id": ("cluster-id",), "endpoints": ("list-endpoints",)}.items():
        session.seen[label] = sorted(session.run(CLUSTER, *arguments))
        session.seen[f"{label} by the controller"] = sorted(session.run_on_controller(CLUSTER, *arguments))
    versions = session.run(f"{TOOLS}.BrokerApiVersionsCommand")
    session.seen["brokers with versions"] = sorted(line for line in versions if line.startswith("127.0.0.1"))
    for label, run_tool in {"brokers": session.run, "the controller": session.run_on_controller}.items():
        output = run_tool(f"{TOOLS}.FeatureCommand", "describe")
        session.seen[f"features by {label}"] = sorted(
            # The newest metadata.version is that of the release, which may be newer than the reference.
            re.sub(r"Epoch: \d+", "Epoch: <n>", line.replace("UNKNOWN 33", RELEASE[1]))
            for line in output
        )
        for what in ("--status", "--replication"):
            output = run_tool(QUORUM, "describe", what)
            # Offsets and times vary from run to run. Voters and observers do not.
            output = [
                re.sub(r"\d{3,}", "<n>", re.sub(r"(?<=[ \t])\d+(?= ms| ago)", "<n>", line)) for line in output
            ]
            output = [
                re.sub(r"(Offset|Lag|LagTimeMs|MaxFollowerLagTimeMs|HighWatermark): +-?\d+", r"\1: <n>", line)
                for line in output
            ]
            if what == "--replication":
                output = sorted(" ".join((row.split(" ")[0], row.split(" ")[-1])) for row in output)
            session.seen[f"quorum {what} by {label}"] = output


def create_topics(session: ToolSession) -> None:
    session.record_output(
        "made", TOPICS, "--create", "--topic", "t", "--replica-assignment", "1:2:3,2:3:1,3:1:2"
    )
    session.cluster.wait_until_in_sync("t", 3)
    session.record_output("made again", TOPICS, "--create", "--topic", "t", "--replica-assignment", "1:2:3")
    session.record_output(
        "too many replicas", TOPICS, "--create", "--topic", "u", "--replication-factor", "4"
    )
    session.record_output("a stranger", TOPICS, "--create", "--topic", "u", "--replica-assignment", "1:2:7")
    session.record_output("described", TOPICS, "--describe", "--topic", "t")
    lines = "".join(f"{number}:value {number}\n" for number in range(300))
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    session.record_output("produced", f"{TOOLS}.ConsoleProducer", "--topic", "t", *keyed, stdin=lines)
    session.record_output("offsets", f"{TOOLS}.GetOffsetShell", "--topic", "t")
    group = ("--group", "readers", "--topic", "t", "--from-beginning", "--max-messages", "300")
    session.seen["consumed"] = len(session.run(f"{TOOLS}.consumer.ConsoleConsumer", *group))
    session.seen["group"] = sorted(session.run(GROUPS, "--describe", "--group", "readers"))
    session.seen["group reset"] = sorted(
        session.run(
            GROUPS, "--reset-offsets", "--group", "readers", "--topic", "t", "--to-earliest", "--execute"
        )
    )
    session.seen["groups"] = sorted(session.run(GROUPS, "--list"))
    output = run(
        f"{TOOLS}.LogDirsCommand",
        "--bootstrap-server",
        session.cluster.bootstrap,
        "--describe",
        "--topic-list",
        "t",
    )
    found = json.loads(output.stdout.splitlines()[-1])
    # Sizes depend on how the producer put the records into batches.
    session.seen["log dirs"] = sorted(
        (broker["broker"], each["partition"], each["offsetLag"], each["isFuture"])
        for broker in found["brokers"]
        for where in broker["logDirs"]
        for each in where["partitions"]
    )


def find_transactions(session: ToolSession) -> None:
    """Look for hanging transactions on each broker. The tool examines leaders and followers."""
    transactions = f"{TOOLS}.TransactionsCommand"
    for broker_id in ("1", "2", "3"):
        output = session.run(transactions, "find-hanging", "--broker-id", broker_id)
        session.seen[f"hanging transactions of {broker_id}"] = output
        one = ("--topic", "t", "--partition", "0", "--broker-id", broker_id)
        output = session.run(transactions, "describe-producers", *one)
        # Producer ids and times vary from run to run.
        session.seen[f"producers by {broker_id}"] = [re.sub(r"\b\d+\b", "<n>", line) for line in output]


def alter_configs(session: ToolSession) -> None:
    of_all = ("--entity-type", "brokers", "--entity-default")
    of_3 = ("--entity-type", "brokers", "--entity-name", "3")
    of_topic = ("--entity-type", "topics", "--entity-name", "t")
    for label, arguments in {
        "set for all": ("--alter", *of_all, "--add-config", "log.retention.ms=7200000,min.insync.replicas=1"),
        "set for 3": ("--alter", *of_3, "--add-config", "log.retention.ms=3600000"),
        "set for the topic": ("--alter", *of_topic, "--add-config", "min.insync.replicas=2"),
        "set for a stranger": (
            "--alter",
            "--entity-type",
            "brokers",
            "--entity-name",
            "7",
            "--add-config",
            "log.retention.ms=1",
        ),
        "a minimum of 3": ("--alter", *of_3, "--add-config", "min.insync.replicas=1"),
    }.items():
        session.record_output(label, CONFIGS, *arguments)
    session.record_when("of all", CONFIGS, "--describe", *of_all, shows=lambda text: "7200000" in text)
    session.record_when("of 3", CONFIGS, "--describe", *of_3, shows=lambda text: "3600000" in text)
    session.record_output("of the topic", CONFIGS, "--describe", *of_topic)
    session.record_output(
        "unset for all",
        CONFIGS,
        "--alter",
        *of_all,
        "--delete-config",
        "log.retention.ms,min.insync.replicas",
    )


def stop_a_broker(session: ToolSession) -> None:
    session.cluster.nodes[3].stop()
    filters = (
        "--under-replicated-partitions",
        "--under-min-isr-partitions",
        "--at-min-isr-partitions",
        "--unavailable-partitions",
    )
    session.record_when(
        "without 3", TOPICS, "--describe", "--topic", "t", shows=lambda text: "Leader: 3" not in text
    )
    for each in filters:
        session.record_output(each, TOPICS, "--describe", "--topic", "t", each)
    preferred = ("--election-type", "preferred")
    session.record_output("elect 3, which is gone", ELECTION, *preferred, "--topic", "t", "--partition", "2")
    session.record_output(
        "elect 3 uncleanly", ELECTION, "--election-type", "unclean", "--topic", "t", "--partition", "2"
    )
    with a_file(a_plan([3], "t")) as plan:
        session.record_output(
            "move to 3, which is gone", REASSIGN, "--reassignment-json-file", plan, "--execute"
        )
    fenced = ("list-endpoints", "--include-fenced-brokers")
    session.seen["fenced endpoints"] = sorted(session.run(CLUSTER, *fenced))
    session.cluster.start_node(3)
    session.cluster.wait_until_in_sync("t", 3)
    session.record_output("elect all preferred", ELECTION, *preferred, "--all-topic-partitions")
    session.record_output("elect again", ELECTION, *preferred, "--topic", "t", "--partition", "2")
    session.record_when(
        "with 3", TOPICS, "--describe", "--topic", "t", shows=lambda text: "Leader: 3" in text
    )


def moves(session: ToolSession) -> None:
    session.record_output(
        "made to be moved",
        TOPICS,
        "--create",
        "--topic",
        "t-moved",
        "--replica-assignment",
        "1:2",
        "--config",
        "min.insync.replicas=1",
    )
    session.cluster.wait_until_in_sync("t-moved")
    filled = ("--topic", "t-moved", "--num-records", "3000", "--record-size", "1000", "--throughput", "-1")
    run(
        f"{TOOLS}.ProducerPerformance",
        *filled,
        "--producer-props",
        f"bootstrap.servers={session.cluster.bootstrap}",
    )
    described = ("--describe", "--topic", "t-moved")
    with a_file(a_plan([3, 2])) as plan:
        given = ("--reassignment-json-file", plan)
        session.record_output("move", REASSIGN, *given, "--execute", "--throttle", SLOW)
        session.record_output("verify", REASSIGN, *given, "--verify")
        session.record_output("list", REASSIGN, "--list")
        session.record_output("while moved", TOPICS, *described)
        session.record_output("cancel", REASSIGN, *given, "--cancel")
        session.record_when("cancelled", TOPICS, *described, shows=is_at_rest)
        session.record_output("nothing to cancel", REASSIGN, *given, "--cancel")
        session.record_output("move again", REASSIGN, *given, "--execute", "--throttle", SLOW)
        session.record_output(
            "faster", REASSIGN, *given, "--execute", "--throttle", "100000000", "--additional"
        )
        session.record_when("moved", REASSIGN, *given, "--verify", shows=lambda text: "is completed" in text)
        session.record_when("described when moved", TOPICS, *described, shows=is_at_rest)
        session.record_output(
            "no throttle is left",
            CONFIGS,
            "--describe",
            "--entity-type",
            "topics",
            "--entity-name",
            "t-moved",
        )
    with a_file(a_plan([1, 7])) as plan:
        session.record_output("move to a stranger", REASSIGN, "--reassignment-json-file", plan, "--execute")
    with a_file(a_plan([1, 1])) as plan:
        session.record_output("move twice to one", REASSIGN, "--reassignment-json-file", plan, "--execute")


def verify_replicas(session: ToolSession) -> None:
    """Read four reports of kafka-replica-verification. The tool runs until it is killed."""
    tool_options = (
        "--broker-list",
        session.cluster.bootstrap,
        "--topics-include",
        "t|t-moved",
        "--report-interval-ms",
        "1000",
    )
    process = start_tool(f"{TOOLS}.ReplicaVerificationTool", *tool_options, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    output = [process.stdout.readline().decode() for _ in range(4)]
    process.terminate()
    process.wait()
    lines = [steady(line.partition(": ")[2]) for line in output]
    session.seen["replicas verified"] = [
        re.sub(r"partition \S+ at offset \d+", "partition <any> at offset <n>", line) for line in lines
    ]


def unregister_brokers(session: ToolSession) -> None:
    session.cluster.nodes[3].stop()
    session.record_output("unregister a stranger", CLUSTER, "unregister", "--id", "7")
    session.record_output("unregister a stopped broker", CLUSTER, "unregister", "--id", "3")
    session.seen["endpoints without 3"] = sorted(
        session.run(CLUSTER, "list-endpoints", "--include-fenced-brokers")
    )
    session.record_output("replicas of nobody", TOPICS, "--describe", "--topic", "t")
    session.record_output("deleted", TOPICS, "--delete", "--topic", "t.*")
    session.record_when("all topics", TOPICS, "--list", shows=lambda text: "t-moved" not in text)


PARTS = (
    describe_the_cluster,
    create_topics,
    find_transactions,
    alter_configs,
    stop_a_broker,
    moves,
    verify_replicas,
    unregister_brokers,
)


def run_parts(
    parts: Iterable[Callable[[ToolSession], None]],
    name: str,
    cluster_kind: str,
    record: Record,
    settings: dict[str, str] | None = None,
) -> None:
    """Run the parts on a cluster, record their output, and compare it with the record of Apache Kafka."""
    with Cluster(CLUSTER_KINDS[cluster_kind], settings).start() as cluster:
        session = ToolSession(cluster)
        try:
            for part in parts:
                part(session)
        finally:
            seen = plain(session.seen)
            record.save(f"{name}.{cluster_kind}", seen)
    if cluster_kind == "kafka":
        return
    found = compare(name, record.load(f"{name}.kafka"), seen)
    assert not found, "\n" + table(found)


@pytest.mark.parametrize(
    "cluster_kind", sorted(CLUSTER_KINDS, key="kafka".__ne__)
)  # "kafka" runs first, because the others are compared with its record
def test_tools_print_the_same_as_for_apache_kafka(cluster_kind: str, record: Record) -> None:
    run_parts(PARTS, "cluster.tools", cluster_kind, record)

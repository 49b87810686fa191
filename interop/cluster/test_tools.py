"""Kafka's own tools on a cluster of three: what they print of kwire is what they print of Apache Kafka.

A broker is stopped on the way, and comes back, so that there is something to be told of.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

from interop.brokers import start_tool
from interop.cluster.nodes import MAKEUPS, Cluster, eventually
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
"""A set: who came back last is behind, and who that is depends on who was slow."""
SLOW = "20000"
"""Bytes a second: so slow that a move of more than one fetch is still on when it is looked at."""


class Desk:
    """Somebody with the tools and a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.seen: dict[str, Any] = {}

    def run(self, main: str, *arguments: str, stdin: str = "", timeout_s: float = 60.0) -> list[str]:
        asked = arranged(main, ("--bootstrap-server", self.cluster.bootstrap), arguments)
        return steadier(lines_of(run(main, *asked, stdin=stdin, timeout_s=timeout_s)))

    def of_controller(self, main: str, *arguments: str) -> list[str]:
        asked = arranged(main, ("--bootstrap-controller", self.cluster.controller_bootstrap), arguments)
        return steadier(lines_of(run(main, *asked)))

    def see(self, label: str, main: str, *arguments: str, stdin: str = "") -> list[str]:
        """Keep what a tool prints."""
        lines = self.run(main, *arguments, stdin=stdin)
        self.seen[label] = lines
        return lines

    def see_when(self, label: str, main: str, *arguments: str, shows: Callable[[str], bool]) -> None:
        """Keep what a tool prints, once it shows something that takes its time."""

        def is_so() -> bool:
            return shows("\n".join(self.see(label, main, *arguments)))

        eventually(is_so, f"{label} never shows it")


def arranged(main: str, whom: tuple[str, ...], arguments: tuple[str, ...]) -> tuple[str, ...]:
    """One tool wants to be told first what to do, and two whom to ask."""
    return (*arguments, *whom) if main == CLUSTER else (*whom, *arguments)


def is_at_rest(text: str) -> bool:
    """Whether a topic neither moves nor is throttled: a broker may hear of that after its controller."""
    return "Adding" not in text and "throttled" not in text


def steadier(lines: list[str]) -> list[str]:
    """Without ports in tables, and what a broker adds to a topic's configuration of its own."""
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


def looks_at_the_cluster(desk: Desk) -> None:
    for label, arguments in {"id": ("cluster-id",), "endpoints": ("list-endpoints",)}.items():
        desk.seen[label] = sorted(desk.run(CLUSTER, *arguments))
        desk.seen[f"{label} by the controller"] = sorted(desk.of_controller(CLUSTER, *arguments))
    versions = desk.run(f"{TOOLS}.BrokerApiVersionsCommand")
    desk.seen["brokers with versions"] = sorted(line for line in versions if line.startswith("127.0.0.1"))
    for label, tell in {"brokers": desk.run, "the controller": desk.of_controller}.items():
        told = tell(f"{TOOLS}.FeatureCommand", "describe")
        desk.seen[f"features by {label}"] = sorted(re.sub(r"Epoch: \d+", "Epoch: <n>", line) for line in told)
        for what in ("--status", "--replication"):
            told = tell(QUORUM, "describe", what)
            # Offsets and times are of the moment; who is a voter, and who follows, is not.
            told = [
                re.sub(r"\d{3,}", "<n>", re.sub(r"(?<=[ \t])\d+(?= ms| ago)", "<n>", line)) for line in told
            ]
            told = [
                re.sub(r"(Offset|Lag|LagTimeMs|MaxFollowerLagTimeMs|HighWatermark): +-?\d+", r"\1: <n>", line)
                for line in told
            ]
            if what == "--replication":
                told = sorted(" ".join((row.split(" ")[0], row.split(" ")[-1])) for row in told)
            desk.seen[f"quorum {what} by {label}"] = told


def makes_topics(desk: Desk) -> None:
    desk.see("made", TOPICS, "--create", "--topic", "t", "--replica-assignment", "1:2:3,2:3:1,3:1:2")
    desk.cluster.until_in_sync("t", 3)
    desk.see("made again", TOPICS, "--create", "--topic", "t", "--replica-assignment", "1:2:3")
    desk.see("too many replicas", TOPICS, "--create", "--topic", "u", "--replication-factor", "4")
    desk.see("a stranger", TOPICS, "--create", "--topic", "u", "--replica-assignment", "1:2:7")
    desk.see("described", TOPICS, "--describe", "--topic", "t")
    lines = "".join(f"{number}:value {number}\n" for number in range(300))
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    desk.see("produced", f"{TOOLS}.ConsoleProducer", "--topic", "t", *keyed, stdin=lines)
    desk.see("offsets", f"{TOOLS}.GetOffsetShell", "--topic", "t")
    group = ("--group", "readers", "--topic", "t", "--from-beginning", "--max-messages", "300")
    desk.seen["consumed"] = len(desk.run(f"{TOOLS}.consumer.ConsoleConsumer", *group))
    desk.seen["group"] = sorted(desk.run(GROUPS, "--describe", "--group", "readers"))
    desk.seen["group reset"] = sorted(
        desk.run(
            GROUPS, "--reset-offsets", "--group", "readers", "--topic", "t", "--to-earliest", "--execute"
        )
    )
    desk.seen["groups"] = sorted(desk.run(GROUPS, "--list"))
    told = run(
        f"{TOOLS}.LogDirsCommand",
        "--bootstrap-server",
        desk.cluster.bootstrap,
        "--describe",
        "--topic-list",
        "t",
    )
    found = json.loads(told.stdout.splitlines()[-1])
    # Sizes depend on how the records came to be in batches.
    desk.seen["log dirs"] = sorted(
        (broker["broker"], each["partition"], each["offsetLag"], each["isFuture"])
        for broker in found["brokers"]
        for where in broker["logDirs"]
        for each in where["partitions"]
    )


def looks_for_transactions(desk: Desk) -> None:
    """Each broker is asked of all its replicas, of which it leads a part."""
    transactions = f"{TOOLS}.TransactionsCommand"
    for broker_id in ("1", "2", "3"):
        told = desk.run(transactions, "find-hanging", "--broker-id", broker_id)
        desk.seen[f"hanging transactions of {broker_id}"] = told
        one = ("--topic", "t", "--partition", "0", "--broker-id", broker_id)
        told = desk.run(transactions, "describe-producers", *one)
        # Who was given which ids, and when it wrote, is chance.
        desk.seen[f"producers by {broker_id}"] = [re.sub(r"\b\d+\b", "<n>", line) for line in told]


def configures(desk: Desk) -> None:
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
        desk.see(label, CONFIGS, *arguments)
    desk.see_when("of all", CONFIGS, "--describe", *of_all, shows=lambda text: "7200000" in text)
    desk.see_when("of 3", CONFIGS, "--describe", *of_3, shows=lambda text: "3600000" in text)
    desk.see("of the topic", CONFIGS, "--describe", *of_topic)
    desk.see(
        "unset for all",
        CONFIGS,
        "--alter",
        *of_all,
        "--delete-config",
        "log.retention.ms,min.insync.replicas",
    )


def loses_a_broker(desk: Desk) -> None:
    desk.cluster.nodes[3].stop()
    filters = (
        "--under-replicated-partitions",
        "--under-min-isr-partitions",
        "--at-min-isr-partitions",
        "--unavailable-partitions",
    )
    desk.see_when(
        "without 3", TOPICS, "--describe", "--topic", "t", shows=lambda text: "Leader: 3" not in text
    )
    for each in filters:
        desk.see(each, TOPICS, "--describe", "--topic", "t", each)
    preferred = ("--election-type", "preferred")
    desk.see("elect 3, which is gone", ELECTION, *preferred, "--topic", "t", "--partition", "2")
    desk.see("elect 3 uncleanly", ELECTION, "--election-type", "unclean", "--topic", "t", "--partition", "2")
    with a_file(a_plan([3], "t")) as plan:
        desk.see("move to 3, which is gone", REASSIGN, "--reassignment-json-file", plan, "--execute")
    fenced = ("list-endpoints", "--include-fenced-brokers")
    desk.seen["fenced endpoints"] = sorted(desk.run(CLUSTER, *fenced))
    desk.cluster.start_again(3)
    desk.cluster.until_in_sync("t", 3)
    desk.see("elect all preferred", ELECTION, *preferred, "--all-topic-partitions")
    desk.see("elect again", ELECTION, *preferred, "--topic", "t", "--partition", "2")
    desk.see_when("with 3", TOPICS, "--describe", "--topic", "t", shows=lambda text: "Leader: 3" in text)


def moves(desk: Desk) -> None:
    desk.see(
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
    desk.cluster.until_in_sync("t-moved")
    filled = ("--topic", "t-moved", "--num-records", "3000", "--record-size", "1000", "--throughput", "-1")
    run(
        f"{TOOLS}.ProducerPerformance",
        *filled,
        "--producer-props",
        f"bootstrap.servers={desk.cluster.bootstrap}",
    )
    described = ("--describe", "--topic", "t-moved")
    with a_file(a_plan([3, 2])) as plan:
        given = ("--reassignment-json-file", plan)
        desk.see("move", REASSIGN, *given, "--execute", "--throttle", SLOW)
        desk.see("verify", REASSIGN, *given, "--verify")
        desk.see("list", REASSIGN, "--list")
        desk.see("while moved", TOPICS, *described)
        desk.see("cancel", REASSIGN, *given, "--cancel")
        desk.see_when("cancelled", TOPICS, *described, shows=is_at_rest)
        desk.see("nothing to cancel", REASSIGN, *given, "--cancel")
        desk.see("move again", REASSIGN, *given, "--execute", "--throttle", SLOW)
        desk.see("faster", REASSIGN, *given, "--execute", "--throttle", "100000000", "--additional")
        desk.see_when("moved", REASSIGN, *given, "--verify", shows=lambda text: "is completed" in text)
        desk.see_when("described when moved", TOPICS, *described, shows=is_at_rest)
        desk.see(
            "no throttle is left",
            CONFIGS,
            "--describe",
            "--entity-type",
            "topics",
            "--entity-name",
            "t-moved",
        )
    with a_file(a_plan([1, 7])) as plan:
        desk.see("move to a stranger", REASSIGN, "--reassignment-json-file", plan, "--execute")
    with a_file(a_plan([1, 1])) as plan:
        desk.see("move twice to one", REASSIGN, "--reassignment-json-file", plan, "--execute")


def verifies(desk: Desk) -> None:
    """kafka-replica-verification runs until it is ended."""
    asked = (
        "--broker-list",
        desk.cluster.bootstrap,
        "--topics-include",
        "t|t-moved",
        "--report-interval-ms",
        "1000",
    )
    process = start_tool(f"{TOOLS}.ReplicaVerificationTool", *asked, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    told = [process.stdout.readline().decode() for _ in range(4)]
    process.terminate()
    process.wait()
    lines = [steady(line.partition(": ")[2]) for line in told]
    desk.seen["replicas verified"] = [
        re.sub(r"partition \S+ at offset \d+", "partition <any> at offset <n>", line) for line in lines
    ]


def removes(desk: Desk) -> None:
    desk.cluster.nodes[3].stop()
    desk.see("unregister a stranger", CLUSTER, "unregister", "--id", "7")
    desk.see("unregister who is gone", CLUSTER, "unregister", "--id", "3")
    desk.seen["endpoints without 3"] = sorted(desk.run(CLUSTER, "list-endpoints", "--include-fenced-brokers"))
    desk.see("replicas of nobody", TOPICS, "--describe", "--topic", "t")
    desk.see("deleted", TOPICS, "--delete", "--topic", "t.*")
    desk.see_when("all topics", TOPICS, "--list", shows=lambda text: "t-moved" not in text)


PARTS = (
    looks_at_the_cluster,
    makes_topics,
    looks_for_transactions,
    configures,
    loses_a_broker,
    moves,
    verifies,
    removes,
)


def play(
    parts: Iterable[Callable[[Desk], None]],
    name: str,
    makeup: str,
    record: Record,
    settings: dict[str, str] | None = None,
) -> None:
    """Use the tools on a cluster, and hold what they print against what they print of Apache Kafka's."""
    with Cluster(MAKEUPS[makeup], settings).start() as cluster:
        desk = Desk(cluster)
        try:
            for part in parts:
                part(desk)
        finally:
            seen = plain(desk.seen)
            record.save(f"{name}.{makeup}", seen)
    if makeup == "kafka":
        return
    found = compare(name, record.load(f"{name}.kafka"), seen)
    assert not found, "\n" + table(found)


@pytest.mark.parametrize("makeup", sorted(MAKEUPS, key="kafka".__ne__))  # the others are held against it
def test_tools_print_the_same(makeup: str, record: Record) -> None:
    play(PARTS, "cluster.tools", makeup, record)

"""Cluster tools: versions, features, quorum, elections, reassignments, and the metadata log."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from interop.brokers import Broker, run_tool
from interop.scenario import scenario
from interop.tools import IMPATIENT, TOOLS, Outcome, a_file, another, lines_of, run, said, until

TOPICS = f"{TOOLS}.TopicCommand"
FEATURES = f"{TOOLS}.FeatureCommand"
QUORUM = f"{TOOLS}.MetadataQuorumCommand"
UNADVERTISED = ("eligible.leader.replicas", "share", "streams")
"""Features whose levels kwire stores but does not advertise, because kwire does not implement them yet."""


@scenario(seconds=60)
def versions_and_cluster_id(broker: Broker) -> Any:
    """Run kafka-cluster and kafka-broker-api-versions."""
    tool = f"{TOOLS}.ClusterTool"
    seen: dict[str, Any] = {}
    for label, arguments in {
        "id": ("cluster-id",),
        "endpoints": ("list-endpoints",),
        "endpoints and fenced": ("list-endpoints", "--include-fenced-brokers"),
        "unregister an unknown broker": ("unregister", "--id", "77"),
    }.items():
        outcome = run(tool, *arguments, "--bootstrap-server", broker.bootstrap)
        text = outcome.stdout.replace(str(broker.port), "<port>")
        seen[label] = lines_of(outcome._replace(stdout=text))
    of_controllers = ("--bootstrap-controller", f"127.0.0.1:{broker.port}")
    with a_file(IMPATIENT) as settings:
        outcome = run(tool, "cluster-id", *of_controllers, "--command-config", settings)
    seen["asked as a controller"] = lines_of(outcome)[-1]
    versions = said(f"{TOOLS}.BrokerApiVersionsCommand", broker)
    seen["versions"] = [versions[0], versions[-1]]
    known = {match[1]: match[2] for line in versions if (match := re.match(r"(\w+)\(\d+\): ([^,]*)", line))}
    wanted = ("Produce", "Fetch", "Metadata", "ConsumerGroupHeartbeat", "DescribeQuorum", "UpdateFeatures")
    seen["versions of"] = {name: known.get(name) for name in wanted}
    return seen


def without_unadvertised(lines: list[str]) -> list[str]:
    """Remove the lines about features in `UNADVERTISED`, hide the finalized epoch, and sort the lines."""
    kept = [line for line in lines if not any(f"Feature: {name}.version" in line for name in UNADVERTISED)]
    return sorted(re.sub(r"Epoch: \d+", "Epoch: <n>", line) for line in kept)


@scenario(seconds=120)
def features(broker: Broker) -> Any:
    """Run kafka-features: describe, upgrade and downgrade features, also with errors."""
    with another(broker) as own:
        return observe_level_changes(own)


def observe_level_changes(broker: Broker) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def levels() -> list[str]:
        return without_unadvertised(said(FEATURES, broker, "describe"))

    def wait_for_level(level: int) -> None:
        until(lambda: any("transaction" in line and f"Level: {level} " in line for line in levels()))

    seen["describe"] = levels()
    for label, arguments in {
        "metadata down": ("downgrade", "--metadata", "3.9"),
        "metadata down at any price": ("downgrade", "--metadata", "3.9", "--unsafe"),
        "metadata up": ("upgrade", "--metadata", "4.3-IV0"),
        "metadata up too far": ("upgrade", "--metadata", "99.0"),
        "release": ("upgrade", "--release-version", "4.3"),
        "release down": ("downgrade", "--release-version", "3.9"),
        "unknown release": ("upgrade", "--release-version", "0.1"),
        "unknown feature": ("upgrade", "--feature", "no.such.version=1"),
        "no level": ("upgrade", "--feature", "group.version"),
        "beyond": ("upgrade", "--feature", "group.version=7"),
        "up that is down": ("upgrade", "--feature", "transaction.version=1"),
        "down that is up": ("downgrade", "--feature", "transaction.version=3"),
        "dry run": ("downgrade", "--feature", "transaction.version=1", "--dry-run"),
        "quorum, dry run": ("upgrade", "--feature", "kraft.version=1", "--dry-run"),
        "disable, dry run": ("disable", "--feature", "group.version", "--dry-run"),
        "disable the metadata": ("disable", "--feature", "metadata.version"),
        "nothing": ("upgrade",),
        "two": (
            *("downgrade", "--feature", "transaction.version=1"),
            *("--feature", "group.version=0", "--dry-run"),
        ),
        "mapping": ("version-mapping",),
        "mapping of a release": ("version-mapping", "--release-version", "4.0"),
        "dependencies": ("feature-dependencies", "--feature", "transaction.version=2"),
        "dependencies of nothing": ("feature-dependencies", "--feature", "no.such.version=2"),
        "down": ("downgrade", "--feature", "transaction.version=1"),
    }.items():
        seen[label] = said(FEATURES, broker, *arguments)
    wait_for_level(1)
    seen["is down"] = levels()
    seen["up"] = said(FEATURES, broker, "upgrade", "--feature", "transaction.version=2")
    wait_for_level(2)
    seen["is up"] = levels()
    seen["quorum down"] = said(FEATURES, broker, "downgrade", "--feature", "kraft.version=0")
    seen["quorum"] = observe_quorum(broker)
    broker.restart()
    seen["after a restart"] = [levels(), observe_quorum(broker)]
    return seen


@scenario(seconds=60)
def quorum(broker: Broker) -> Any:
    """Describe the status and the replicas with kafka-metadata-quorum."""
    return observe_quorum(broker)


def observe_quorum(broker: Broker) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def requested(*arguments: str) -> list[str]:
        outcome = run(QUORUM, "--bootstrap-server", broker.bootstrap, *arguments)
        text = outcome.stdout.replace(str(broker.controller_port), "<controller>")
        return lines_of(outcome._replace(stdout=text))

    status = requested("describe", "--status")
    seen["status"] = [re.sub(r"(HighWatermark|LeaderEpoch): \d+", r"\1: <n>", line) for line in status]
    seen["far"] = any(re.match(r"HighWatermark: \d\d+$", line) for line in status)
    for label, arguments in {"replication": (), "readable": ("--human-readable",)}.items():
        lines = requested("describe", "--replication", *arguments)
        rows = [line.split(" ") for line in lines[1:-1]]
        # Offsets and times differ between brokers.
        seen[label] = [lines[0], [[row[0], row[1], row[3], row[-1]] for row in rows], lines[-1]]
    seen["nothing"] = requested("describe")
    seen["both"] = requested("describe", "--status", "--replication")
    return seen


@scenario(seconds=60)
def leader_elections(broker: Broker) -> Any:
    """Run kafka-leader-election for one partition, for a file of partitions, and for all partitions."""
    tool = f"{TOOLS}.LeaderElectionCommand"
    said(TOPICS, broker, "--create", "--topic", "tools-elections", "--partitions", "2")
    one = ("--topic", "tools-elections", "--partition", "0")
    seen: dict[str, Any] = {}
    for label, arguments in {
        "preferred": ("--election-type", "preferred", *one),
        "unclean": ("--election-type", "unclean", *one),
        "another partition": (
            *("--election-type", "preferred", "--topic", "tools-elections"),
            *("--partition", "7"),
        ),
        "another topic": ("--election-type", "preferred", "--topic", "tools-nothing", "--partition", "0"),
        "all": ("--election-type", "preferred", "--all-topic-partitions"),
        "all unclean": ("--election-type", "unclean", "--all-topic-partitions"),
        "no kind": (*one,),
        "unknown kind": ("--election-type", "democratic", *one),
        "no partition": ("--election-type", "preferred", "--topic", "tools-elections"),
        "nothing": ("--election-type", "preferred"),
    }.items():
        seen[label] = said(tool, broker, *arguments)
    for label, partitions in {
        "of a file": [("tools-elections", 0), ("tools-elections", 1)],
        "of a mixed file": [("tools-elections", 0), ("tools-nothing", 0)],
        "of a file twice": [("tools-elections", 0), ("tools-elections", 0)],
        "of an empty file": [],
    }.items():
        wanted = {"partitions": [{"topic": topic, "partition": index} for topic, index in partitions]}
        with a_file(json.dumps(wanted)) as path:
            seen[label] = said(tool, broker, "--election-type", "preferred", "--path-to-json-file", path)
    return seen


@scenario(seconds=120)
def partition_reassignments(broker: Broker) -> Any:
    """Generate, execute, verify, cancel and list reassignments with kafka-reassign-partitions."""
    tool = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    topic = "tools-moves"
    said(TOPICS, broker, "--create", "--topic", topic, "--partitions", "2")
    seen: dict[str, Any] = {}

    def plan(*partitions: tuple[str, int, list[int]], **more: Any) -> str:
        moved = [
            {"topic": name, "partition": index, "replicas": replicas, **more}
            for name, index, replicas in partitions
        ]
        return json.dumps({"version": 1, "partitions": moved})

    def given(text: str, *arguments: str) -> list[str]:
        with a_file(text) as path, a_file(IMPATIENT) as settings:
            files = ("--reassignment-json-file", path, "--command-config", settings)
            return said(tool, broker, *arguments, *files)

    for label, arguments in {
        "generate": ("--broker-list", "1"),
        "generate rack aware": ("--broker-list", "1", "--disable-rack-aware"),
        "generate for others": ("--broker-list", "1,7"),
    }.items():
        with a_file(json.dumps({"version": 1, "topics": [{"topic": topic}]})) as path:
            seen[label] = said(tool, broker, "--generate", "--topics-to-move-json-file", path, *arguments)
    with a_file(json.dumps({"version": 1, "topics": [{"topic": "tools-nothing"}]})) as path:
        generate = ("--generate", "--topics-to-move-json-file", path, "--broker-list", "1")
        seen["generate for nothing"] = said(tool, broker, *generate)
    stay = plan((topic, 0, [1]), (topic, 1, [1]))
    for label, (text, *more) in {
        "execute": (stay, "--execute"),
        "verify": (stay, "--verify"),
        "verify, throttles left": (stay, "--verify", "--preserve-throttles"),
        "cancel": (stay, "--cancel"),
        "cancel, throttles left": (stay, "--cancel", "--preserve-throttles"),
        "execute to an unknown broker": (plan((topic, 0, [7])), "--execute"),
        "execute to no replicas": (plan((topic, 0, [])), "--execute"),
        "execute twice over": (plan((topic, 0, [1, 1])), "--execute"),
        "execute of one twice": (plan((topic, 0, [1]), (topic, 0, [1])), "--execute"),
        "execute of nothing": (plan(("tools-nothing", 0, [1])), "--execute"),
        "execute of another partition": (plan((topic, 7, [1])), "--execute"),
        "verify of nothing": (plan(("tools-nothing", 0, [1])), "--verify"),
        "verify with an unknown broker": (plan((topic, 0, [7])), "--verify"),
        "execute of a wrong file": ("{}", "--execute"),
        "execute to a directory": (
            plan((topic, 0, [1]), log_dirs=["/no/such/directory"]),
            "--execute",
        ),
        "execute, factor kept": (stay, "--execute", "--disallow-replication-factor-change"),
        "factor changed": (
            plan((topic, 0, [1, 7])),
            *("--execute", "--disallow-replication-factor-change"),
        ),
    }.items():
        seen[label] = given(text, *more)
    seen["list"] = said(tool, broker, "--list")
    seen["nothing"] = said(tool, broker)[:2]
    seen["after"] = said(TOPICS, broker, "--describe", "--topic", topic)
    return seen


@scenario(seconds=60)
def acls(broker: Broker) -> Any:
    """Run kafka-acls on a broker without an authorizer. Record the exit statuses, as the messages differ."""
    tool = f"{TOOLS}.AclCommand"
    added = ("--add", "--allow-principal", "User:x", "--operation", "read", "--topic", "t")
    return {
        "list": said(tool, broker, "--list")[-1],
        "add": said(tool, broker, *added)[-1],
        "no verb": said(tool, broker)[-1],
    }


SHELL_AT_START = "offset -1, epoch -1"
"""The prompt of the metadata shell before the shell has loaded the file, as it appears on busy machines."""
SHELL_TRIES = 4


@scenario(seconds=120)
def metadata(broker: Broker) -> Any:
    """Read a metadata log and a snapshot with kafka-metadata-shell and kafka-dump-log."""
    with another(broker, {"metadata.log.max.snapshot.interval.ms": "1000"}) as own:
        said(TOPICS, own, "--create", "--topic", "tools.metadata", "--config", "retention.ms=1000")
        directory = own.log_dir / "__cluster_metadata-0"

        def snapshots() -> list[Path]:
            found = sorted(directory.glob("*.checkpoint"))
            return [path for path in found if b"tools.metadata" in path.read_bytes()]

        until(lambda: bool(snapshots()), 30)
        own.stop()
        kinds = {"log": directory / ("0" * 20 + ".log"), "snapshot": snapshots()[-1]}
        return {kind: observe_metadata(own, path) for kind, path in kinds.items()}


def observe_metadata(broker: Broker, path: Path) -> dict[str, Any]:
    """Return the output of the metadata tools for a file."""
    seen: dict[str, Any] = {}
    for label, arguments in {
        "tree": ("tree", "/image"),
        "list": ("ls", "/image/topics/byName"),
        "nothing": ("ls", "/no/such/place"),
    }.items():
        # The shell needs a JVM of its own, because it may call System.exit.
        ran = run_tool("org.apache.kafka.shell.MetadataShell", "--snapshot", str(path), *arguments)
        for _ in range(SHELL_TRIES):
            # If the shell has loaded only a part of the file, it shows no topics yet. Then try again.
            if SHELL_AT_START not in ran.stdout and (label != "list" or ran.stdout.strip()):
                break
            ran = run_tool("org.apache.kafka.shell.MetadataShell", "--snapshot", str(path), *arguments)
        outcome = Outcome(normalize_records(ran.stdout, broker), "", ran.returncode)
        seen[label] = lines_of(outcome)
    dumped = run(f"{TOOLS}.DumpLogSegments", "--cluster-metadata-decoder", "--files", str(path))
    kinds = set(re.findall(r'"type":"(\w+)","version":(\d+)', dumped.stdout))
    seen["dumped"] = [dumped.status, sorted(kinds - {("NO_OP_RECORD", "0")})]
    seen["leaders"] = sorted(set(re.findall(r"LeaderChange: (.*)", dumped.stdout)))
    return seen


def normalize_records(text: str, broker: Broker) -> str:
    """Replace ports, epochs, offsets and ids in printed records by placeholders."""
    text = text.replace(str(broker.controller_port), "<controller>").replace(str(broker.port), "<port>")
    text = re.sub(r"\b(\w*[eE]poch)([=:])\d+", r"\1\2<n>", text)
    text = re.sub(r"offset \d+, epoch \d+, time \S+", "<place>", text)
    return re.sub(r"(?<![\w-])(?!(?:[A-Z][a-z]+)+(?![\w-]))[\w-]{22}(?![\w-])", "<id>", text)

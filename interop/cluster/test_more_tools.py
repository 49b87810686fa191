"""Kafka's admin tools on a cluster of three nodes: the output must be the same for kwire and Apache Kafka.

The tools add partitions, delete records and offsets, throttle replicas, and elect leaders uncleanly.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from interop.cluster.nodes import CLUSTER_KINDS
from interop.cluster.test_tools import (
    CONFIGS,
    ELECTION,
    GROUPS,
    REASSIGN,
    TOPICS,
    ToolSession,
    a_plan,
    run_parts,
)
from interop.tools import TOOLS, a_file

if TYPE_CHECKING:
    from interop.record import Record

OFFSETS = f"{TOOLS}.GetOffsetShell"
PRODUCER = f"{TOOLS}.ConsoleProducer"
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
TRANSACTIONS = f"{TOOLS}.TransactionsCommand"
UNCLEAN = ("--election-type", "unclean")


def produce_lines(session: ToolSession, label: str, topic: str, count: int, *more: str) -> None:
    text = "".join(f"{topic}:value {number}\n" for number in range(count))
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    session.record_output(label, PRODUCER, "--topic", topic, *keyed, *more, stdin=text)


def change_topics(session: ToolSession) -> None:
    one = ("--topic", "a")
    session.record_output("made", TOPICS, "--create", *one, "--partitions", "2", "--replication-factor", "3")
    session.cluster.wait_until_in_sync("a", 2)
    session.record_output("made if it is not there", TOPICS, "--create", *one, "--if-not-exists")
    session.record_output(
        "made with a wrong setting", TOPICS, "--create", "--topic", "b", "--config", "retention.ms=x"
    )
    session.record_output("made of too many", TOPICS, "--create", "--topic", "b", "--replication-factor", "4")
    session.record_output("more partitions", TOPICS, "--alter", *one, "--partitions", "3")
    session.record_output("less partitions", TOPICS, "--alter", *one, "--partitions", "1")
    assigned = ("--partitions", "5", "--replica-assignment", "1:2:3,1:2:3,1:2:3,3:2:1,2:1:3")
    session.record_output("more partitions in their places", TOPICS, "--alter", *one, *assigned)
    assigned = ("--partitions", "6", "--replica-assignment", "1:2:3,1:2:3,1:2:3,3:2:1,2:1:3,1:9")
    session.record_output("more partitions on a stranger", TOPICS, "--alter", *one, *assigned)
    session.cluster.wait_until_in_sync("a", 5)
    for setting in (
        "min.insync.replicas=3",
        "cleanup.policy=[compact,delete]",
        "unclean.leader.election.enable=x",
    ):
        session.record_output(f"set {setting}", CONFIGS, "--alter", *topic("a"), "--add-config", setting)
    session.record_output(
        "unset what is not set", CONFIGS, "--alter", *topic("a"), "--delete-config", "retention.ms"
    )
    session.record_when(
        "with overrides", TOPICS, "--describe", "--topics-with-overrides", "--exclude-internal",
        shows=lambda text: "min.insync.replicas=3" in text,
    )  # fmt: skip
    session.seen["with overrides"] = [
        re.sub(r"Replicas: .*?(\tElr|$)", r"Replicas: <some>\1", re.sub(r"Leader: \d", "Leader: <n>", line))
        for line in session.seen["with overrides"]
        if "Partition: 3" in line or "Partition: 4" in line or "PartitionCount" in line
    ]
    session.record_output("at its minimum", TOPICS, "--describe", *one, "--at-min-isr-partitions")
    session.seen["at its minimum"] = len(session.seen["at its minimum"])
    session.record_output("deleted", TOPICS, "--delete", *one)
    session.record_when("all topics", TOPICS, "--list", shows=lambda text: "a" not in text.splitlines())
    session.record_output("deleted again", TOPICS, "--delete", *one)


def topic(name: str) -> tuple[str, ...]:
    return ("--entity-type", "topics", "--entity-name", name)


def broker(node_id: int) -> tuple[str, ...]:
    return ("--entity-type", "brokers", "--entity-name", str(node_id))


def throttle(session: ToolSession) -> None:
    rates = "leader.replication.throttled.rate=10000,follower.replication.throttled.rate=10000"
    for node_id in (1, 3):
        session.record_output(
            f"throttle {node_id}", CONFIGS, "--alter", *broker(node_id), "--add-config", rates
        )
        session.record_when(
            f"throttled {node_id}",
            CONFIGS,
            "--describe",
            *broker(node_id),
            shows=lambda text: "10000" in text,
        )
    session.record_output(
        "made to be throttled", TOPICS, "--create", "--topic", "c", "--replica-assignment", "1:2,2:3"
    )
    session.cluster.wait_until_in_sync("c", 2)
    replicas = "leader.replication.throttled.replicas=[0:1,1:2],follower.replication.throttled.replicas=*"
    session.record_output("throttled replicas", CONFIGS, "--alter", *topic("c"), "--add-config", replicas)
    wrong = "leader.replication.throttled.replicas=nobody"
    session.record_output(
        "wrongly throttled replicas", CONFIGS, "--alter", *topic("c"), "--add-config", wrong
    )
    produce_lines(session, "written while throttled", "c", 100)
    session.record_output("offsets while throttled", OFFSETS, "--topic", "c")
    with a_file(json.dumps({"version": 1, "topics": [{"topic": "c"}]})) as wanted:
        given = ("--topics-to-move-json-file", wanted, "--broker-list", "1,2,3", "--generate")
        output = session.run(REASSIGN, *given)
        # The replica placement that the tool proposes is random.
        session.seen["proposed"] = [line for line in output if "Proposed" not in line][:2]
    with a_file(a_plan([1], "c")) as plan:
        of_it = ("--reassignment-json-file", plan)
        refused = ("--execute", "--disallow-replication-factor-change")
        session.record_output("fewer replicas, refused", REASSIGN, *of_it, *refused)
        session.record_output("fewer replicas", REASSIGN, *of_it, "--execute")
        session.record_when(
            "fewer replicas, done", REASSIGN, *of_it, "--verify", shows=lambda text: "is completed" in text
        )
    for node_id in (1, 3):
        names = "leader.replication.throttled.rate,follower.replication.throttled.rate"
        session.record_output(
            f"no throttle {node_id}", CONFIGS, "--alter", *broker(node_id), "--delete-config", names
        )
    session.record_output("left of the topic", CONFIGS, "--describe", *topic("c"))


def delete_records(session: ToolSession) -> None:
    session.record_output(
        "made to be emptied", TOPICS, "--create", "--topic", "d", "--replica-assignment", "1:2:3,2:3:1,3:1:2"
    )
    session.cluster.wait_until_in_sync("d", 3)
    produce_lines(session, "written", "d", 30)
    index = next(n for n, line in enumerate(session.run(OFFSETS, "--topic", "d")) if line.endswith(":30"))
    for label, offset in (("some", 10), ("too many", 99)):
        partitions = [{"topic": "d", "partition": index, "offset": offset}]
        with a_file(json.dumps({"version": 1, "partitions": partitions})) as wanted:
            session.record_output(
                f"deleted {label}", f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", wanted
            )
    for time in ("-1", "-2", "-4", "-5", "0", "99999999999999"):
        session.record_output(f"offsets at {time}", OFFSETS, "--topic", "d", "--time", time)
    read = ("--topic", "d", "--group", "g", "--from-beginning", "--max-messages", "20")
    session.seen["read"] = len(session.run(CONSUMER, *read))
    for label, arguments in {
        "members": ("--describe", "--group", "g", "--members", "--verbose"),
        "state": ("--describe", "--group", "g", "--state"),
        "all states": ("--list", "--state"),
        "offsets of no topic deleted": ("--delete-offsets", "--group", "g", "--topic", "nope"),
        "offsets deleted": ("--delete-offsets", "--group", "g", "--topic", "d"),
        "group deleted": ("--delete", "--group", "g"),
        "group deleted again": ("--delete", "--group", "g"),
    }.items():
        output = session.run(GROUPS, *arguments)
        # The coordinator may be any of the brokers.
        session.seen[label] = [
            re.sub(r"127\.0\.0\.1\S* *(<port>)? *\(\d\)", "<coordinator>", line) for line in output
        ]


def list_transactions(session: ToolSession) -> None:
    producer = Producer(
        {"bootstrap.servers": session.cluster.bootstrap, "transactional.id": "tx", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("d", b"value", partition=0)
    producer.commit_transaction(30)
    session.record_when(
        "no hanging transaction", TRANSACTIONS, "find-hanging", "--topic", "d", "--partition", "0",
        shows=lambda text: "exit 0" in text,
    )  # fmt: skip
    of_it = ("describe", "--transactional-id", "tx")
    session.record_when("transaction", TRANSACTIONS, *of_it, shows=lambda text: "CompleteCommit" in text)
    session.seen["transaction"] = [re.sub(r"\b\d+\b", "<n>", line) for line in session.seen["transaction"]]
    output = session.run(TRANSACTIONS, "list")
    session.seen["transactions"] = [re.sub(r"\b\d+\b", "<n>", line) for line in output]
    session.record_output("no transaction", TRANSACTIONS, "describe", "--transactional-id", "nobody")


def elect_uncleanly(session: ToolSession) -> None:
    cluster = session.cluster
    made = ("--create", "--replica-assignment", "2:3", "--config", "min.insync.replicas=1")
    for name in ("e", "f"):
        session.record_output(f"made {name}", TOPICS, *made, "--topic", name)
        cluster.wait_until_in_sync(name)
    produce_lines(session, "to both of e", "e", 10)
    cluster.nodes[3].kill()
    described = ("--describe", "--topic", "e")
    session.record_when("one is left", TOPICS, *described, shows=lambda text: "Isr: 2 " in text)
    session.record_when(
        "one is left of f", TOPICS, "--describe", "--topic", "f", shows=lambda text: "Isr: 2 " in text
    )
    produce_lines(session, "to the one of e", "e", 10)
    cluster.nodes[2].kill()
    session.record_when("none is left", TOPICS, *described, shows=lambda text: "Leader: none" in text)
    cluster.nodes[3].start()
    cluster.wait_until_unfenced(3)
    at = ("--topic", "e", "--partition", "0")
    session.record_output("the wrong one is back", TOPICS, *described)
    session.record_output("unavailable", TOPICS, "--describe", "--unavailable-partitions", "--topic", "e")
    session.record_output("elected cleanly", ELECTION, "--election-type", "preferred", *at)
    session.record_output("elected uncleanly", ELECTION, *UNCLEAN, *at)
    session.record_when("elected", TOPICS, *described, shows=lambda text: "Leader: 3" in text)
    session.record_output("elected again", ELECTION, *UNCLEAN, *at)
    session.record_output(
        "a partition that is not there", ELECTION, *UNCLEAN, "--topic", "e", "--partition", "7"
    )
    session.record_output("offsets after it", OFFSETS, "--topic", "e")
    enabled = ("--add-config", "unclean.leader.election.enable=true")
    session.record_output("allow unclean election for f", CONFIGS, "--alter", *topic("f"), *enabled)
    session.record_when(
        "f is led", TOPICS, "--describe", "--topic", "f", shows=lambda text: "Leader: 3" in text
    )
    produce_lines(session, "to e without what was lost", "e", 3)
    cluster.start_node(2)
    for name in ("e", "f"):
        cluster.wait_until_in_sync(name)
        cluster.wait_until_replicas_equal(name)
    session.record_output("offsets of all", OFFSETS, "--topic", "e")
    session.record_output("elect the preferred ones", ELECTION, "--election-type", "preferred", *at)
    session.record_when("led as preferred", TOPICS, *described, shows=lambda text: "Leader: 2" in text)


PARTS = (change_topics, throttle, delete_records, list_transactions, elect_uncleanly)
SETTINGS = {"unclean.leader.election.interval.ms": "1000"}


@pytest.mark.parametrize(
    "cluster_kind", sorted(CLUSTER_KINDS, key="kafka".__ne__)
)  # "kafka" runs first, because the others are compared with its record
def test_admin_tools_print_the_same_as_for_apache_kafka(cluster_kind: str, record: Record) -> None:
    run_parts(PARTS, "cluster.more_tools", cluster_kind, record, SETTINGS)

"""More of Kafka's tools on a cluster of three: what they print of kwire is what they print of Apache Kafka.

Partitions are added, records and offsets deleted, replicas throttled, leaders elected uncleanly.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from interop.cluster.nodes import MAKEUPS
from interop.cluster.test_tools import CONFIGS, ELECTION, GROUPS, REASSIGN, TOPICS, Desk, a_plan, play
from interop.tools import TOOLS, a_file

if TYPE_CHECKING:
    from interop.record import Record

OFFSETS = f"{TOOLS}.GetOffsetShell"
PRODUCER = f"{TOOLS}.ConsoleProducer"
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
TRANSACTIONS = f"{TOOLS}.TransactionsCommand"
UNCLEAN = ("--election-type", "unclean")


def lines_to(desk: Desk, label: str, topic: str, count: int, *more: str) -> None:
    text = "".join(f"{topic}:value {number}\n" for number in range(count))
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    desk.see(label, PRODUCER, "--topic", topic, *keyed, *more, stdin=text)


def changes_topics(desk: Desk) -> None:
    one = ("--topic", "a")
    desk.see("made", TOPICS, "--create", *one, "--partitions", "2", "--replication-factor", "3")
    desk.cluster.until_in_sync("a", 2)
    desk.see("made if it is not there", TOPICS, "--create", *one, "--if-not-exists")
    desk.see("made with a wrong setting", TOPICS, "--create", "--topic", "b", "--config", "retention.ms=x")
    desk.see("made of too many", TOPICS, "--create", "--topic", "b", "--replication-factor", "4")
    desk.see("more partitions", TOPICS, "--alter", *one, "--partitions", "3")
    desk.see("less partitions", TOPICS, "--alter", *one, "--partitions", "1")
    assigned = ("--partitions", "5", "--replica-assignment", "1:2:3,1:2:3,1:2:3,3:2:1,2:1:3")
    desk.see("more partitions in their places", TOPICS, "--alter", *one, *assigned)
    assigned = ("--partitions", "6", "--replica-assignment", "1:2:3,1:2:3,1:2:3,3:2:1,2:1:3,1:9")
    desk.see("more partitions on a stranger", TOPICS, "--alter", *one, *assigned)
    desk.cluster.until_in_sync("a", 5)
    for setting in (
        "min.insync.replicas=3",
        "cleanup.policy=[compact,delete]",
        "unclean.leader.election.enable=x",
    ):
        desk.see(f"set {setting}", CONFIGS, "--alter", *topic("a"), "--add-config", setting)
    desk.see("unset what is not set", CONFIGS, "--alter", *topic("a"), "--delete-config", "retention.ms")
    desk.see_when(
        "with overrides", TOPICS, "--describe", "--topics-with-overrides", "--exclude-internal",
        shows=lambda text: "min.insync.replicas=3" in text,
    )  # fmt: skip
    desk.seen["with overrides"] = [
        re.sub(r"Replicas: .*?(\tElr|$)", r"Replicas: <some>\1", re.sub(r"Leader: \d", "Leader: <n>", line))
        for line in desk.seen["with overrides"]
        if "Partition: 3" in line or "Partition: 4" in line or "PartitionCount" in line
    ]
    desk.see("at its minimum", TOPICS, "--describe", *one, "--at-min-isr-partitions")
    desk.seen["at its minimum"] = len(desk.seen["at its minimum"])
    desk.see("deleted", TOPICS, "--delete", *one)
    desk.see_when("all topics", TOPICS, "--list", shows=lambda text: "a" not in text.splitlines())
    desk.see("deleted again", TOPICS, "--delete", *one)


def topic(name: str) -> tuple[str, ...]:
    return ("--entity-type", "topics", "--entity-name", name)


def broker(node_id: int) -> tuple[str, ...]:
    return ("--entity-type", "brokers", "--entity-name", str(node_id))


def throttles(desk: Desk) -> None:
    rates = "leader.replication.throttled.rate=10000,follower.replication.throttled.rate=10000"
    for node_id in (1, 3):
        desk.see(f"throttle {node_id}", CONFIGS, "--alter", *broker(node_id), "--add-config", rates)
        desk.see_when(
            f"throttled {node_id}",
            CONFIGS,
            "--describe",
            *broker(node_id),
            shows=lambda text: "10000" in text,
        )
    desk.see("made to be throttled", TOPICS, "--create", "--topic", "c", "--replica-assignment", "1:2,2:3")
    desk.cluster.until_in_sync("c", 2)
    replicas = "leader.replication.throttled.replicas=[0:1,1:2],follower.replication.throttled.replicas=*"
    desk.see("throttled replicas", CONFIGS, "--alter", *topic("c"), "--add-config", replicas)
    wrong = "leader.replication.throttled.replicas=nobody"
    desk.see("wrongly throttled replicas", CONFIGS, "--alter", *topic("c"), "--add-config", wrong)
    lines_to(desk, "written while throttled", "c", 100)
    desk.see("offsets while throttled", OFFSETS, "--topic", "c")
    with a_file(json.dumps({"version": 1, "topics": [{"topic": "c"}]})) as wanted:
        given = ("--topics-to-move-json-file", wanted, "--broker-list", "1,2,3", "--generate")
        told = desk.run(REASSIGN, *given)
        # Where it would put them is chance.
        desk.seen["proposed"] = [line for line in told if "Proposed" not in line][:2]
    with a_file(a_plan([1], "c")) as plan:
        of_it = ("--reassignment-json-file", plan)
        refused = ("--execute", "--disallow-replication-factor-change")
        desk.see("fewer replicas, refused", REASSIGN, *of_it, *refused)
        desk.see("fewer replicas", REASSIGN, *of_it, "--execute")
        desk.see_when(
            "fewer replicas, done", REASSIGN, *of_it, "--verify", shows=lambda text: "is completed" in text
        )
    for node_id in (1, 3):
        names = "leader.replication.throttled.rate,follower.replication.throttled.rate"
        desk.see(f"no throttle {node_id}", CONFIGS, "--alter", *broker(node_id), "--delete-config", names)
    desk.see("left of the topic", CONFIGS, "--describe", *topic("c"))


def deletes(desk: Desk) -> None:
    desk.see(
        "made to be emptied", TOPICS, "--create", "--topic", "d", "--replica-assignment", "1:2:3,2:3:1,3:1:2"
    )
    desk.cluster.until_in_sync("d", 3)
    lines_to(desk, "written", "d", 30)
    index = next(n for n, line in enumerate(desk.run(OFFSETS, "--topic", "d")) if line.endswith(":30"))
    for label, offset in (("some", 10), ("too many", 99)):
        partitions = [{"topic": "d", "partition": index, "offset": offset}]
        with a_file(json.dumps({"version": 1, "partitions": partitions})) as wanted:
            desk.see(f"deleted {label}", f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", wanted)
    for time in ("-1", "-2", "-4", "-5", "0", "99999999999999"):
        desk.see(f"offsets at {time}", OFFSETS, "--topic", "d", "--time", time)
    read = ("--topic", "d", "--group", "g", "--from-beginning", "--max-messages", "20")
    desk.seen["read"] = len(desk.run(CONSUMER, *read))
    for label, arguments in {
        "members": ("--describe", "--group", "g", "--members", "--verbose"),
        "state": ("--describe", "--group", "g", "--state"),
        "all states": ("--list", "--state"),
        "offsets of no topic deleted": ("--delete-offsets", "--group", "g", "--topic", "nope"),
        "offsets deleted": ("--delete-offsets", "--group", "g", "--topic", "d"),
        "group deleted": ("--delete", "--group", "g"),
        "group deleted again": ("--delete", "--group", "g"),
    }.items():
        told = desk.run(GROUPS, *arguments)
        # Any of the brokers may coordinate it.
        desk.seen[label] = [
            re.sub(r"127\.0\.0\.1\S* *(<port>)? *\(\d\)", "<coordinator>", line) for line in told
        ]


def has_transactions(desk: Desk) -> None:
    producer = Producer(
        {"bootstrap.servers": desk.cluster.bootstrap, "transactional.id": "tx", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("d", b"value", partition=0)
    producer.commit_transaction(30)
    desk.see_when(
        "no hanging transaction", TRANSACTIONS, "find-hanging", "--topic", "d", "--partition", "0",
        shows=lambda text: "exit 0" in text,
    )  # fmt: skip
    of_it = ("describe", "--transactional-id", "tx")
    desk.see_when("transaction", TRANSACTIONS, *of_it, shows=lambda text: "CompleteCommit" in text)
    desk.seen["transaction"] = [re.sub(r"\b\d+\b", "<n>", line) for line in desk.seen["transaction"]]
    told = desk.run(TRANSACTIONS, "list")
    desk.seen["transactions"] = [re.sub(r"\b\d+\b", "<n>", line) for line in told]
    desk.see("no transaction", TRANSACTIONS, "describe", "--transactional-id", "nobody")


def elects_uncleanly(desk: Desk) -> None:
    cluster = desk.cluster
    made = ("--create", "--replica-assignment", "2:3", "--config", "min.insync.replicas=1")
    for name in ("e", "f"):
        desk.see(f"made {name}", TOPICS, *made, "--topic", name)
        cluster.until_in_sync(name)
    lines_to(desk, "to both of e", "e", 10)
    cluster.nodes[3].kill()
    described = ("--describe", "--topic", "e")
    desk.see_when("one is left", TOPICS, *described, shows=lambda text: "Isr: 2 " in text)
    desk.see_when(
        "one is left of f", TOPICS, "--describe", "--topic", "f", shows=lambda text: "Isr: 2 " in text
    )
    lines_to(desk, "to the one of e", "e", 10)
    cluster.nodes[2].kill()
    desk.see_when("none is left", TOPICS, *described, shows=lambda text: "Leader: none" in text)
    cluster.nodes[3].start()
    cluster.until_unfenced(3)
    at = ("--topic", "e", "--partition", "0")
    desk.see("the wrong one is back", TOPICS, *described)
    desk.see("unavailable", TOPICS, "--describe", "--unavailable-partitions", "--topic", "e")
    desk.see("elected cleanly", ELECTION, "--election-type", "preferred", *at)
    desk.see("elected uncleanly", ELECTION, *UNCLEAN, *at)
    desk.see_when("elected", TOPICS, *described, shows=lambda text: "Leader: 3" in text)
    desk.see("elected again", ELECTION, *UNCLEAN, *at)
    desk.see("a partition that is not there", ELECTION, *UNCLEAN, "--topic", "e", "--partition", "7")
    desk.see("offsets after it", OFFSETS, "--topic", "e")
    enabled = ("--add-config", "unclean.leader.election.enable=true")
    desk.see("let f be led by whoever is there", CONFIGS, "--alter", *topic("f"), *enabled)
    desk.see_when("f is led", TOPICS, "--describe", "--topic", "f", shows=lambda text: "Leader: 3" in text)
    lines_to(desk, "to e without what was lost", "e", 3)
    cluster.start_again(2)
    for name in ("e", "f"):
        cluster.until_in_sync(name)
        cluster.until_the_same(name)
    desk.see("offsets of all", OFFSETS, "--topic", "e")
    desk.see("elect the preferred ones", ELECTION, "--election-type", "preferred", *at)
    desk.see_when("led as preferred", TOPICS, *described, shows=lambda text: "Leader: 2" in text)


PARTS = (changes_topics, throttles, deletes, has_transactions, elects_uncleanly)
SETTINGS = {"unclean.leader.election.interval.ms": "1000"}


@pytest.mark.parametrize("makeup", sorted(MAKEUPS, key="kafka".__ne__))  # the others are held against it
def test_more_tools_print_the_same(makeup: str, record: Record) -> None:
    play(PARTS, "cluster.more_tools", makeup, record, SETTINGS)

"""kafka-consumer-groups with all options, and kafka-groups."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from interop.brokers import Broker, start_tool
from interop.scenario import scenario
from interop.tools import IMPATIENT, TOOLS, a_file, said, until

GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
TOPICS = f"{TOOLS}.TopicCommand"


def topic_with_lines(broker: Broker, topic: str, count: int, partitions: int = 1) -> None:
    """Create a topic and produce the lines 0, 1, 2, ... with the same key."""
    said(TOPICS, broker, "--create", "--topic", topic, "--partitions", str(partitions))
    text = "".join(f"k\t{number}\n" for number in range(count))
    keyed = ("--reader-property", "parse.key=true")
    said(f"{TOOLS}.ConsoleProducer", broker, "--topic", topic, *keyed, stdin=text)


def consume_in_group(broker: Broker, group: str, topic: str, count: int, *more: str) -> None:
    """Consume this many records in a group, and commit their offsets."""
    arguments = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", str(count))
    lines = said(CONSUMER, broker, *arguments, *more)
    assert lines[-1] == "exit 0", lines


def group_lines(lines: list[str], word: str) -> list[str]:
    """Return the sorted lines with this word, a header, an error or the exit status."""
    marks = (word, "GROUP", "Error", "exit", "must be", "Option")
    return sorted(line for line in lines if any(mark in line for mark in marks))


@contextmanager
def running_member(broker: Broker, topic: str, group: str, *more: str) -> Iterator[None]:
    """Run a group member during the block. The block starts after the member has read all records."""
    consumer = start_tool(
        CONSUMER,
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", group, "--from-beginning"),
        *("--command-property", "auto.commit.interval.ms=100", *more),
    )

    def settled() -> bool:
        state = said(GROUPS, broker, "--describe", "--group", group, "--state")
        lag = said(GROUPS, broker, "--describe", "--group", group)
        rows = [line.split() for line in lag if line.startswith(group)]
        return any("Stable" in line for line in state) and {row[5] for row in rows} <= {"0"} != set()

    try:
        until(settled, 60)
        yield
    finally:
        consumer.send_signal(signal.SIGTERM)
        consumer.communicate(timeout=30)


@scenario(seconds=120)
def list_and_describe(broker: Broker) -> Any:
    """List and describe empty and unknown groups."""
    topic_with_lines(broker, "tools-groups-look", 5, partitions=2)
    for group in ("tools-look-g1", "tools-look-g2"):
        consume_in_group(broker, group, "tools-groups-look", 5)
    seen: dict[str, Any] = {}
    one = ("--group", "tools-look-g1")
    both = (*one, "--group", "tools-look-g2")
    for label, arguments in {
        "offsets": (*one,),
        "offsets too": (*one, "--offsets"),
        "verbose": (*one, "--verbose"),
        "state": (*one, "--state"),
        "state verbose": (*one, "--state", "--verbose"),
        "members": (*one, "--members"),
        "members verbose": (*one, "--members", "--verbose"),
        "both": both,
        "both states": (*both, "--state"),
        "both members": (*both, "--members"),
        "nobody": ("--group", "tools-nobody"),
        "state of an unknown group": ("--group", "tools-nobody", "--state"),
        "members of an unknown group": ("--group", "tools-nobody", "--members"),
        "no group": (),
        "two views": (*one, "--state", "--members"),
    }.items():
        seen[f"describe {label}"] = sorted(said(GROUPS, broker, "--describe", *arguments))
    for label, arguments in {
        "": (),
        "states": ("--state",),
        "empty ones": ("--state", "Empty"),
        "stable ones": ("--state", "Stable"),
        "unknown state": ("--state", "Asleep"),
        "types": ("--type",),
        "classic ones": ("--type", "classic"),
        "consumer ones": ("--type", "consumer"),
        "unknown type": ("--type", "nonsense"),
        "both": ("--type", "--state"),
    }.items():
        lines = said(GROUPS, broker, "--list", *arguments)
        seen[f"list {label}"] = group_lines(lines, "tools-look")
    whole = said(GROUPS, broker, "--describe", "--all-groups", "--state")
    seen["all groups"] = sorted(line for line in whole if line.startswith("tools-look"))
    return seen


@scenario(seconds=180)
def reset_offsets(broker: Broker) -> Any:
    """Reset offsets with all options: dry run, export and execute."""
    topic, group = "tools-reset", "tools-reset-group"
    topic_with_lines(broker, topic, 20)
    topic_with_lines(broker, "tools-reset-other", 4)
    consume_in_group(broker, group, topic, 20)
    said(
        GROUPS,
        broker,
        *("--reset-offsets", "--group", group, "--topic", "tools-reset-other", "--to-offset", "2"),
        "--execute",
    )
    seen: dict[str, Any] = {}

    def reset(*arguments: str) -> list[str]:
        return sorted(said(GROUPS, broker, "--reset-offsets", *arguments))

    mine = ("--group", group, "--topic", topic)
    for how in (
        ("--to-earliest",),
        ("--to-latest",),
        ("--to-current",),
        ("--to-offset", "7"),
        ("--to-offset", "-5"),
        ("--to-offset", "700"),
        ("--shift-by", "-3"),
        ("--shift-by", "3"),
        ("--shift-by", "-700"),
        ("--shift-by", "700"),
        ("--to-datetime", "2020-01-01T00:00:00.000"),
        ("--to-datetime", "2020-01-01T00:00:00.000Z"),
        ("--to-datetime", "2100-01-01T00:00:00.000+02:00"),
        ("--to-datetime", "yesterday"),
        ("--by-duration", "P1D"),
        ("--by-duration", "PT0S"),
        ("--by-duration", "nonsense"),
    ):
        for execution in ("--dry-run", "--execute"):
            seen[f"{' '.join(how)} {execution}"] = reset(*mine, *how, execution)
        seen[f"after {' '.join(how)}"] = sorted(said(GROUPS, broker, "--describe", "--group", group))
    for label, arguments in {
        "no word": (*mine, "--to-earliest"),
        "both words": (*mine, "--to-earliest", "--dry-run", "--execute"),
        "nowhere": (*mine, "--execute"),
        "two places": (*mine, "--to-earliest", "--to-latest", "--execute"),
        "no topic": ("--group", group, "--to-earliest", "--execute"),
        "all topics": ("--group", group, "--all-topics", "--to-earliest", "--dry-run"),
        "partition": ("--group", group, "--topic", f"{topic}:0", "--to-earliest", "--dry-run"),
        "another partition": ("--group", group, "--topic", f"{topic}:7", "--to-earliest", "--dry-run"),
        "another topic": ("--group", group, "--topic", "tools-nothing", "--to-earliest", "--dry-run"),
        "a new group": ("--group", "tools-reset-new", "--topic", topic, "--to-offset", "3", "--execute"),
        "export": (*mine, "--to-offset", "5", "--export", "--dry-run"),
        "export of two": (
            *("--group", group, "--group", "tools-reset-new", "--topic", topic),
            *("--to-offset", "5", "--export", "--dry-run"),
        ),
        "two groups": (
            *("--group", group, "--group", "tools-reset-new", "--topic", topic),
            *("--to-offset", "5", "--execute"),
        ),
    }.items():
        seen[label] = reset(*arguments)
    for label, text in {
        "from a file": f"{topic},0,9\n",
        "from a file of groups": f"{group},{topic},0,8\ntools-reset-new,{topic},0,4\n",
    }.items():
        with a_file(text) as path:
            second = ("--group", "tools-reset-new") if "groups" in label else ()
            lines = reset("--group", group, *second, "--from-file", path, "--execute")
            seen[label] = [line for line in lines if "given" not in line]
    seen["new group"] = sorted(said(GROUPS, broker, "--describe", "--group", "tools-reset-new"))
    return seen


@scenario(seconds=180)
def deleted(broker: Broker) -> Any:
    """Delete offsets and groups, also unknown ones."""
    topic = "tools-away"
    topic_with_lines(broker, topic, 3)
    topic_with_lines(broker, "tools-away-too", 3)
    group = "tools-away-group"
    for one in (topic, "tools-away-too"):
        consume_in_group(broker, group, one, 3)
    seen: dict[str, Any] = {}
    for label, arguments in {
        "offsets": ("--delete-offsets", "--group", group, "--topic", topic),
        "offsets again": ("--delete-offsets", "--group", group, "--topic", topic),
        "offsets of a partition": ("--delete-offsets", "--group", group, "--topic", f"{topic}:0"),
        "offsets of another": ("--delete-offsets", "--group", group, "--topic", f"{topic}:7"),
        "offsets of nothing": ("--delete-offsets", "--group", group, "--topic", "tools-nothing"),
        "offsets of an unknown group": ("--delete-offsets", "--group", "tools-nobody", "--topic", topic),
        "offsets of no topic": ("--delete-offsets", "--group", group),
        "left": ("--describe", "--group", group),
        "group": ("--delete", "--group", group),
        "group again": ("--delete", "--group", group),
        "nobody": ("--delete", "--group", "tools-nobody"),
        "no group": ("--delete",),
        "described": ("--describe", "--group", group),
    }.items():
        seen[label] = sorted(said(GROUPS, broker, *arguments))
    consume_in_group(broker, "tools-away-1", topic, 3)
    consume_in_group(broker, "tools-away-2", topic, 3)
    three = ("--group", "tools-away-1", "--group", "tools-away-2", "--group", "tools-nobody")
    seen["several"] = sorted(said(GROUPS, broker, "--delete", *three))
    return seen


def observe_group_in_use(broker: Broker, group: str, *more: str) -> dict[str, Any]:
    """Describe a group that has a member, and try changes that require an empty group."""
    topic = f"{group}-topic"
    topic_with_lines(broker, topic, 4, partitions=2)
    seen: dict[str, Any] = {}
    with running_member(broker, topic, group, *more):
        for label, arguments in {
            "offsets": (),
            "state": ("--state",),
            "state verbose": ("--state", "--verbose"),
            "members": ("--members",),
            "members verbose": ("--members", "--verbose"),
            "verbose": ("--verbose",),
        }.items():
            seen[label] = sorted(said(GROUPS, broker, "--describe", "--group", group, *arguments))
        for label, arguments in {
            "reset": ("--reset-offsets", "--topic", topic, "--to-earliest", "--execute"),
            "delete offsets": ("--delete-offsets", "--topic", topic),
            "delete": ("--delete",),
        }.items():
            seen[label] = said(GROUPS, broker, *arguments, "--group", group)
        listed = said(GROUPS, broker, "--list", "--state", "--type")
        seen["listed"] = [line for line in listed if line.startswith(group)]
        groups = said(f"{TOOLS}.GroupsCommand", broker, "--list")
        seen["among all groups"] = [line for line in groups if line.startswith(group)]
    return seen


@scenario(seconds=180)
def classic_member(broker: Broker) -> Any:
    """Observe a classic group with a dynamic member."""
    return observe_group_in_use(broker, "tools-in-use")


@scenario(seconds=180)
def static_member(broker: Broker) -> Any:
    """Observe a classic group with a static member."""
    fixed = ("--command-property", "group.instance.id=tools-fixed")
    return observe_group_in_use(broker, "tools-in-use-static", *fixed)


@scenario(seconds=180)
def consumer_member(broker: Broker) -> Any:
    """Observe a consumer protocol group (KIP-848) with a member."""
    newer = ("--command-property", "group.protocol=consumer")
    return observe_group_in_use(broker, "tools-in-use-newer", *newer)


@scenario(seconds=120)
def group_types(broker: Broker) -> Any:
    """Run kafka-groups with each of its filters."""
    tool = f"{TOOLS}.GroupsCommand"
    topic_with_lines(broker, "tools-kinds", 2)
    consume_in_group(broker, "tools-kinds-1", "tools-kinds", 2)
    seen: dict[str, Any] = {}
    for label, arguments in {
        "all": (),
        "consumer groups": ("--consumer",),
        "classic": ("--group-type", "classic"),
        "consumer": ("--group-type", "consumer"),
        "unknown type": ("--group-type", "nonsense"),
        "protocol": ("--protocol", "consumer"),
        "another protocol": ("--protocol", "connect"),
        "both": ("--group-type", "classic", "--protocol", "consumer"),
        "share groups": ("--share",),
        "streams groups": ("--streams",),
        "two filters": ("--share", "--consumer"),
    }.items():
        lines = said(tool, broker, "--list", *arguments)
        seen[label] = group_lines(lines, "tools-kinds")
    with a_file(IMPATIENT) as settings:
        seen["settings"] = said(tool, broker, "--list", "--share", "--command-config", settings)[-1]
    return seen

"""Readable scripts of consumer groups: commands and their output.

A line without indentation is a command; the indented lines below it are its output. `pytest --rewrite`
replaces the output, to be reviewed as a diff. Time is virtual. The commands are the methods `do_*` below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kwire.coordinator.groups.consumer.requests import ClientIdentity
from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.coordinator.groups.registry import CONSUMER
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from kwire.wire.primitives import Uuid
from tests.coordinator.coordinator_harness import Config, CoordinatorHarness, Reply

FOLDER = Path(__file__).parent / "scripts"
GROUP = "g"
API_VERSION = 1

Assignment = dict[str, list[int]]


def topic_id(name: str) -> Uuid:
    """Return the id of a topic in these tests."""
    return Uuid(name.encode().ljust(16, b"\0"))


def topic_name(of: bytes) -> str:
    """Return the name of the topic with an id."""
    return of.rstrip(b"\0").decode()


@dataclass
class Client:
    """The state of a member on the client."""

    member_id: str
    instance_id: str | None = None
    epoch: int = 0
    assigned: Assignment = field(default_factory=dict)


class Script:
    """Runs commands against a fresh coordinator."""

    def __init__(self) -> None:
        self.harness = CoordinatorHarness(Config())
        self.clients: dict[str, Client] = {}
        self._seen = 0

    def run(self, line: str) -> list[str]:
        """Run one command and return its output."""
        words = line.split()
        values = [word for word in words[1:] if "=" not in word]
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        command: Callable[..., Iterable[str]] = getattr(self, "do_" + words[0])
        return list(command(*values, **options))

    # --- topics, time and the coordinator

    def do_topic(self, name: str, partitions: str) -> Iterator[str]:
        """Create a topic, or add partitions to it."""
        created = name not in self.harness.topics.topics
        self.harness.topics.put(name, int(partitions))
        self.harness.service.topics_changed([name], created=created)
        return iter(())

    def do_drop(self, name: str) -> Iterator[str]:
        """Delete a topic."""
        topic = self.harness.topics.topics[name]
        self.harness.topics.remove(name)
        self.harness.service.topics_changed([name], created=False)
        self.harness.service.on_topics_deleted({name: Uuid(topic.topic_id)})
        return iter(())

    def do_wait(self, delay_ms: str) -> Iterator[str]:
        """Advance the time."""
        self.harness.advance(int(delay_ms))
        return iter(())

    def do_clock(self, skew_ms: str) -> Iterator[str]:
        """Set the skew of the wall clock."""
        self.harness.host.skew_ms = int(skew_ms)
        return iter(())

    def do_restart(self) -> Iterator[str]:
        """Restart the coordinator from its log."""
        self.harness.restart()
        return iter(())

    def do_config(self, **options: str) -> Iterator[str]:
        """Change the broker's settings."""
        for name, value in options.items():
            setattr(self.harness.config, name, int(value))
        return iter(())

    # --- members

    def do_join(self, name: str, topics: str | None = None, **options: str) -> Iterator[str]:
        """Join; the member id is the name, or the option `id`."""
        client = Client(options.pop("id", name), options.get("instance"))
        self.clients[name] = client
        options.setdefault("timeout", "60000")
        return self._send(client, topics=topics, owns="none", **options)

    def do_beat(self, name: str, **options: str) -> Iterator[str]:
        """Send a heartbeat. `owns=all` reports the client's partitions, `owns=t:0,1` other ones."""
        return self._send(self.clients[name], **options)

    def do_leave(self, name: str, epoch: str = "-1") -> Iterator[str]:
        """Leave the group."""
        return self._send(self.clients[name], epoch=epoch)

    def _send(self, client: Client, **options: str | None) -> Iterator[str]:
        epoch = options.get("epoch")
        topics = options.get("topics")
        request = ConsumerGroupHeartbeatRequest(
            group_id=options.get("group") or GROUP,
            member_id=client.member_id,
            member_epoch=client.epoch if epoch is None else int(epoch),
            instance_id=client.instance_id,
            rack_id=options.get("rack"),
            rebalance_timeout_ms=int(options.get("timeout") or -1),
            subscribed_topic_names=None if topics is None else [name for name in topics.split(",") if name],
            subscribed_topic_regex=options.get("regex"),
            server_assignor=options.get("assignor"),
            topic_partitions=_owned(client, options.get("owns")),
        )
        response = self.heartbeat(request, version=int(options.get("version") or API_VERSION))
        if response.error_code:
            yield f"{ErrorCode(response.error_code).name}: {response.error_message}"
            return
        client.epoch = response.member_epoch
        text = f"epoch {response.member_epoch}"
        if response.member_id != client.member_id:
            client.member_id = response.member_id or ""
            text += " with a new id"
        if response.assignment is not None:
            client.assigned = {
                topic_name(topic.topic_id): list(topic.partitions)
                for topic in response.assignment.topic_partitions
            }
            text += f", has {format_assignment(client.assigned)}"
        yield text

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, version: int = API_VERSION
    ) -> ConsumerGroupHeartbeatResponse:
        """Send one request and return its response."""
        reply = Reply()
        self.harness.service.consumer_heartbeat(request, ClientIdentity("c", "/127.0.0.1"), version, reply)
        self.harness.host.run_pending()
        response = reply.value
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    # --- offsets

    def do_commit(
        self, name: str, where: str, offset: str, *, epoch: str | None = None, version: str = "9"
    ) -> Iterator[str]:
        """Commit one offset."""
        client = self.clients[name]
        topic, _, partition = where.partition(":")
        commit = PartitionCommit(topic, int(partition), int(offset), -1, "", topic_id(topic))
        reply = Reply()
        self.harness.service.commit_offsets(
            OffsetCommit(
                GROUP,
                client.epoch if epoch is None else int(epoch),
                client.member_id,
                None,
                [commit],
                None,
                int(version),
            ),
            reply,
        )
        self.harness.host.run_pending()
        yield ErrorCode(reply.value).name

    def do_fetch(self, name: str, *, epoch: str | None = None) -> Iterator[str]:
        """Fetch the group's offsets as a member, or as `nobody` without a member id."""
        client = Client("") if name == "nobody" else self.clients[name]
        reply = Reply()
        self.harness.service.fetch_offsets(
            GROUP,
            lambda stored: {
                topic: {at: one.offset for at, one in all_.items()} for topic, all_ in stored.items()
            },
            reply,
            member_id=client.member_id or None,
            member_epoch=client.epoch if epoch is None else int(epoch),
        )
        self.harness.host.run_pending()
        code, offsets = reply.value
        yield code.name if code else repr(offsets)

    def do_forget(self, where: str) -> Iterator[str]:
        """Send an OffsetDelete for one partition."""
        topic, _, partition = where.partition(":")
        reply = Reply()
        self.harness.service.delete_offsets(GROUP, [(topic, int(partition))], reply)
        self.harness.host.run_pending()
        code, outcome = reply.value
        yield code.name if code else ", ".join(found.name for found in outcome.values())

    # --- administration

    def do_list(self) -> Iterator[str]:
        """Send a ListGroups."""
        for group in self.harness.service.list_groups((), ()):
            yield f"{group.group_id}: {group.group_type} {group.protocol_type} {group.group_state}"

    def do_describe(self) -> Iterator[str]:
        """Send a ConsumerGroupDescribe."""
        reply = Reply()
        self.harness.service.describe_committed(CONSUMER, GROUP, reply)
        self.harness.host.run_pending()
        group = reply.value
        if group.error_code:
            yield f"{ErrorCode(group.error_code).name}: {group.error_message}"
            return
        yield (
            f"{group.group_state}, epoch {group.group_epoch}, "
            f"assignment epoch {group.assignment_epoch}, {group.assignor_name}"
        )
        for member in group.members:
            has = {one.topic_name: one.partitions for one in member.assignment.topic_partitions}
            target = {one.topic_name: one.partitions for one in member.target_assignment.topic_partitions}
            subscribed = ",".join(member.subscribed_topic_names)
            if member.subscribed_topic_regex:
                subscribed += f" /{member.subscribed_topic_regex}/"
            static = f" ({member.instance_id})" if member.instance_id else ""
            yield (
                f"{member.member_id}{static} wants {subscribed}: epoch {member.member_epoch}, "
                f"has {format_assignment(has)} of {format_assignment(target)}"
            )

    def do_delete(self) -> Iterator[str]:
        """Send a DeleteGroups."""
        reply = Reply()
        self.harness.service.delete_groups([GROUP], reply)
        self.harness.host.run_pending()
        yield reply.value[GROUP].name

    def do_records(self) -> Iterator[str]:
        """Print the records that were stored since the last call."""
        records = self.harness.records(GROUP)
        new, self._seen = records[self._seen :], len(records)
        for key, value in new:
            name = type(key).__name__.removesuffix("Key").removeprefix("ConsumerGroup")
            of = getattr(key, "member_id", getattr(key, "regular_expression", ""))
            yield f"{name} {of}".rstrip() + f": {'tombstone' if value is None else _fields(value)}"

    # --- the classic protocol

    def do_classic(self, client: str = "c", *, member: str = "") -> Iterator[str]:
        """Send a JoinGroup, of a new member by default."""
        reply = self.harness.join(GROUP, member, client=client)
        yield "waits" if reply.pending else ErrorCode(reply.value.error_code).name


def format_assignment(assignment: Assignment) -> str:
    """Format partitions by topic, such as `t:0,1`."""
    parts = [f"{topic}:{','.join(map(str, sorted(all_)))}" for topic, all_ in sorted(assignment.items())]
    return " ".join(parts) or "nothing"


def _owned(client: Client, owns: str | None) -> list[RequestTopicPartitions] | None:
    if owns is None:
        return None
    owned: Assignment = {}
    if owns == "all":
        owned = client.assigned
    elif owns != "none":
        for part in owns.split(";"):
            topic, _, partitions = part.partition(":")
            owned[topic] = [int(partition) for partition in partitions.split(",")]
    return [
        RequestTopicPartitions(topic_id=topic_id(topic), partitions=partitions)
        for topic, partitions in owned.items()
    ]


def _fields(value: Any) -> str:
    texts = []
    for name in type(value).__slots__:
        found = getattr(value, name)
        if found in (None, "", [], -1) or name == "metadata_hash":
            continue
        if isinstance(found, bytes):
            found = topic_name(found)
        if isinstance(found, list) and hasattr(found[0], "topic_id"):
            found = " ".join(_partitions(topic) for topic in found)
        texts.append(f"{name} {found}")
    return ", ".join(texts) or "nothing"


def _partitions(topic: Any) -> str:
    epochs = getattr(topic, "assignment_epochs", None) or [None] * len(topic.partitions)
    parts = [
        str(partition) if epoch is None else f"{partition}@{epoch}"
        for partition, epoch in zip(topic.partitions, epochs, strict=True)
    ]
    return f"{topic_name(topic.topic_id)}:{','.join(parts)}"


def run_script(text: str) -> str:
    """Run a script and return it with its current output."""
    script = Script()
    lines = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            try:
                lines += [f"  {output}" for output in script.run(line)]
            except ApiError as error:
                lines.append(f"  {error.code.name}: {error.message}")
    return "\n".join(lines) + "\n"

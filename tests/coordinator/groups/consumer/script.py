"""Scripts of consumer groups that a person can read: commands, and what they answer.

A script is a text. A line that is not indented is a command, and the indented lines below it are its answer.
`pytest --rewrite` writes the answers anew, for a person to review as a diff. Time is virtual; the commands
are the methods `do_*` below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kwire.coordinator.groups.consumer.requests import ClientIdentity
from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from kwire.wire.primitives import Uuid
from tests.coordinator.scripting import Cluster, Config, Reply

FOLDER = Path(__file__).parent / "scripts"
GROUP = "g"
API_VERSION = 1

Assignment = dict[str, list[int]]


def topic_id(name: str) -> Uuid:
    """The id of a topic in these tests."""
    return Uuid(name.encode().ljust(16, b"\0"))


def topic_name(of: bytes) -> str:
    """The topic that an id belongs to."""
    return of.rstrip(b"\0").decode()


@dataclass
class Client:
    """A member as it sees itself."""

    member_id: str
    instance_id: str | None = None
    epoch: int = 0
    assigned: Assignment = field(default_factory=dict)


class Script:
    """Runs commands against a fresh coordinator."""

    def __init__(self) -> None:
        self.cluster = Cluster(Config())
        self.clients: dict[str, Client] = {}
        self._seen = 0

    def run(self, line: str) -> list[str]:
        """The answer to one command."""
        words = line.split()
        values = [word for word in words[1:] if "=" not in word]
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        command: Callable[..., Iterable[str]] = getattr(self, "do_" + words[0])
        return list(command(*values, **options))

    # --- the world

    def do_topic(self, name: str, partitions: str) -> Iterator[str]:
        """Create a topic, or give it more partitions."""
        created = name not in self.cluster.topics.topics
        self.cluster.topics.put(name, int(partitions))
        self.cluster.service.topics_changed([name], created=created)
        return iter(())

    def do_drop(self, name: str) -> Iterator[str]:
        """Delete a topic."""
        topic = self.cluster.topics.topics[name]
        self.cluster.topics.remove(name)
        self.cluster.service.topics_changed([name], created=False)
        self.cluster.service.on_topics_deleted({name: Uuid(topic.topic_id)})
        return iter(())

    def do_wait(self, delay_ms: str) -> Iterator[str]:
        """Let time pass."""
        self.cluster.advance(int(delay_ms))
        return iter(())

    def do_clock(self, skew_ms: str) -> Iterator[str]:
        """Have the clock on the wall be ahead of others, or behind."""
        self.cluster.host.skew_ms = int(skew_ms)
        return iter(())

    def do_restart(self) -> Iterator[str]:
        """Start the coordinator anew, from its log."""
        self.cluster.restart()
        return iter(())

    def do_config(self, **options: str) -> Iterator[str]:
        """Change the broker's settings."""
        for name, value in options.items():
            setattr(self.cluster.config, name, int(value))
        return iter(())

    # --- members

    def do_join(self, name: str, topics: str | None = None, **options: str) -> Iterator[str]:
        """Join; the member's id is its name, unless `id` says otherwise."""
        client = Client(options.pop("id", name), options.get("instance"))
        self.clients[name] = client
        options.setdefault("timeout", "60000")
        return self._send(client, topics=topics, owns="none", **options)

    def do_beat(self, name: str, **options: str) -> Iterator[str]:
        """Send a heartbeat. `owns=all` tells what the client has, `owns=t:0,1` something else."""
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
            text += f", has {shown(client.assigned)}"
        yield text

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, version: int = API_VERSION
    ) -> ConsumerGroupHeartbeatResponse:
        """Send one request, and wait for its answer."""
        reply = Reply()
        self.cluster.service.consumer_heartbeat(request, ClientIdentity("c", "/127.0.0.1"), version, reply)
        self.cluster.host.run_pending()
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
        self.cluster.service.commit_offsets(
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
        self.cluster.host.run_pending()
        yield ErrorCode(reply.value).name

    def do_fetch(self, name: str, *, epoch: str | None = None) -> Iterator[str]:
        """Read the group's offsets as a member, or as nobody."""
        client = Client("") if name == "nobody" else self.clients[name]
        reply = Reply()
        self.cluster.service.fetch_offsets(
            GROUP,
            lambda stored: {
                topic: {at: one.offset for at, one in all_.items()} for topic, all_ in stored.items()
            },
            reply,
            member_id=client.member_id or None,
            member_epoch=client.epoch if epoch is None else int(epoch),
        )
        self.cluster.host.run_pending()
        code, offsets = reply.value
        yield code.name if code else repr(offsets)

    def do_forget(self, where: str) -> Iterator[str]:
        """OffsetDelete for one partition."""
        topic, _, partition = where.partition(":")
        reply = Reply()
        self.cluster.service.delete_offsets(GROUP, [(topic, int(partition))], reply)
        self.cluster.host.run_pending()
        code, outcome = reply.value
        yield code.name if code else ", ".join(found.name for found in outcome.values())

    # --- administration

    def do_list(self) -> Iterator[str]:
        """ListGroups."""
        for group in self.cluster.service.list_groups((), ()):
            yield f"{group.group_id}: {group.group_type} {group.protocol_type} {group.group_state}"

    def do_describe(self) -> Iterator[str]:
        """ConsumerGroupDescribe."""
        reply = Reply()
        self.cluster.service.describe_consumer_group(GROUP, reply)
        self.cluster.host.run_pending()
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
                f"has {shown(has)} of {shown(target)}"
            )

    def do_delete(self) -> Iterator[str]:
        """DeleteGroups."""
        reply = Reply()
        self.cluster.service.delete_groups([GROUP], reply)
        self.cluster.host.run_pending()
        yield reply.value[GROUP].name

    def do_records(self) -> Iterator[str]:
        """What was stored since this was last asked."""
        records = self.cluster.records(GROUP)
        new, self._seen = records[self._seen :], len(records)
        for key, value in new:
            name = type(key).__name__.removesuffix("Key").removeprefix("ConsumerGroup")
            of = getattr(key, "member_id", getattr(key, "regular_expression", ""))
            yield f"{name} {of}".rstrip() + f": {'tombstone' if value is None else _fields(value)}"

    # --- the classic protocol

    def do_classic(self, client: str = "c", *, member: str = "") -> Iterator[str]:
        """JoinGroup, of a new member where it names none."""
        reply = self.cluster.join(GROUP, member, client=client)
        yield "waits" if reply.pending else ErrorCode(reply.value.error_code).name


def shown(assignment: Assignment) -> str:
    """Partitions by topic, in one word."""
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


def played(text: str) -> str:
    """The script with its answers as they are now."""
    script = Script()
    lines = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            try:
                lines += [f"  {answer}" for answer in script.run(line)]
            except ApiError as error:
                lines.append(f"  {error.code.name}: {error.message}")
    return "\n".join(lines) + "\n"

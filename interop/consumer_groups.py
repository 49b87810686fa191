"""Members of consumer groups (KIP-848) for scenarios, and the records of a group in __consumer_offsets."""

from __future__ import annotations

import re
import time
from itertools import count
from typing import Any

from interop.brokers import Broker, run_tool
from interop.raw import comparable, create_topic
from interop.raw_client import RawClient

VERSION = 1
OFFSETS_PARTITIONS = 4
"""`offsets.topic.num.partitions` of the brokers (`interop.brokers`)."""
WAIT_S = 30.0
INTERVAL_S = 1.1
"""A little more than the assignment interval, in which the coordinator computes one target assignment."""

Owned = dict[str, list[int]]


class Topics:
    """Topics by name and by topic id. Scenarios compare names, because topic ids differ from run to run."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.ids: dict[str, bytes] = {}

    def create(self, name: str, partitions: int) -> None:
        self.ids[name] = create_topic(self.client, name, partitions)

    def owned(self, owned: Owned) -> list[dict[str, Any]]:
        return [{"TopicId": self.ids[name], "Partitions": partitions} for name, partitions in owned.items()]

    def named(self, topics: list[dict[str, Any]]) -> Owned:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        return {names[topic["TopicId"]]: sorted(topic["Partitions"]) for topic in sorted(topics, key=repr)}


class Member:
    """A member that keeps its member epoch and its assignment between heartbeats, as a client does."""

    def __init__(self, topics: Topics, group: str, member_id: str, instance: str | None = None) -> None:
        self.topics = topics
        self.client = topics.client
        self.group = group
        self.member_id = member_id
        self.instance = instance
        self.epoch = 0
        self.owned: Owned = {}

    def send(self, version: int = VERSION, **changes: Any) -> Any:
        """Send a heartbeat, in which `changes` replace fields. The response has topic names, not ids."""
        fields: dict[str, Any] = {
            "GroupId": self.group,
            "MemberId": self.member_id,
            "MemberEpoch": self.epoch,
            "InstanceId": self.instance,
            **changes,
        }
        if isinstance(fields.get("TopicPartitions"), dict):
            fields["TopicPartitions"] = self.topics.owned(fields["TopicPartitions"])
        answer = self.client.call("ConsumerGroupHeartbeat", version, **fields)
        if not answer["ErrorCode"]:
            self.epoch = answer["MemberEpoch"]
        assignment = answer["Assignment"]
        if assignment is not None:
            answer["Assignment"] = self.owned = self.topics.named(assignment["TopicPartitions"])
        return answer

    def join(self, *names: str, version: int = VERSION, **changes: Any) -> Any:
        """Join the group with a subscription to these topics."""
        self.epoch = 0
        fields = {"RebalanceTimeoutMs": 60_000, "SubscribedTopicNames": list(names), "TopicPartitions": []}
        return self.send(version, **{**fields, **changes})

    def ack(self) -> Any:
        """Acknowledge the assignment: send a heartbeat that reports all assigned partitions as owned."""
        return self.send(TopicPartitions=self.owned)

    def leave(self, epoch: int = -1) -> Any:
        return self.send(MemberEpoch=epoch)

    def commit(self, topic: str, partition: int, offset: int, version: int = 9, **changes: Any) -> int:
        fields: dict[str, Any] = {
            "GroupId": self.group,
            "GenerationIdOrMemberEpoch": self.epoch,
            "MemberId": self.member_id,
        }
        who = {"TopicId": self.topics.ids[topic]} if version >= 10 else {"Name": topic}
        asked = [{**who, "Partitions": [{"PartitionIndex": partition, "CommittedOffset": offset}]}]
        answer = self.client.call("OffsetCommit", version, Topics=asked, **{**fields, **changes})
        code: int = answer["Topics"][0]["Partitions"][0]["ErrorCode"]
        return code

    def fetch(self, **changes: Any) -> Any:
        fields: dict[str, Any] = {"MemberId": self.member_id, "MemberEpoch": self.epoch, "Topics": None}
        fields |= changes
        answer = self.client.call("OffsetFetch", 9, Groups=[{"GroupId": self.group, **fields}])
        for found in answer["Groups"]:
            found["Topics"].sort(key=lambda topic: topic["Name"])
        return comparable(answer["Groups"])


def wait_until_heard(topics: Topics, group: str) -> None:
    """Wait until the coordinator of a group knows all of `topics`.

    Each coordinator shard of Apache Kafka applies new metadata separately and with a delay. So this function
    creates other groups in the same shard, one after another, until the only member of a new group is
    assigned all topics.
    """
    deadline = time.monotonic() + WAIT_S
    shard = _shard(group)
    for name in (f"heard-of-{number}-{group}" for number in count()):
        if _shard(name) != shard:
            continue
        probe = Member(topics, name, "probe")
        given = probe.join(*topics.ids)["Assignment"]
        probe.leave()
        if given is not None and given.keys() == topics.ids.keys():
            return
        assert time.monotonic() < deadline, f"the coordinator of {group} does not know {list(topics.ids)}"
        time.sleep(0.05)


def _shard(group: str) -> int:
    """Return the group's partition of __consumer_offsets, computed from Java's hash of the group id."""
    code = 0
    for character in group:
        code = (31 * code + ord(character)) & 0x7FFFFFFF
    return code % OFFSETS_PARTITIONS


def named(topics: Topics, answer: Any) -> Any:
    """Replace topic ids in a heartbeat response by topic names, and return the response."""
    if answer["Assignment"] is not None:
        answer["Assignment"] = topics.named(answer["Assignment"]["TopicPartitions"])
    return answer


def described(topics: Topics, *groups: str, version: int = 1, **fields: Any) -> Any:
    """Return the ConsumerGroupDescribe response, with all lists sorted."""
    answer = topics.client.call("ConsumerGroupDescribe", version, GroupIds=list(groups), **fields)
    answer["Groups"].sort(key=lambda group: groups.index(group["GroupId"]))
    for group in answer["Groups"]:
        group["Members"].sort(key=lambda member: member["MemberId"])
        for member in group["Members"]:
            member["SubscribedTopicNames"].sort()
            for field in ("Assignment", "TargetAssignment"):
                member[field] = topics.named(member[field]["TopicPartitions"])
    return answer


def listed(client: RawClient, prefix: str, **fields: Any) -> Any:
    answer = client.call("ListGroups", 5, **fields)
    groups = [group for group in answer["Groups"] if group["GroupId"].startswith(prefix)]
    return [answer["ErrorCode"], sorted(groups, key=lambda group: str(group["GroupId"]))]


def stored(broker: Broker, group: str) -> list[str]:
    """Return every record of a group in __consumer_offsets, as Apache Kafka's kafka-dump-log prints it.

    Topics, partitions and successive target assignments are sorted, because Apache Kafka writes them in the
    order of a hash map. Timestamps, ids and versions become 0.
    """
    files = [
        path for path in sorted(broker.log_dir.glob("__consumer_offsets-*/*.log")) if path.stat().st_size
    ]
    found: list[str] = []
    targets = 0
    run = run_tool(
        "org.apache.kafka.tools.DumpLogSegments",
        *("--offsets-decoder", "--files", ",".join(map(str, files))),
    )
    for line in run.stdout.splitlines():
        if f'"groupId":"{group}"' not in line and f'"group":"{group}"' not in line:
            continue
        line = line[line.index(" key: ") :]
        line = re.sub(r'"(\w*[tT]imestamp|metadataHash|version)":-?\d+(?=[,}])', r'"\1":0', line)
        line = re.sub(r'"(topicId|clientId|clientHost)":"[^"]*"', r'"\1":0', line)
        line = re.sub(r'"partitions":\[([\d,]*)\](,"assignmentEpochs":\[([\d,]*)\])?', in_order, line)
        line = re.sub(r"\{\"topicId\":0[^}]*\}(,\{\"topicId\":0[^}]*\})+", sorted_topics, line)
        found.append(line)
        targets = targets + 1 if '"type":"7"' in line else 0
        found[len(found) - targets :] = sorted(found[len(found) - targets :])
    return found


def sorted_topics(match: re.Match[str]) -> str:
    return " ".join(sorted(re.findall(r"\{.*?\}", match[0])))


def in_order(match: re.Match[str]) -> str:
    """Return the matched partitions, sorted. Each partition keeps its assignment epoch, if it has one."""
    partitions = match[1].split(",")
    epochs = match[3].split(",") if match[3] else [""] * len(partitions)
    return " ".join(
        sorted(f"{partition}@{epoch}" for partition, epoch in zip(partitions, epochs, strict=True))
    )

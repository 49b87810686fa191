"""What becomes of a partition, against Apache Kafka's own controller: `golden.py` writes what that says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kwire.broker.controller.commands import Election
from kwire.broker.controller.partition_change_builder import PartitionChangeBuilder
from kwire.broker.metadata.image import (
    ELR_VERSION,
    METADATA_VERSION,
    RESOURCE_TOPIC,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import PartitionChangeRecord
from tests.broker.controller.golden import BROKERS, CHANGES

DIRECTORY, TOPIC = Uuid(b"directory-of-all"), Uuid(b"the-topic-called")
LINES = CHANGES.read_text(encoding="ascii").splitlines()


def image_of(question: Mapping[str, Any]) -> MetadataImage:
    partition = PartitionImage(
        replicas=tuple(question["replicas"]),
        isr=tuple(question["isr"]),
        leader=question["leader"],
        leader_epoch=5,
        partition_epoch=9,
        directories=(DIRECTORY,) * len(question["replicas"]),
        removing_replicas=tuple(question["removing"]),
        adding_replicas=tuple(question["adding"]),
        leader_recovery_state=question["recovery"],
        elr=tuple(question["elr"]),
        last_known_elr=tuple(question["last_known_elr"]),
    )
    topic = TopicImage("t", TOPIC, (partition,))
    image = MetadataImage()
    image.features = {METADATA_VERSION: question["level"], ELR_VERSION: int(question["elr_enabled"])}
    image.topics, image.topics_by_id = {"t": topic}, {TOPIC: topic}
    image.configs = {(RESOURCE_TOPIC, "t"): {"min.insync.replicas": str(question["min_isr"])}}
    image.brokers = {
        broker_id: BrokerImage(
            broker_id,
            broker_id,
            Uuid(bytes(16)),
            {},
            {},
            fenced=broker_id not in question["live"],
            log_dirs=(DIRECTORY,),
        )
        for broker_id in BROKERS
    }
    return image


def answer_to(question: Mapping[str, Any]) -> str:
    image, target = image_of(question), question["target"]
    change = PartitionChangeBuilder(image, image.topics["t"], 0)
    change.election = Election[question["election"]]
    change.isr = target.get("isr", change.isr)
    change.replicas = target.get("replicas", change.replicas)
    change.removing = target.get("removing", change.removing)
    change.adding = target.get("adding", change.adding)
    change.recovery_state = target.get("recovery", change.recovery_state)
    if "unclean" in target:
        [change.broker_to_remove] = target["unclean"]
        change.unclean_shutdown = True
    stored = change.build()
    if stored is None:
        return "none"
    record = stored.record
    assert isinstance(record, PartitionChangeRecord)
    # Kafka has the eligible leaders in the order of a hash.
    elr = record.eligible_leader_replicas
    return (
        f"leader={record.leader} isr={text(record.isr)} elr={text(None if elr is None else sorted(elr))} "
        f"last_known_elr={text(record.last_known_elr)} replicas={text(record.replicas)} "
        f"removing={text(record.removing_replicas)} adding={text(record.adding_replicas)} "
        f"recovery={record.leader_recovery_state} version={stored.version}"
    )


def without_who_is_left_out(question: Mapping[str, Any], answer: str) -> str:
    """Kafka's answer, but for whom a move has left out: there he stays eligible. docs/decisions/0007"""
    told = dict(part.split("=") for part in answer.split() if "=" in part)
    if not question["elr_enabled"] or not told:
        return answer
    replicas, elr = (
        question["target"].get("replicas", question["replicas"])
        if told["replicas"] == "null"
        else told["replicas"],
        question["elr"] if told["elr"] == "null" else told["elr"],
    )
    left = [replica for replica in numbers(elr) if replica in numbers(replicas)]
    now = "null" if left == sorted(question["elr"]) else text(left)
    return answer.replace(f" elr={told['elr']}", f" elr={now}")


def numbers(said: str | Sequence[int]) -> list[int]:
    found: list[int] = json.loads(said) if isinstance(said, str) else list(said)
    return found


def text(numbers: Sequence[int] | None) -> str:
    return "null" if numbers is None else "[" + ",".join(map(str, numbers)) + "]"


@pytest.mark.parametrize("line", LINES)
def test_a_partition_becomes_what_kafka_makes_of_it(line: str) -> None:
    question, answer = line.split("\t")
    asked = json.loads(question)
    assert answer_to(asked) == without_who_is_left_out(asked, answer)

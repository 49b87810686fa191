"""Partition changes, compared with Apache Kafka's controller. `golden.py` writes the data."""

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


def image_of(case: Mapping[str, Any]) -> MetadataImage:
    partition = PartitionImage(
        replicas=tuple(case["replicas"]),
        isr=tuple(case["isr"]),
        leader=case["leader"],
        leader_epoch=5,
        partition_epoch=9,
        directories=(DIRECTORY,) * len(case["replicas"]),
        removing_replicas=tuple(case["removing"]),
        adding_replicas=tuple(case["adding"]),
        leader_recovery_state=case["recovery"],
        elr=tuple(case["elr"]),
        last_known_elr=tuple(case["last_known_elr"]),
    )
    topic = TopicImage("t", TOPIC, (partition,))
    image = MetadataImage()
    image.features = {METADATA_VERSION: case["level"], ELR_VERSION: int(case["elr_enabled"])}
    image.topics, image.topics_by_id = {"t": topic}, {TOPIC: topic}
    image.configs = {(RESOURCE_TOPIC, "t"): {"min.insync.replicas": str(case["min_isr"])}}
    image.brokers = {
        broker_id: BrokerImage(
            broker_id,
            broker_id,
            Uuid(bytes(16)),
            {},
            {},
            fenced=broker_id not in case["live"],
            log_dirs=(DIRECTORY,),
        )
        for broker_id in BROKERS
    }
    return image


def answer_of(case: Mapping[str, Any]) -> str:
    image, target = image_of(case), case["target"]
    change = PartitionChangeBuilder(image, image.topics["t"], 0)
    change.election = Election[case["election"]]
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
    # In Kafka, the order of eligible leaders is that of a hash set.
    elr = record.eligible_leader_replicas
    return (
        f"leader={record.leader} isr={text(record.isr)} elr={text(None if elr is None else sorted(elr))} "
        f"last_known_elr={text(record.last_known_elr)} replicas={text(record.replicas)} "
        f"removing={text(record.removing_replicas)} adding={text(record.adding_replicas)} "
        f"recovery={record.leader_recovery_state} version={stored.version}"
    )


def without_removed_replicas(case: Mapping[str, Any], answer: str) -> str:
    """Return Kafka's answer without removed replicas in the ELR, which Kafka keeps. docs/decisions/0007."""
    parts = dict(part.split("=") for part in answer.split() if "=" in part)
    if not case["elr_enabled"] or not parts:
        return answer
    replicas, elr = (
        case["target"].get("replicas", case["replicas"])
        if parts["replicas"] == "null"
        else parts["replicas"],
        case["elr"] if parts["elr"] == "null" else parts["elr"],
    )
    remaining = [replica for replica in numbers(elr) if replica in numbers(replicas)]
    now = "null" if remaining == sorted(case["elr"]) else text(remaining)
    return answer.replace(f" elr={parts['elr']}", f" elr={now}")


def numbers(values: str | Sequence[int]) -> list[int]:
    found: list[int] = json.loads(values) if isinstance(values, str) else list(values)
    return found


def text(numbers: Sequence[int] | None) -> str:
    return "null" if numbers is None else "[" + ",".join(map(str, numbers)) + "]"


@pytest.mark.parametrize("line", LINES)
def test_a_partition_change_equals_kafkas(line: str) -> None:
    case, answer = line.split("\t")
    fields = json.loads(case)
    assert answer_of(fields) == without_removed_replicas(fields, answer)

"""Hashes of a group's topics against those that Apache Kafka 4.3.1 computes; `golden.py` asked it."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode

import pytest

from kwire.coordinator.groups.consumer.topic_hash import group_hash, topic_hash
from tests.coordinator.groups.consumer.golden import HASHES

TOPIC = bytes(range(16))


@pytest.mark.parametrize("line", HASHES.read_text(encoding="utf-8").splitlines())
def test_it_is_kafkas_hash(line: str) -> None:
    question, *answers = line.split("\t")
    hashes: dict[str, int] = {}
    for (name, topic_id, racks), answer in zip(json.loads(question), answers[:-1], strict=True):
        hashes[name] = topic_hash(urlsafe_b64decode(topic_id + "=="), name, racks)
        assert hashes[name] == int(answer)
    assert group_hash(hashes) == int(answers[-1])


def test_the_order_of_racks_does_not_matter_and_all_else_does() -> None:
    one = topic_hash(TOPIC, "t", [["b", "a"], []])
    assert one == topic_hash(TOPIC, "t", [["a", "b"], []])
    others = [
        topic_hash(TOPIC[::-1], "t", [["a", "b"], []]),
        topic_hash(TOPIC, "u", [["a", "b"], []]),
        topic_hash(TOPIC, "t", [["a", "b"]]),
        topic_hash(TOPIC, "t", [["ab"], []]),
        topic_hash(TOPIC, "t", [["a"], ["b"]]),
    ]
    assert len({one, *others}) == 6


def test_the_order_of_topics_does_not_matter() -> None:
    assert group_hash({"b": 1, "a": -2}) == group_hash({"a": -2, "b": 1})
    assert group_hash({}) == 0

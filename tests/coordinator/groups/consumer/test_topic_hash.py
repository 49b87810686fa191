"""Hashes of a group's topics, compared with Apache Kafka 4.3.1 (see `golden.py`)."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode

import pytest

from kwire.coordinator.groups.consumer.topic_hash import group_hash, topic_hash
from tests.coordinator.groups.consumer.golden import HASHES

TOPIC = bytes(range(16))


@pytest.mark.parametrize("line", HASHES.read_text(encoding="utf-8").splitlines())
def test_topic_and_group_hashes_match_kafka(line: str) -> None:
    topics_json, *expected_hashes = line.split("\t")
    hashes: dict[str, int] = {}
    for (name, topic_id, racks), expected in zip(json.loads(topics_json), expected_hashes[:-1], strict=True):
        hashes[name] = topic_hash(urlsafe_b64decode(topic_id + "=="), name, racks)
        assert hashes[name] == int(expected)
    assert group_hash(hashes) == int(expected_hashes[-1])


def test_topic_hash_depends_on_all_but_the_order_of_racks() -> None:
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


def test_group_hash_does_not_depend_on_the_order_of_topics() -> None:
    assert group_hash({"b": 1, "a": -2}) == group_hash({"a": -2, "b": 1})
    assert group_hash({}) == 0

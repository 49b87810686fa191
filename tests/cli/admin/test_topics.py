"""`kwire topics`, and what a stock client says of what it has done."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.cli.running import Desk


def _topics(admin: AdminClient) -> dict[str, Any]:
    topics: dict[str, Any] = admin.list_topics(timeout=5).topics
    return topics


def _partitions(admin: AdminClient, topic: str) -> list[int]:
    return sorted(_topics(admin)[topic].partitions)


def test_a_topic_is_created_described_grown_and_deleted(desk: Desk, admin: AdminClient) -> None:
    made = desk("topics", "create", "life", "--partitions", "2", "--config", "retention.ms=1234")
    assert (made.status, made.out) == (0, "topic life created with 2 partitions, 1 replica each\n")
    assert len(_partitions(admin, "life")) == 2
    assert desk("topics", "describe", "life", "--configs", "--json").json == [
        {
            "topic": "life",
            "key": "retention.ms",
            "value": "1234",
            "source": "topic",
            "read_only": False,
            "sensitive": False,
        }
    ]
    grown = desk("topics", "alter", "life", "--partitions", "3", "--delete-config", "retention.ms")
    assert grown.status == 0
    assert len(_partitions(admin, "life")) == 3
    assert desk("topics", "describe", "life", "--configs", "--json").json == []
    told = desk("topics", "describe", "life", "--json").json
    assert [row["partition"] for row in told] == [0, 1, 2]
    assert {row["leader"] for row in told} == {1}
    assert desk("topics", "delete", "life").out == "topic life deleted\n"
    assert "life" not in _topics(admin)


def test_lists_take_patterns_and_leave_out_what_brokers_keep(desk: Desk) -> None:
    for name in ("list.a", "list.b"):
        assert desk("topics", "create", name).status == 0
    rows = desk("topics", "list", "list.*", "--json").json
    assert rows == [
        {"topic": name, "partitions": 1, "replicas": 1, "under_replicated": 0}
        for name in ("list.a", "list.b")
    ]
    assert desk("topics", "list", "list.*", "--names").out == "list.a\nlist.b\n"
    assert desk("topics", "list", "list.*", "--names", "--json").json == ["list.a", "list.b"]
    table = desk("topics", "list", "list.?").out
    assert table.splitlines()[0] == "topic   partitions  replicas  under replicated"
    assert table.splitlines()[1] == "list.a           1         1                 0"


def test_offsets_are_told_and_records_trimmed(desk: Desk, producer: Producer) -> None:
    for _ in range(5):
        producer.produce("trimmed", b"x")
    assert producer.flush(5) == 0
    assert desk("topics", "trim", "trimmed", "--before", "3", "--json").json == [
        {"topic": "trimmed", "partition": 0, "first": 3}
    ]
    row = desk("topics", "describe", "trimmed", "--offsets", "--json").json[0]
    assert (row["first"], row["end"]) == (3, 5)
    assert desk("topics", "trim", "trimmed", "--before", "end", "--json").json[0]["first"] == 5
    beyond = desk("topics", "trim", "trimmed", "--before", "99")
    assert "offset out of range" in beyond.sentence
    assert "no partition 7" not in beyond.sentence
    assert (
        "only partition 0, not 7"
        in desk("topics", "trim", "trimmed", "--before", "1", "--partition", "7").sentence
    )


def test_a_dry_run_changes_nothing(desk: Desk, admin: AdminClient) -> None:
    assert "can be created" in desk("topics", "create", "dry", "--dry-run").out
    assert "dry" not in _topics(admin)
    desk("topics", "create", "dry")
    assert desk("topics", "alter", "dry", "--partitions", "9", "--dry-run").status == 0
    assert len(_partitions(admin, "dry")) == 1


def test_programs_are_told_what_was_done(desk: Desk) -> None:
    create = ("topics", "create", "done", "--json")
    assert desk(*create, "--dry-run").json == [{"topic": "done", "created": False, "dry_run": True}]
    assert desk(*create).json == [{"topic": "done", "created": True, "dry_run": False}]
    assert desk(*create, "--if-not-exists").json == [{"topic": "done", "created": False, "dry_run": False}]
    alter = ("topics", "alter", "done", "--json")
    assert desk(*alter, "--partitions", "2", "--config", "retention.ms=7").json == [
        {"topic": "done", "keys": ["retention.ms"], "dry_run": False},
        {"topic": "done", "partitions": 2, "dry_run": False},
    ]
    half = desk(*alter, "--partitions", "1", "--config", "retention.ms=8")
    assert half.sentence
    assert json.loads(half.out) == [{"topic": "done", "keys": ["retention.ms"], "dry_run": False}]
    assert desk("topics", "delete", "done", "never-there", "--if-exists", "--json").json == [
        {"topic": "done", "deleted": True},
        {"topic": "never-there", "deleted": False},
    ]


def test_a_key_is_not_both_set_and_removed_nor_removed_where_there_is_none(desk: Desk) -> None:
    desk("topics", "create", "keyed-once", "--config", "retention.ms=5")
    alter = ("topics", "alter", "keyed-once")
    both = desk(*alter, "--config", "retention.ms=7", "--delete-config", "retention.ms")
    assert (both.status, both.sentence) == (
        2,
        "kwire topics: a key is given twice: change it in one way only",
    )
    assert "has no key nosuch: 'kwire configs" in desk(*alter, "--delete-config", "nosuch").sentence
    dry = desk(*alter, "--delete-config", "retention.m", "--dry-run")
    assert dry.sentence.endswith("has no key retention.m, did you mean 'retention.ms'?")
    assert desk("topics", "describe", "keyed-once", "--configs", "--json").json[0]["value"] == "5"


def test_replicas_are_assigned_by_hand(desk: Desk, admin: AdminClient) -> None:
    assert desk("topics", "create", "assigned", "--replica-assignment", "1,1").status == 0
    assert len(_partitions(admin, "assigned")) == 2


def test_what_cannot_be_done_is_one_sentence(desk: Desk) -> None:
    desk("topics", "create", "orders-there")
    twice = desk("topics", "create", "orders-there")
    assert twice.status == 1
    assert "already exists" in twice.sentence
    assert twice.sentence.endswith("; use --if-not-exists to ignore this")
    assert "already exists" in desk("topics", "create", "orders-there", "--if-not-exists").out
    assert "did you mean 'orders-there'?" in desk("topics", "describe", "orders-ther").sentence
    assert "did you mean 'orders-there'?" in desk("topics", "delete", "orders-ther").sentence
    assert desk("topics", "delete", "orders-ther", "--if-exists").status == 0
    assert (
        "--replication-factor cannot exceed the number of brokers"
        in desk("topics", "create", "wide", "--replication-factor", "3").sentence
    )
    assert "at most 10000 --partitions" in desk("topics", "create", "many", "--partitions", "100000").sentence
    desk("topics", "create", "col.lides")
    collides = desk("topics", "create", "col_lides")
    assert collides.sentence.endswith(
        "'.' and '_' are equal in metric names: choose a name that differs in more"
    )
    desk("topics", "create", "only-compacted", "--config", "cleanup.policy=compact")
    trim = desk("topics", "trim", "only-compacted", "--before", "end")
    assert trim.sentence.endswith("'kwire configs alter topic only-compacted --append cleanup.policy=delete'")
    assert "partition" in desk("topics", "alter", "orders-there", "--partitions", "1").sentence
    assert "kwire topics list" in desk("topics", "alter", "zzz", "--partitions", "1").sentence


def test_wrong_use_is_status_2(desk: Desk) -> None:
    assert desk("topics", "create", "x", "--config", "a").status == 2
    assert desk("topics", "create", "x", "--partitions", "0").status == 2
    assert desk("topics", "create", "x", "--replica-assignment", "1:a").status == 2
    assert desk("topics", "create", "x", "--replica-assignment", "1", "--partitions", "1").status == 2
    assert desk("topics", "alter", "x").status == 2
    assert desk("topics", "trim", "x", "--before", "begin").status in (1, 2)
    assert desk("topics").status == 2

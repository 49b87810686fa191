"""`kwire topics`, checked with confluent-kafka."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.cli.run_command import RunCommand


def _topics(admin: AdminClient) -> dict[str, Any]:
    topics: dict[str, Any] = admin.list_topics(timeout=5).topics
    return topics


def _partitions(admin: AdminClient, topic: str) -> list[int]:
    return sorted(_topics(admin)[topic].partitions)


def test_topic_is_created_described_altered_and_deleted(run: RunCommand, admin: AdminClient) -> None:
    created = run("topics", "create", "life", "--partitions", "2", "--config", "retention.ms=1234")
    assert (created.status, created.out) == (0, "topic life created with 2 partitions, 1 replica each\n")
    assert len(_partitions(admin, "life")) == 2
    assert run("topics", "describe", "life", "--configs", "--json").json == [
        {
            "topic": "life",
            "key": "retention.ms",
            "value": "1234",
            "source": "topic",
            "read_only": False,
            "sensitive": False,
        }
    ]
    grown = run("topics", "alter", "life", "--partitions", "3", "--delete-config", "retention.ms")
    assert grown.status == 0
    assert len(_partitions(admin, "life")) == 3
    assert run("topics", "describe", "life", "--configs", "--json").json == []
    described = run("topics", "describe", "life", "--json").json
    assert [row["partition"] for row in described] == [0, 1, 2]
    assert {row["leader"] for row in described} == {1}
    assert run("topics", "delete", "life").out == "topic life deleted\n"
    assert "life" not in _topics(admin)


def test_list_accepts_patterns_and_hides_internal_topics(run: RunCommand) -> None:
    for name in ("list.a", "list.b"):
        assert run("topics", "create", name).status == 0
    rows = run("topics", "list", "list.*", "--json").json
    assert rows == [
        {"topic": name, "partitions": 1, "replicas": 1, "under_replicated": 0}
        for name in ("list.a", "list.b")
    ]
    assert run("topics", "list", "list.*", "--names").out == "list.a\nlist.b\n"
    assert run("topics", "list", "list.*", "--names", "--json").json == ["list.a", "list.b"]
    table = run("topics", "list", "list.?").out
    assert table.splitlines()[0] == "topic   partitions  replicas  under replicated"
    assert table.splitlines()[1] == "list.a           1         1                 0"


def test_trim_deletes_records_before_an_offset(run: RunCommand, producer: Producer) -> None:
    for _ in range(5):
        producer.produce("trimmed", b"x")
    assert producer.flush(5) == 0
    assert run("topics", "trim", "trimmed", "--before", "3", "--json").json == [
        {"topic": "trimmed", "partition": 0, "first": 3}
    ]
    row = run("topics", "describe", "trimmed", "--offsets", "--json").json[0]
    assert (row["first"], row["end"]) == (3, 5)
    assert run("topics", "trim", "trimmed", "--before", "end", "--json").json[0]["first"] == 5
    beyond = run("topics", "trim", "trimmed", "--before", "99")
    assert "offset out of range" in beyond.sentence
    assert "no partition 7" not in beyond.sentence
    assert (
        "only partition 0, not 7"
        in run("topics", "trim", "trimmed", "--before", "1", "--partition", "7").sentence
    )


def test_dry_run_changes_nothing(run: RunCommand, admin: AdminClient) -> None:
    assert "can be created" in run("topics", "create", "dry", "--dry-run").out
    assert "dry" not in _topics(admin)
    run("topics", "create", "dry")
    assert run("topics", "alter", "dry", "--partitions", "9", "--dry-run").status == 0
    assert len(_partitions(admin, "dry")) == 1


def test_json_output_of_create_alter_and_delete(run: RunCommand) -> None:
    create = ("topics", "create", "done", "--json")
    assert run(*create, "--dry-run").json == [{"topic": "done", "created": False, "dry_run": True}]
    assert run(*create).json == [{"topic": "done", "created": True, "dry_run": False}]
    assert run(*create, "--if-not-exists").json == [{"topic": "done", "created": False, "dry_run": False}]
    alter = ("topics", "alter", "done", "--json")
    assert run(*alter, "--partitions", "2", "--config", "retention.ms=7").json == [
        {"topic": "done", "keys": ["retention.ms"], "dry_run": False},
        {"topic": "done", "partitions": 2, "dry_run": False},
    ]
    half = run(*alter, "--partitions", "1", "--config", "retention.ms=8")
    assert half.sentence
    assert json.loads(half.out) == [{"topic": "done", "keys": ["retention.ms"], "dry_run": False}]
    assert run("topics", "delete", "done", "never-there", "--if-exists", "--json").json == [
        {"topic": "done", "deleted": True},
        {"topic": "never-there", "deleted": False},
    ]


def test_key_cannot_be_set_and_deleted_or_deleted_if_unknown(run: RunCommand) -> None:
    run("topics", "create", "keyed-once", "--config", "retention.ms=5")
    alter = ("topics", "alter", "keyed-once")
    both = run(*alter, "--config", "retention.ms=7", "--delete-config", "retention.ms")
    assert (both.status, both.sentence) == (
        2,
        "kwire topics: a key is given twice: change it in one way only",
    )
    assert "has no key nosuch: 'kwire configs" in run(*alter, "--delete-config", "nosuch").sentence
    dry = run(*alter, "--delete-config", "retention.m", "--dry-run")
    assert dry.sentence.endswith("has no key retention.m, did you mean 'retention.ms'?")
    assert run("topics", "describe", "keyed-once", "--configs", "--json").json[0]["value"] == "5"


def test_create_accepts_a_replica_assignment(run: RunCommand, admin: AdminClient) -> None:
    assert run("topics", "create", "assigned", "--replica-assignment", "1,1").status == 0
    assert len(_partitions(admin, "assigned")) == 2


def test_topics_errors_are_one_sentence(run: RunCommand) -> None:
    run("topics", "create", "orders-there")
    twice = run("topics", "create", "orders-there")
    assert twice.status == 1
    assert "already exists" in twice.sentence
    assert twice.sentence.endswith("; use --if-not-exists to ignore this")
    assert "already exists" in run("topics", "create", "orders-there", "--if-not-exists").out
    assert "did you mean 'orders-there'?" in run("topics", "describe", "orders-ther").sentence
    assert "did you mean 'orders-there'?" in run("topics", "delete", "orders-ther").sentence
    assert run("topics", "delete", "orders-ther", "--if-exists").status == 0
    assert (
        "--replication-factor cannot exceed the number of brokers"
        in run("topics", "create", "wide", "--replication-factor", "3").sentence
    )
    assert "at most 10000 --partitions" in run("topics", "create", "many", "--partitions", "100000").sentence
    run("topics", "create", "col.lides")
    collides = run("topics", "create", "col_lides")
    assert collides.sentence.endswith(
        "'.' and '_' are equal in metric names: choose a name that differs in more"
    )
    run("topics", "create", "only-compacted", "--config", "cleanup.policy=compact")
    trim = run("topics", "trim", "only-compacted", "--before", "end")
    assert trim.sentence.endswith("'kwire configs alter topic only-compacted --append cleanup.policy=delete'")
    assert "partition" in run("topics", "alter", "orders-there", "--partitions", "1").sentence
    assert "kwire topics list" in run("topics", "alter", "zzz", "--partitions", "1").sentence


def test_topics_usage_errors_exit_with_status_2(run: RunCommand) -> None:
    assert run("topics", "create", "x", "--config", "a").status == 2
    assert run("topics", "create", "x", "--partitions", "0").status == 2
    assert run("topics", "create", "x", "--replica-assignment", "1:a").status == 2
    assert run("topics", "create", "x", "--replica-assignment", "1", "--partitions", "1").status == 2
    assert run("topics", "alter", "x").status == 2
    assert run("topics", "trim", "x", "--before", "begin").status in (1, 2)
    assert run("topics").status == 2

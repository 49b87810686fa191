"""`kwire configs`, and what a stock client reads."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, ConfigResource

from tests.cli.running import Desk


def _value(admin: AdminClient, kind: str, name: str, key: str) -> str:
    resource = ConfigResource(kind, name)
    value: str = admin.describe_configs([resource])[resource].result(5)[key].value
    return value


def test_a_topic_is_configured(desk: Desk, admin: AdminClient) -> None:
    desk("topics", "create", "set-up", "--config", "segment.ms=5000")
    told = desk("configs", "alter", "topic", "set-up", "--set", "retention.ms=77", "--delete", "segment.ms",
                "--append", "cleanup.policy=compact")  # fmt: skip
    assert told.out == "changed 3 keys of topic set-up\n"
    assert _value(admin, "topic", "set-up", "retention.ms") == "77"
    assert _value(admin, "topic", "set-up", "cleanup.policy") == "delete,compact"
    assert _value(admin, "topic", "set-up", "segment.ms") == "604800000"
    assert desk("configs", "alter", "topic", "set-up", "--subtract", "cleanup.policy=delete").status == 0
    rows = desk("configs", "describe", "topic", "set-up", "--json").json
    assert {row["key"]: (row["value"], row["source"]) for row in rows} == {
        "cleanup.policy": ("compact", "topic"),
        "retention.ms": ("77", "topic"),
    }
    every = desk("configs", "describe", "topic", "set-up", "--all", "--json").json
    assert len(every) > 20
    assert {row["source"] for row in every} >= {"topic", "default"}


def test_keys_are_told_with_what_they_do(desk: Desk) -> None:
    desk("topics", "create", "documented")
    ran = desk("configs", "describe", "topic", "documented", "--key", "retention.ms", "--docs", "--json")
    (row,) = ran.json
    assert row["key"] == "retention.ms"
    assert "milliseconds" in row["documentation"]
    assert (
        "no key retention"
        in desk("configs", "describe", "topic", "documented", "--key", "retention").sentence
    )


def test_brokers_are_configured_one_or_all(desk: Desk, admin: AdminClient) -> None:
    assert desk("configs", "alter", "broker", "1", "--set", "log.cleaner.threads=2").status == 0
    assert _value(admin, "broker", "1", "log.cleaner.threads") == "2"
    assert desk("configs", "alter", "broker", "--set", "log.cleaner.backoff.ms=16000").out == (
        "changed 1 key of all brokers\n"
    )
    rows = desk("configs", "describe", "broker", "1", "--json").json
    assert {(row["key"], row["value"], row["source"]) for row in rows} >= {
        ("log.cleaner.threads", "2", "broker"),
        ("log.cleaner.backoff.ms", "16000", "all brokers"),
    }
    listed = desk("configs", "list", "--json").json
    assert {"kind": "broker", "name": "1"} in listed
    desk("configs", "alter", "broker", "1", "--delete", "log.cleaner.threads")
    desk("configs", "alter", "broker", "--delete", "log.cleaner.backoff.ms")
    rows = desk("configs", "describe", "broker", "--json").json
    assert [row["key"] for row in rows] == ["min.insync.replicas"]  # which the cluster has from its beginning
    desk("topics", "create", "as-by-default")
    told = desk("configs", "describe", "topic", "as-by-default")
    assert (told.out, told.err) == ("", "every key has its default value: --all shows them\n")


def test_what_is_removed_is_a_key(desk: Desk) -> None:
    desk("topics", "create", "removed-from")
    for where, what in (
        (("topic", "removed-from"), "topic removed-from"),
        (("broker", "1"), "broker 1"),
        (("broker",), "a broker"),
        (("group", "g"), "group g"),
    ):
        alter = ("configs", "alter", *where, "--delete")
        assert f"{what} has no key nosuch: 'kwire configs describe" in desk(*alter, "nosuch").sentence
    removed = desk("configs", "alter", "broker", "--delete", "log.cleaner.threads", "--json")
    assert removed.json == [{"kind": "broker", "name": "", "keys": ["log.cleaner.threads"], "dry_run": False}]


def test_loggers_are_told(desk: Desk) -> None:
    levels = desk("configs", "describe", "logger", "1", "--json").json
    assert {row["value"] for row in levels} <= {"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"}


def test_what_is_wrong_is_one_sentence(desk: Desk, admin: AdminClient) -> None:
    desk("topics", "create", "wrongly-set")
    bad = desk("configs", "alter", "topic", "wrongly-set", "--set", "retention.ms=soon")
    assert "retention.ms" in bad.sentence
    assert (
        "retention.mss"
        in desk("configs", "alter", "topic", "wrongly-set", "--set", "retention.mss=1").sentence
    )
    dry = desk("configs", "alter", "topic", "wrongly-set", "--set", "retention.ms=1", "--dry-run")
    assert "would change" in dry.out
    assert _value(admin, "topic", "wrongly-set", "retention.ms") == "-1"
    assert "the cluster has 1" in desk("configs", "describe", "broker", "7").sentence
    assert desk("configs", "describe", "topic").status == 2
    assert desk("configs", "describe", "nothing").status == 2
    assert desk("configs", "alter", "broker", "1", "--set", "log.dirs=elsewhere").sentence.endswith(
        "; set it in the broker's configuration file, and restart the broker"
    )
    assert desk("configs", "alter", "topic", "wrongly-set").status == 2
    assert desk("configs", "alter", "topic", "wrongly-set", "--set", "a=1", "--delete", "a").status == 2

"""`kwire configs`, checked with confluent-kafka."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, ConfigResource

from tests.cli.run_command import RunCommand


def _value(admin: AdminClient, kind: str, name: str, key: str) -> str:
    resource = ConfigResource(kind, name)
    value: str = admin.describe_configs([resource])[resource].result(5)[key].value
    return value


def test_topic_keys_are_set_deleted_appended_and_subtracted(run: RunCommand, admin: AdminClient) -> None:
    run("topics", "create", "set-up", "--config", "segment.ms=5000")
    result = run("configs", "alter", "topic", "set-up", "--set", "retention.ms=77", "--delete", "segment.ms",
                "--append", "cleanup.policy=compact")  # fmt: skip
    assert result.out == "changed 3 keys of topic set-up\n"
    assert _value(admin, "topic", "set-up", "retention.ms") == "77"
    assert _value(admin, "topic", "set-up", "cleanup.policy") == "delete,compact"
    assert _value(admin, "topic", "set-up", "segment.ms") == "604800000"
    assert run("configs", "alter", "topic", "set-up", "--subtract", "cleanup.policy=delete").status == 0
    rows = run("configs", "describe", "topic", "set-up", "--json").json
    assert {row["key"]: (row["value"], row["source"]) for row in rows} == {
        "cleanup.policy": ("compact", "topic"),
        "retention.ms": ("77", "topic"),
    }
    every = run("configs", "describe", "topic", "set-up", "--all", "--json").json
    assert len(every) > 20
    assert {row["source"] for row in every} >= {"topic", "default"}


def test_kinds_can_be_plural_as_in_kafkas_tools(run: RunCommand) -> None:
    run("topics", "create", "plural")
    result = run("configs", "alter", "topics", "plural", "--set", "retention.ms=77")
    assert result.out == "changed 1 key of topic plural\n"
    singular = {"topics": ("topic", "plural"), "brokers": ("broker", "1"), "groups": ("group", "g"),
                "broker-loggers": ("logger", "1"), "loggers": ("logger", "1")}  # fmt: skip
    for plural, (kind, name) in singular.items():
        described = run("configs", "describe", plural, name, "--all", "--json").json
        assert described == run("configs", "describe", kind, name, "--all", "--json").json


def test_describe_shows_the_documentation_of_a_key(run: RunCommand) -> None:
    run("topics", "create", "documented")
    result = run("configs", "describe", "topic", "documented", "--key", "retention.ms", "--docs", "--json")
    (row,) = result.json
    assert row["key"] == "retention.ms"
    assert "milliseconds" in row["documentation"]
    assert (
        "no key retention" in run("configs", "describe", "topic", "documented", "--key", "retention").sentence
    )


def test_configs_of_one_broker_and_of_all_brokers(run: RunCommand, admin: AdminClient) -> None:
    assert run("configs", "alter", "broker", "1", "--set", "log.cleaner.threads=2").status == 0
    assert _value(admin, "broker", "1", "log.cleaner.threads") == "2"
    assert run("configs", "alter", "broker", "--set", "log.cleaner.backoff.ms=16000").out == (
        "changed 1 key of all brokers\n"
    )
    rows = run("configs", "describe", "broker", "1", "--json").json
    assert {(row["key"], row["value"], row["source"]) for row in rows} >= {
        ("log.cleaner.threads", "2", "broker"),
        ("log.cleaner.backoff.ms", "16000", "all brokers"),
    }
    listed = run("configs", "list", "--json").json
    assert {"kind": "broker", "name": "1"} in listed
    run("configs", "alter", "broker", "1", "--delete", "log.cleaner.threads")
    run("configs", "alter", "broker", "--delete", "log.cleaner.backoff.ms")
    rows = run("configs", "describe", "broker", "--json").json
    assert [row["key"] for row in rows] == ["min.insync.replicas"]  # set when the cluster is formatted
    run("topics", "create", "as-by-default")
    result = run("configs", "describe", "topic", "as-by-default")
    assert (result.out, result.err) == ("", "no key is set dynamically: --all shows all keys\n")


def test_delete_of_an_unknown_key_is_refused(run: RunCommand) -> None:
    run("topics", "create", "removed-from")
    for where, what in (
        (("topic", "removed-from"), "topic removed-from"),
        (("broker", "1"), "broker 1"),
        (("broker",), "a broker"),
        (("group", "g"), "group g"),
    ):
        alter = ("configs", "alter", *where, "--delete")
        assert f"{what} has no key nosuch: 'kwire configs describe" in run(*alter, "nosuch").sentence
    removed = run("configs", "alter", "broker", "--delete", "log.cleaner.threads", "--json")
    assert removed.json == [{"kind": "broker", "name": "", "keys": ["log.cleaner.threads"], "dry_run": False}]


def test_describe_logger_lists_levels(run: RunCommand) -> None:
    levels = run("configs", "describe", "logger", "1", "--json").json
    assert {row["value"] for row in levels} <= {"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"}


def test_configs_errors_are_one_sentence(run: RunCommand, admin: AdminClient) -> None:
    run("topics", "create", "wrongly-set")
    bad = run("configs", "alter", "topic", "wrongly-set", "--set", "retention.ms=soon")
    assert "retention.ms" in bad.sentence
    assert (
        "retention.mss"
        in run("configs", "alter", "topic", "wrongly-set", "--set", "retention.mss=1").sentence
    )
    dry = run("configs", "alter", "topic", "wrongly-set", "--set", "retention.ms=1", "--dry-run")
    assert "would change" in dry.out
    assert _value(admin, "topic", "wrongly-set", "retention.ms") == "-1"
    assert "the cluster has 1" in run("configs", "describe", "broker", "7").sentence
    assert run("configs", "describe", "topic").status == 2
    assert run("configs", "describe", "nothing").status == 2
    assert run("configs", "alter", "broker", "1", "--set", "log.dirs=elsewhere").sentence.endswith(
        "; set it in the broker's configuration file, and restart the broker"
    )
    assert run("configs", "alter", "topic", "wrongly-set").status == 2
    assert run("configs", "alter", "topic", "wrongly-set", "--set", "a=1", "--delete", "a").status == 2

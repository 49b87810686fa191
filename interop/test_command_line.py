"""The kwire commands against both brokers, and `kwire dump` of the files that each broker has written.

Both brokers must give the same output, except for ids, sizes and times.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from interop.brokers import ApacheKafka, Broker, Kwire

REPOSITORY = Path(__file__).resolve().parent.parent
FIRST = "00000000000000000000"

Run = Callable[..., Any]


def kwire(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kwire", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=REPOSITORY,
    )


@pytest.fixture(scope="module", params=[ApacheKafka, Kwire])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    started: Broker = request.param()
    started.start()
    yield started
    started.discard()


@pytest.fixture
def run(broker: Broker) -> Run:
    """Return a function that runs a kwire command and returns its JSON output (`consume`: a list of rows)."""

    def run(*arguments: str, stdin: str = "") -> Any:
        ran = kwire(*arguments, "--json", "-b", broker.bootstrap, stdin=stdin)
        assert ran.returncode == 0, ran.stderr
        if arguments[0] == "consume":
            return [json.loads(line) for line in ran.stdout.splitlines()]
        return json.loads(ran.stdout) if ran.stdout else None

    return run


@pytest.fixture
def refused(broker: Broker) -> Callable[..., str]:
    """Return a function that runs a command that must fail, and returns its error message."""

    def refused(*arguments: str) -> str:
        ran = kwire(*arguments, "-b", broker.bootstrap)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.count("\n") == 1
        return ran.stderr

    return refused


def test_topics(run: Run, refused: Callable[..., str]) -> None:
    run("topics", "create", "life", "--partitions", "2", "--config", "retention.ms=7000000")
    assert "use --if-not-exists to ignore this" in refused("topics", "create", "life")
    run("topics", "alter", "life", "--partitions", "3", "--config", "segment.ms=100000")
    rows = run("topics", "describe", "life", "--offsets")
    assert [(row["partition"], row["leader"], row["first"], row["end"]) for row in rows] == [
        (number, 1, 0, 0) for number in range(3)
    ]
    configs = {row["key"]: row["value"] for row in run("configs", "describe", "topic", "life")}
    assert configs == {"retention.ms": "7000000", "segment.ms": "100000"}
    run("configs", "alter", "topic", "life", "--delete", "segment.ms", "--append", "cleanup.policy=compact")
    configs = {row["key"]: row["value"] for row in run("configs", "describe", "topic", "life")}
    assert configs == {"retention.ms": "7000000", "cleanup.policy": "delete,compact"}
    assert {"kind": "topic", "name": "life"} in run("configs", "list")
    run("topics", "delete", "life")
    assert "there is no topic 'life'" in refused("topics", "describe", "life")


def test_rejected_commands_print_advice(run: Run, refused: Callable[..., str]) -> None:
    """Check that both brokers return the error codes and messages from which kwire derives its advice."""
    run("topics", "create", "a.b", "--config", "cleanup.policy=compact")
    assert "choose a name that differs in more" in refused("topics", "create", "a_b")
    assert "at most 10000 --partitions" in refused("topics", "create", "many", "--partitions", "100000")
    assert "--append cleanup.policy=delete" in refused("topics", "trim", "a.b", "--before", "end")
    assert "has no key nosuch" in refused("topics", "alter", "a.b", "--delete-config", "nosuch")
    assert "has no key nosuch" in refused("configs", "alter", "broker", "--delete", "nosuch")
    run("configs", "alter", "broker", "--delete", "log.cleaner.threads")
    (row,) = run("logs", "describe", "a.b")
    (moved,) = run("logs", "move", "a.b", "--partition", "0", "--broker", "1", "--to", row["directory"])
    assert moved["moving"] is False
    run("groups", "reset", "begins-offsets", "--topic", "a.b", "--to", "end", "--execute")
    assert "clients cannot write to it" in refused("produce", "__consumer_offsets", "x")
    run("topics", "delete", "a.b")
    run("groups", "delete", "begins-offsets")


def test_produced_records_are_consumed(run: Run) -> None:
    run("topics", "create", "round", "--partitions", "4")
    lines = "".join(f"k{number}:v{number}\n" for number in range(40))
    sent = run("produce", "round", "--key-separator", ":", "--compression", "lz4", stdin=lines)
    assert sum(row["records"] for row in sent) == 40
    found = run("consume", "round", "--from", "beginning", "--until", "end")
    assert sorted((row["key"], row["value"]) for row in found) == sorted(
        (f"k{number}", f"v{number}") for number in range(40)
    )
    odd = {**found[0], "value": {"hex": "00ff"}, "headers": [["h", {"hex": "fe"}]]}
    run("produce", "again", "--records", stdin=f"{json.dumps(odd)}\n")
    (row,) = run("consume", "again", "--from", "1h", "--max", "1")
    assert [row[name] for name in ("key", "value", "headers")] == [odd["key"], odd["value"], odd["headers"]]


def test_groups_are_described_and_reset(run: Run, refused: Callable[..., str], broker: Broker) -> None:
    run("topics", "create", "read")
    run("produce", "read", *"abcdef")
    for protocol in ("classic", "consumer"):
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": protocol,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["read"])
        consumer.commit(message=consumer.consume(2, 20)[-1], asynchronous=False)
        (row,) = run("groups", "describe", protocol)
        assert (row["committed"], row["end"], row["lag"], row["client"]) == (2, 6, 4, "rdkafka")
        assert "stop them first" in refused("groups", "reset", protocol, "--to", "end", "--execute")
        consumer.close()
        assert run("groups", "reset", protocol, "--by", "3", "--execute")[0]["new"] == 5
        assert run("groups", "describe", protocol)[0]["committed"] == 5
        run("groups", "delete", protocol)
    assert run("groups", "list") == []


def test_transactions_are_described_and_terminated(run: Run, broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "pay"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("paid", "x")
    producer.flush(20)
    (response,) = run("transactions", "describe", "pay")
    assert (response["state"], response["partitions"]) == ("Ongoing", ["paid-0"])
    assert run("transactions", "producers", "paid")[0]["txn_start_offset"] == 0
    assert run("transactions", "find-hanging", "--older-than", "0ms") == []
    run("transactions", "terminate", "pay")
    assert run("transactions", "producers", "paid")[0]["txn_start_offset"] is None
    assert run("consume", "paid", "--from", "0", "--until", "end", "--read-committed") == []


def test_dump_reads_all_written_files(run: Run, broker: Broker) -> None:
    (directory,) = {row["directory"] for row in run("logs", "list")}
    assert Path(directory) == broker.log_dir
    broker.stop()
    logs = sorted(path for path in broker.log_dir.iterdir() if (path / f"{FIRST}.log").exists())
    dumped = kwire("dump", *map(str, [broker.log_dir, *logs]), "--records", "--json")
    assert dumped.returncode == 0, dumped.stderr
    rows = [json.loads(line) for line in dumped.stdout.splitlines()]
    assert {row["decode_error"] for row in rows if "decode_error" in row} == {"not UTF-8; not UTF-8"}, (
        "of `odd` alone"
    )
    kinds = {row["record"]["type"] for row in rows if "record" in row}
    assert {"TopicRecord", "PartitionRecord", "FeatureLevelRecord", "LeaderChangeMessage"} <= kinds
    keys = {row["key"]["type"] for row in rows if isinstance(row.get("key"), dict)}
    assert {"OffsetCommitKey", "ConsumerGroupMetadataKey", "TransactionLogKey"} <= keys

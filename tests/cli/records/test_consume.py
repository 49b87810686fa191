"""`kwire consume`, with records of a confluent-kafka producer."""

from __future__ import annotations

import json
import threading
import time

import pytest
from confluent_kafka import Producer

from kwire.testing import Broker
from tests.cli.run_command import RunCommand


@pytest.fixture(scope="module")
def shop(broker: Broker, producer: Producer) -> str:
    """Return a topic of ten records with timestamps one second apart."""
    for number in range(10):
        producer.produce(
            "shop",
            key=f"k{number}",
            value=json.dumps({"n": number}),
            headers=[("h", b"x"), ("none", None)],
            timestamp=1_700_000_000_000 + number * 1000,
        )
        producer.flush(5)
    return "shop"


def _values(run: RunCommand, *arguments: str) -> list[int]:
    result = run("consume", *arguments, "--values", "--value-format", "json", "--idle", "2")
    assert result.status == 0, result.err
    return [json.loads(line)["n"] for line in result.out.splitlines()]


@pytest.mark.parametrize(
    ("options", "values"),
    [
        (["--from", "beginning"], list(range(10))),
        (["--from", "7"], [7, 8, 9]),
        (["--from", "-2"], [8, 9]),
        (["--from", "-20", "--max", "1"], [0]),
        (["--from", "2023-11-14T22:13:28"], [8, 9]),
        (["--from", "2023-11-15T00:13:28.5+02:00"], [9]),
        (["--from", "1h"], []),
        (["--from", "end"], []),
        ([], []),
        (["--from", "beginning", "--until", "2"], [0, 1]),
        (["--from", "beginning", "--until", "2023-11-14T22:13:21"], [0]),
        (["--from", "2", "--until", "-5"], [2, 3, 4]),
    ],
)
def test_from_and_until_select_records(
    run: RunCommand, shop: str, options: list[str], values: list[int]
) -> None:
    until = [] if "--until" in options else ["--until", "end"]
    assert _values(run, shop, *options, *until) == values


def test_line_has_offset_headers_key_and_value(run: RunCommand, shop: str) -> None:
    assert run("consume", shop, "--from", "3", "--max", "1").out == (
        'shop-0@3 2023-11-14T22:13:23.000Z h=x none=null k3 → {"n": 3}\n'
    )


def test_json_output_has_one_record_per_line(run: RunCommand, shop: str) -> None:
    result = run("consume", shop, "--from", "9", "--max", "1", "--json", "--key-format", "hex")
    assert result.json == {
        "topic": "shop",
        "partition": 0,
        "offset": 9,
        "timestamp": 1_700_000_009_000,
        "key": "6b39",
        "value": '{"n": 9}',
        "headers": [["h", "x"], ["none", None]],
    }


def test_new_records_are_printed_as_they_arrive(run: RunCommand, producer: Producer) -> None:
    run("topics", "create", "followed", "--partitions", "2")

    def write() -> None:
        for number in range(4):
            time.sleep(0.02)
            producer.produce("followed", f"v{number}", partition=number % 2)
            producer.flush(5)

    thread = threading.Thread(target=write)
    thread.start()
    result = run("consume", "followed", "--from", "beginning", "--max", "4", "--values")
    thread.join()
    assert sorted(result.out.split()) == ["v0", "v1", "v2", "v3"]
    assert run("consume", "followed", "--partition", "1", "--from", "0", "-n", "1", "--values").out == "v1\n"


def test_read_committed_omits_aborted_and_open_transactions(run: RunCommand, broker: Broker) -> None:
    transactional = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t", "linger.ms": 0}
    )
    transactional.init_transactions(5)
    for value, commit in (("void", False), ("good", True)):
        transactional.begin_transaction()
        transactional.produce("txn", value)
        transactional.flush(5)
        (transactional.commit_transaction if commit else transactional.abort_transaction)(5)
    transactional.begin_transaction()
    transactional.produce("txn", "open")
    transactional.flush(5)
    arguments = ("consume", "txn", "--from", "beginning", "--until", "end", "--values")
    assert run(*arguments).out.split() == ["void", "good", "open"]
    assert run(*arguments, "--read-committed").out.split() == ["good"]
    transactional.abort_transaction(5)
    assert run(*arguments, "--read-committed").out.split() == ["good"]


def test_deleted_offset_is_reported(run: RunCommand) -> None:
    run("produce", "gone", "a", "b", "c")
    run("topics", "trim", "gone", "--before", "2")
    result = run("consume", "gone", "--from", "0", "--until", "end", "--values")
    assert (result.out, result.err) == ("c\n", "gone-0 has no offset 0: continuing at 2\n")
    result = run("consume", "gone", "--from", "99", "--until", "end")
    assert (result.out, result.err) == ("", "there are no records from 99 until end\n")


def test_invalid_json_value_is_printed_as_hex(run: RunCommand) -> None:
    run("produce", "mixed", "{", "2")
    result = run("consume", "mixed", "--from", "0", "-n", "2", "--values", "--value-format", "json")
    assert result.out == '{"hex": "7b"}\n2\n'
    assert result.err.startswith("mixed-0@0: printing the value as hex: not JSON: ")


def test_consume_errors_are_one_sentence(run: RunCommand, shop: str) -> None:
    assert "did you mean 'shop'?" in run("consume", "shopp").sentence
    assert "expected 'beginning', 'end'" in run("consume", shop, "--from", "soon").sentence
    assert run("consume", shop, "--from", "soon").status == 2
    assert "has only partition 0, not 4" in run("consume", shop, "--partition", "4").sentence
    assert "--registry" in run("consume", shop, "--value-format", "avro").sentence
    assert run("consume", shop, "--values", "--json").status == 2
    assert run("consume", shop, "--max", "0").status == 2
    assert "--idle -1: expected 0 or more" in run("consume", shop, "--idle", "-1").sentence

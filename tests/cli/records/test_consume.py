"""`kwire consume` of what a stock producer has written."""

from __future__ import annotations

import json
import threading
import time

import pytest
from confluent_kafka import Producer

from kwire.testing import Broker
from tests.cli.running import Desk


@pytest.fixture(scope="module")
def shop(broker: Broker, producer: Producer) -> str:
    """A topic of ten records, a second apart from each other."""
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


def _values(desk: Desk, *arguments: str) -> list[int]:
    ran = desk("consume", *arguments, "--values", "--value-format", "json", "--idle", "2")
    assert ran.status == 0, ran.err
    return [json.loads(line)["n"] for line in ran.out.splitlines()]


@pytest.mark.parametrize(
    ("place", "values"),
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
def test_places(desk: Desk, shop: str, place: list[str], values: list[int]) -> None:
    until = [] if "--until" in place else ["--until", "end"]
    assert _values(desk, shop, *place, *until) == values


def test_a_line_tells_place_headers_key_and_value(desk: Desk, shop: str) -> None:
    assert desk("consume", shop, "--from", "3", "--max", "1").out == (
        'shop-0@3 2023-11-14T22:13:23.000Z h=x none=null k3 → {"n": 3}\n'
    )


def test_json_is_a_record_a_line(desk: Desk, shop: str) -> None:
    ran = desk("consume", shop, "--from", "9", "--max", "1", "--json", "--key-format", "hex")
    assert ran.json == {
        "topic": "shop",
        "partition": 0,
        "offset": 9,
        "timestamp": 1_700_000_009_000,
        "key": "6b39",
        "value": '{"n": 9}',
        "headers": [["h", "x"], ["none", None]],
    }


def test_what_comes_is_followed(desk: Desk, producer: Producer) -> None:
    desk("topics", "create", "followed", "--partitions", "2")

    def write() -> None:
        for number in range(4):
            time.sleep(0.02)
            producer.produce("followed", f"v{number}", partition=number % 2)
            producer.flush(5)

    thread = threading.Thread(target=write)
    thread.start()
    ran = desk("consume", "followed", "--from", "beginning", "--max", "4", "--values")
    thread.join()
    assert sorted(ran.out.split()) == ["v0", "v1", "v2", "v3"]
    assert desk("consume", "followed", "--partition", "1", "--from", "0", "-n", "1", "--values").out == "v1\n"


def test_void_and_open_transactions_are_left_out(desk: Desk, broker: Broker) -> None:
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
    assert desk(*arguments).out.split() == ["void", "good", "open"]
    assert desk(*arguments, "--read-committed").out.split() == ["good"]
    transactional.abort_transaction(5)
    assert desk(*arguments, "--read-committed").out.split() == ["good"]


def test_an_offset_that_is_gone_is_told(desk: Desk) -> None:
    desk("produce", "gone", "a", "b", "c")
    desk("topics", "trim", "gone", "--before", "2")
    ran = desk("consume", "gone", "--from", "0", "--until", "end", "--values")
    assert (ran.out, ran.err) == ("c\n", "gone-0 has no offset 0: continuing at 2\n")
    ran = desk("consume", "gone", "--from", "99", "--until", "end")
    assert (ran.out, ran.err) == ("", "there are no records from 99 until end\n")


def test_what_is_not_json_is_shown_as_it_is(desk: Desk) -> None:
    desk("produce", "mixed", "{", "2")
    ran = desk("consume", "mixed", "--from", "0", "-n", "2", "--values", "--value-format", "json")
    assert ran.out == '{"hex": "7b"}\n2\n'
    assert ran.err.startswith("mixed-0@0: printing the value as hex: not JSON: ")


def test_wrong_use(desk: Desk, shop: str) -> None:
    assert "did you mean 'shop'?" in desk("consume", "shopp").sentence
    assert "expected 'beginning', 'end'" in desk("consume", shop, "--from", "soon").sentence
    assert desk("consume", shop, "--from", "soon").status == 2
    assert "has only partition 0, not 4" in desk("consume", shop, "--partition", "4").sentence
    assert "--registry" in desk("consume", shop, "--value-format", "avro").sentence
    assert desk("consume", shop, "--values", "--json").status == 2
    assert desk("consume", shop, "--max", "0").status == 2
    assert "--idle -1: expected 0 or more" in desk("consume", shop, "--idle", "-1").sentence

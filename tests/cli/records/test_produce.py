"""`kwire produce`, and what a stock consumer finds."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from kwire.cli.records.partitioner import partition_for_key
from kwire.cli.records.produce import read_lines
from kwire.testing import Broker
from tests.cli.running import Desk

Read = Callable[..., list[Any]]


@pytest.fixture
def read(broker: Broker) -> Read:
    def read(topic: str, count: int, partitions: int = 1) -> list[Any]:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reads"})
        consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)])
        found = consumer.consume(count, 5)
        consumer.close()
        assert len(found) == count
        return found

    return read


def test_arguments_are_records(desk: Desk, read: Read) -> None:
    ran = desk(
        "produce", "args", "one", "two", "--key", "k", "--header", "from=desk", "--compression", "zstd"
    )
    assert ran.out == "sent 2 to args-0, starting at offset 0\n"
    found = read("args", 2)
    assert [(one.key(), one.value(), one.headers()) for one in found] == [
        (b"k", b"one", [("from", b"desk")]),
        (b"k", b"two", [("from", b"desk")]),
    ]


def test_the_example_of_its_help_works(desk: Desk, read: Read) -> None:
    command = shlex.split(
        next(line for line in desk("produce", "--help").out.splitlines() if "--key 17" in line)
    )
    ran = desk(*command[1:])
    assert ran.err == ""
    [found] = read("orders", 1)
    assert (found.key(), found.value(), found.headers()) == (b"17", b'{"amount": 3}', [("source", b"cli")])


def test_lines_have_keys_which_lead_to_their_partitions(
    desk: Desk, read: Read, typed: Callable[[bytes], None]
) -> None:
    desk("topics", "create", "keyed", "--partitions", "5")
    typed(b"".join(b"%d:v%d\r\n" % (n, n) for n in range(20)) + b"20:-")
    ran = desk("produce", "keyed", "--key-separator", ":", "--null-value", "-", "--json")
    assert sum(row["records"] for row in ran.json) == 21
    found = read("keyed", 21, 5)
    assert {one.key(): one.value() for one in found} == {
        **{b"%d" % n: b"v%d" % n for n in range(20)},
        b"20": None,
    }
    assert all(one.partition() == partition_for_key(one.key(), 5) for one in found)


def test_what_consume_gives_produce_takes(desk: Desk, read: Read, typed: Callable[[bytes], None]) -> None:
    told = {
        "key": "00ff",
        "value": {"a": [1]},
        "headers": [["h", "x"], ["n", None]],
        "timestamp": 1234,
    }
    typed(json.dumps(told).encode() + b"\n" + json.dumps({"value": "text"}).encode() + b"\n")
    assert desk("produce", "whole", "--records", "--key-format", "hex", "--value-format", "json").status == 0
    first, second = read("whole", 2)
    assert (first.key(), first.value(), first.headers(), first.timestamp()[1]) == (
        b"\x00\xff",
        b'{"a":[1]}',
        [("h", b"x"), ("n", None)],
        1234,
    )
    assert (second.key(), second.value()) == (None, b'"text"')


@pytest.mark.parametrize("form", ["text", "json", "hex"])
def test_a_copy_has_the_bytes_of_what_it_was_made_of(
    desk: Desk, read: Read, producer: Producer, typed: Callable[[bytes], None], form: str
) -> None:
    """Also of what is not of the form that it is read as, and of what looks as that is shown."""
    odd = [b"\xff\xfe", b'{"hex":"ff"}', b"\\xff", b"", None, b'{"n":1}', b'"\\ud800"', b"\xed\xa0\x80"]
    for data in odd:
        producer.produce("odd", data, data, headers=[("h", data), ("n", None)], timestamp=99)
    producer.flush(5)
    forms = ("--key-format", form, "--value-format", form)
    ran = desk("consume", "odd", "--from", "beginning", "--until", "end", "--json", *forms)
    copy = f"odd-{form}"
    typed(ran.out.encode())
    assert desk("produce", copy, "--records", *forms).status == 0
    desk("topics", "delete", "odd")
    assert [(one.key(), one.value(), one.headers()) for one in read(copy, len(odd))] == [
        (data, data, [("h", data), ("n", None)]) for data in odd
    ]


def test_a_record_without_a_value_is_no_tombstone(
    desk: Desk, read: Read, typed: Callable[[bytes], None]
) -> None:
    refused = {
        b'{"val": 1}': "line 1: a record has no field 'val', did you mean 'value'?",
        b'{"key": "k"}': "line 1: the value is missing; use null for a tombstone",
        b'{"value": "\\ud800"}': "line 1: a lone surrogate, which is not text",
        b'{"value": {"hex": "f"}}': "line 1: not hexadecimal digits: 'f'",
        b'{"value": "v", "headers": {"\\ud800": "x"}}': "line 1: the name of header '\\ud800' is not UTF-8",
        b'{"value": "v", "timestamp": 1e3}': "line 1: timestamp is not a whole number",
        b'{"value": "v", "timestamp": %d}' % (1 << 63): "line 1: timestamp is not a number from 0 to ",
    }
    for line, sentence in refused.items():
        typed(line)
        assert sentence in desk("produce", "tombs", "--records").sentence
    assert "name of header" in desk("produce", "tombs", "v", "--header", "\udcff=1").sentence
    typed(b'{"key": "k", "value": null}')
    assert desk("produce", "tombs", "--records").status == 0
    assert [(one.key(), one.value()) for one in read("tombs", 1)] == [(b"k", None)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acknowledgements(desk: Desk, read: Read, acks: str) -> None:
    assert desk("produce", f"acks{acks}", "x", "--acks", acks).status == 0
    assert read(f"acks{acks}", 1)[0].value() == b"x"


def test_many_batches_are_each_written_once(
    desk: Desk, read: Read, typed: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.cli.records.produce.CHUNK_BYTES", 64)
    typed(b"".join(b"%d\n" % n for n in range(500)))
    assert desk("produce", "many", "--json").json == [{"partition": 0, "records": 500, "first_offset": 0}]
    assert [one.value() for one in read("many", 500)] == [b"%d" % n for n in range(500)]


def test_what_is_wrong_is_one_sentence(desk: Desk, typed: Callable[[bytes], None]) -> None:
    desk("topics", "create", "wrong", "--config", "max.message.bytes=100")
    assert "raise max.message.bytes" in desk("produce", "wrong", "x" * 200).sentence
    assert "has only partition 0, not 3" in desk("produce", "wrong", "x", "--partition", "3").sentence
    assert "line 2: not JSON" in desk("produce", "wrong", "1", "{", "--value-format", "json").sentence
    assert "not hexadecimal" in desk("produce", "wrong", "zz", "--value-format", "hex").sentence
    typed(b"a:b\nc\n")
    assert "line 2: no key separator ':' in" in desk("produce", "wrong", "--key-separator", ":").sentence
    typed(b"[1]\n")
    assert "not an object" in desk("produce", "wrong", "--records").sentence
    assert desk("produce", "wrong", "--records", "--key", "k").status == 2
    typed(b'{"partition": 2, "value": "x"}\n')
    assert (
        "'kwire topics alter wrong --partitions 3' adds partitions"
        in desk("produce", "wrong", "--records").sentence
    )
    assert desk("topics", "describe", "wrong", "--offsets", "--json").json[0]["end"] == 0


def test_a_file_of_a_client_says_who_acknowledges(desk: Desk, read: Read, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    for text, said in (
        ("acks=7", f"acks=7 in {file}: expected one of all, 0, 1, -1"),
        ("compression.type=zip", f"compression.type=zip in {file}: expected one of none, gzip, "),
    ):
        file.write_text(text)
        assert said in desk("produce", "by-file", "x", "--command-config", str(file)).sentence
    file.write_text("acks=-1\ncompression.type=lz4")
    assert desk("produce", "by-file", "x", "--command-config", str(file)).status == 0
    assert read("by-file", 1)[0].value() == b"x"


def test_what_brokers_keep_is_not_written_to(desk: Desk) -> None:
    assert "is internal: clients cannot write to it" in desk("produce", "__consumer_offsets", "x").sentence


def test_lines_are_given_as_they_come() -> None:
    class Slowly(io.RawIOBase):
        parts = [b"a\nb", b"c\nd\n", b"e"]

        def read1(self, size: int) -> bytes:
            return self.parts.pop(0) if self.parts else b""

    assert list(read_lines(Slowly())) == [["a"], ["bc", "d"], ["e"]]  # type: ignore[arg-type]

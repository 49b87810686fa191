"""`kwire produce`, checked with a confluent-kafka consumer."""

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
from tests.cli.run_command import RunCommand

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


def test_arguments_are_sent_as_records(run: RunCommand, read: Read) -> None:
    result = run(
        "produce", "args", "one", "two", "--key", "k", "--header", "from=cli", "--compression", "zstd"
    )
    assert result.out == "sent 2 to args-0, starting at offset 0\n"
    found = read("args", 2)
    assert [(one.key(), one.value(), one.headers()) for one in found] == [
        (b"k", b"one", [("from", b"cli")]),
        (b"k", b"two", [("from", b"cli")]),
    ]


def test_example_in_the_help_works(run: RunCommand, read: Read) -> None:
    command = shlex.split(
        next(line for line in run("produce", "--help").out.splitlines() if "--key 17" in line)
    )
    result = run(*command[1:])
    assert result.err == ""
    [found] = read("orders", 1)
    assert (found.key(), found.value(), found.headers()) == (b"17", b'{"amount": 3}', [("source", b"cli")])


def test_key_of_a_line_selects_the_partition(
    run: RunCommand, read: Read, set_stdin: Callable[[bytes], None]
) -> None:
    run("topics", "create", "keyed", "--partitions", "5")
    set_stdin(b"".join(b"%d:v%d\r\n" % (n, n) for n in range(20)) + b"20:-")
    result = run("produce", "keyed", "--key-separator", ":", "--null-value", "-", "--json")
    assert sum(row["records"] for row in result.json) == 21
    found = read("keyed", 21, 5)
    assert {one.key(): one.value() for one in found} == {
        **{b"%d" % n: b"v%d" % n for n in range(20)},
        b"20": None,
    }
    assert all(one.partition() == partition_for_key(one.key(), 5) for one in found)


def test_produce_accepts_the_json_of_consume(
    run: RunCommand, read: Read, set_stdin: Callable[[bytes], None]
) -> None:
    record = {
        "key": "00ff",
        "value": {"a": [1]},
        "headers": [["h", "x"], ["n", None]],
        "timestamp": 1234,
    }
    set_stdin(json.dumps(record).encode() + b"\n" + json.dumps({"value": "text"}).encode() + b"\n")
    assert run("produce", "whole", "--records", "--key-format", "hex", "--value-format", "json").status == 0
    first, second = read("whole", 2)
    assert (first.key(), first.value(), first.headers(), first.timestamp()[1]) == (
        b"\x00\xff",
        b'{"a":[1]}',
        [("h", b"x"), ("n", None)],
        1234,
    )
    assert (second.key(), second.value()) == (None, b'"text"')


@pytest.mark.parametrize("format_name", ["text", "json", "hex"])
def test_copy_by_consume_and_produce_keeps_all_bytes(
    run: RunCommand, read: Read, producer: Producer, set_stdin: Callable[[bytes], None], format_name: str
) -> None:
    """Includes values that are invalid in the format, and values that look like the escaped form."""
    values = [b"\xff\xfe", b'{"hex":"ff"}', b"\\xff", b"", None, b'{"n":1}', b'"\\ud800"', b"\xed\xa0\x80"]
    for data in values:
        producer.produce("odd", data, data, headers=[("h", data), ("n", None)], timestamp=99)
    producer.flush(5)
    forms = ("--key-format", format_name, "--value-format", format_name)
    result = run("consume", "odd", "--from", "beginning", "--until", "end", "--json", *forms)
    copy = f"odd-{format_name}"
    set_stdin(result.out.encode())
    assert run("produce", copy, "--records", *forms).status == 0
    run("topics", "delete", "odd")
    assert [(one.key(), one.value(), one.headers()) for one in read(copy, len(values))] == [
        (data, data, [("h", data), ("n", None)]) for data in values
    ]


def test_invalid_json_records_are_refused(
    run: RunCommand, read: Read, set_stdin: Callable[[bytes], None]
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
    for line, message in refused.items():
        set_stdin(line)
        assert message in run("produce", "tombs", "--records").sentence
    assert "name of header" in run("produce", "tombs", "v", "--header", "\udcff=1").sentence
    set_stdin(b'{"key": "k", "value": null}')
    assert run("produce", "tombs", "--records").status == 0
    assert [(one.key(), one.value()) for one in read("tombs", 1)] == [(b"k", None)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_produce_with_each_acks_value(run: RunCommand, read: Read, acks: str) -> None:
    assert run("produce", f"acks{acks}", "x", "--acks", acks).status == 0
    assert read(f"acks{acks}", 1)[0].value() == b"x"


def test_many_batches_are_each_sent_once(
    run: RunCommand, read: Read, set_stdin: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.cli.records.produce.CHUNK_BYTES", 64)
    set_stdin(b"".join(b"%d\n" % n for n in range(500)))
    assert run("produce", "many", "--json").json == [{"partition": 0, "records": 500, "first_offset": 0}]
    assert [one.value() for one in read("many", 500)] == [b"%d" % n for n in range(500)]


def test_produce_errors_are_one_sentence(run: RunCommand, set_stdin: Callable[[bytes], None]) -> None:
    run("topics", "create", "wrong", "--config", "max.message.bytes=100")
    assert "raise max.message.bytes" in run("produce", "wrong", "x" * 200).sentence
    assert "has only partition 0, not 3" in run("produce", "wrong", "x", "--partition", "3").sentence
    assert "line 2: not JSON" in run("produce", "wrong", "1", "{", "--value-format", "json").sentence
    assert "not hexadecimal" in run("produce", "wrong", "zz", "--value-format", "hex").sentence
    set_stdin(b"a:b\nc\n")
    assert "line 2: no key separator ':' in" in run("produce", "wrong", "--key-separator", ":").sentence
    set_stdin(b"[1]\n")
    assert "not an object" in run("produce", "wrong", "--records").sentence
    assert run("produce", "wrong", "--records", "--key", "k").status == 2
    set_stdin(b'{"partition": 2, "value": "x"}\n')
    assert (
        "'kwire topics alter wrong --partitions 3' adds partitions"
        in run("produce", "wrong", "--records").sentence
    )
    assert run("topics", "describe", "wrong", "--offsets", "--json").json[0]["end"] == 0


def test_acks_and_compression_come_from_the_command_config(
    run: RunCommand, read: Read, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    for text, message in (
        ("acks=7", f"acks=7 in {file}: expected one of all, 0, 1, -1"),
        ("compression.type=zip", f"compression.type=zip in {file}: expected one of none, gzip, "),
    ):
        file.write_text(text)
        assert message in run("produce", "by-file", "x", "--command-config", str(file)).sentence
    file.write_text("acks=-1\ncompression.type=lz4")
    assert run("produce", "by-file", "x", "--command-config", str(file)).status == 0
    assert read("by-file", 1)[0].value() == b"x"


def test_produce_to_an_internal_topic_is_refused(run: RunCommand) -> None:
    assert "is internal: clients cannot write to it" in run("produce", "__consumer_offsets", "x").sentence


def test_read_lines_yields_lines_as_they_arrive() -> None:
    class Slowly(io.RawIOBase):
        parts = [b"a\nb", b"c\nd\n", b"e"]

        def read1(self, size: int) -> bytes:
            return self.parts.pop(0) if self.parts else b""

    assert list(read_lines(Slowly())) == [["a"], ["bc", "d"], ["e"]]  # type: ignore[arg-type]

"""`kwire produce`: write lines of standard input, or arguments, to a topic."""

from __future__ import annotations

import json
import random
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, NamedTuple

from kwire.cli.records.formats import TEXT, Encoder, add_serializer_options, encode, encoders
from kwire.cli.records.partitioner import partition_for_key
from kwire.cli.shared.client_settings import pairs, settings_from_options
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import FormatMismatch, suggestion
from kwire.cli.shared.options import (
    add_connection_options,
    add_json_option,
    add_repeatable_option,
    command_parser,
)
from kwire.cli.shared.output import Output
from kwire.client.errors import UnknownPartition, raise_for_code
from kwire.client.producer import ACKS, TopicProducer
from kwire.wire.batch import NewRecord
from kwire.wire.compression import Codec
from kwire.wire.errors import ErrorCode

CHUNK_BYTES: Final = 256 * 1024
"""Read size. Lines that are read together are sent together; slow input is sent as it arrives."""
MAX_LINE_BYTES: Final = 128 * 1024 * 1024
CREATE_SECONDS: Final = 5
"""Maximum time of automatic topic creation, which may be disabled."""

ALL: Final = "-1"
"""The value of acks for all replicas in properties files."""
FIELDS: Final = ("key", "value", "headers", "partition", "timestamp", "topic", "offset")
"""Fields of a JSON record. Topic and offset are ignored: they describe where the record was consumed."""
HEADER: Final = Encoder(TEXT)
MAX_NUMBER: Final = (1 << 63) - 1
NULL: Final = None


class InputRecord(NamedTuple):
    """A record to send, and its partition if the input names a partition."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    partition: int | None
    timestamp: int | None


def parser(name: str) -> ArgumentParser:
    parser = command_parser(
        name,
        "Write each line of standard input, or each VALUE, to a topic as one record.",
        "kwire produce orders --key-separator : < orders.txt\n"
        "  kwire produce orders --key 17 '{\"amount\": 3}' --header source=cli",
        run,
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "values", nargs="*", default=(), metavar="VALUE", help="values (default: lines of standard input)"
    )
    parser.add_argument("--key", metavar="KEY", help="key of all records")
    parser.add_argument("--key-separator", metavar="TEXT", help="text between key and value in each line")
    parser.add_argument(
        "--records",
        action="store_true",
        help="read JSON records, as printed by 'kwire consume --json', one per line",
    )
    add_serializer_options(parser)
    parser.add_argument("--null-value", metavar="TEXT", help="text that stands for a null value, a tombstone")
    add_repeatable_option(parser, "--header", "NAME=TEXT", "header of all records")
    parser.add_argument("--partition", type=int, metavar="N", help="the partition (default: chosen by key)")
    parser.add_argument("--acks", choices=sorted(ACKS), help="required acknowledgments (default: all)")
    parser.add_argument(
        "--compression", choices=[codec.name.lower() for codec in Codec], help="compression (default: none)"
    )
    add_connection_options(parser)
    add_json_option(parser)
    return parser


def run(options: Namespace, output: Output) -> int:
    if options.key is not None and (options.key_separator or options.records):
        raise UsageError("--key applies to all records: omit --key-separator and --records")
    if options.key_separator == "":
        raise UsageError("--key-separator is empty: expected the text between key and value")
    if sys.stdin is None and not options.values:
        raise UsageError("standard input is closed: write lines to it, or pass values as arguments")
    settings = settings_from_options(options)
    acks, codec = _producer_settings(options, settings.properties)
    key, value = encoders(options, settings.properties)
    with CommandClient(settings) as cluster:
        partitions = _partitions(cluster, options.topic)
        if options.partition is not None and options.partition not in partitions:
            raise UnknownPartition(options.topic, options.partition, len(partitions))
        sending = TopicProducer(cluster, options.topic, acks, codec)
        spread = random.Random()
        if not options.values and sys.stdin.buffer.isatty():
            output.note(f"each line is sent to {options.topic} when it ends; Ctrl-D ends the input")
        with output.progress("records sent") as progress:
            for lines in _chunks(options, key, value):
                # Records without a key that arrive together stay together, as with Java's sticky partitioner.
                any_partition = spread.choice(partitions)
                batches: dict[int, list[NewRecord]] = {}
                now_ms = time.time_ns() // 1_000_000
                for line in lines:
                    partition = _partition(line, options, partitions, any_partition)
                    at = now_ms if line.timestamp is None else line.timestamp
                    batches.setdefault(partition, []).append((at, line.key, line.value, line.headers))
                sending.send(batches)
                progress.update(sending.record_count)
        if output.as_json:
            output.document(sending.totals())
        else:
            for row in sending.totals():
                start = "" if row["first_offset"] is None else f", starting at offset {row['first_offset']}"
                output.line(f"sent {row['records']} to {options.topic}-{row['partition']}{start}")
    return 0


def _producer_settings(options: Namespace, properties: Mapping[str, str]) -> tuple[int, Codec]:
    """Return acks and compression. Raises CommandError for invalid values in the properties file."""
    acks = options.acks or properties.get("acks", "all")
    codec = options.compression or properties.get("compression.type", "none")
    for key, given, known in (
        ("acks", acks, [*ACKS, ALL]),
        ("compression.type", codec, [one.name.lower() for one in Codec]),
    ):
        if given not in known:
            raise CommandError(
                f"{key}={given} in {options.command_config}: expected one of {', '.join(known)}"
            )
    return ACKS["all" if acks == ALL else acks], Codec[codec.upper()]


def _partition(line: InputRecord, options: Namespace, partitions: Sequence[int], any_partition: int) -> int:
    if options.partition is not None:
        return int(options.partition)
    if line.partition is not None:
        if line.partition not in partitions:
            no_partition = UnknownPartition(options.topic, line.partition, len(partitions))
            more = f"kwire topics alter {options.topic} --partitions {line.partition + 1}"
            raise CommandError(f"{no_partition}: '{more}' adds partitions, or choose one with --partition")
        return line.partition
    return any_partition if line.key is None else partition_for_key(line.key, len(partitions))


def _partitions(cluster: CommandClient, topic: str) -> list[int]:
    """Return the partitions of a topic. The broker may create the topic. Raises CommandError, ApiError."""
    began: float | None = None

    def attempt() -> list[int]:
        nonlocal began
        found = cluster.metadata([topic], create=True).topics[0]
        began = began or time.monotonic()  # the first request begins the creation
        unknown = found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if unknown and time.monotonic() - began > CREATE_SECONDS:
            raise CommandError(f"there is no topic '{topic}': create it with 'kwire topics create {topic}'")
        raise_for_code(found.error_code, None, f"topic {topic}")
        if found.is_internal:
            raise CommandError(f"topic {topic} is internal: clients cannot write to it")
        return sorted(one.partition_index for one in found.partitions)

    return cluster.retry(attempt)


def _chunks(options: Namespace, key: Encoder, value: Encoder) -> Iterator[list[InputRecord]]:
    """Yield the input records in chunks that are available together. Raises CommandError."""
    given = pairs(options.header, "--header")
    try:
        headers = [(_header_name(name), encode(text, TEXT)) for name, text in given.items()]
    except FormatMismatch as mismatch:
        raise UsageError(f"--header: {mismatch}") from mismatch
    number = 0
    for chunk in [options.values] if options.values else read_lines(sys.stdin.buffer):
        lines = []
        for text in chunk:
            number += 1
            try:
                line = _object(text, key, value) if options.records else _line(text, options, key, value)
            except FormatMismatch as mismatch:
                raise CommandError(f"line {number}: {mismatch}") from mismatch
            lines.append(line._replace(headers=[*line.headers, *headers]))
        if lines:
            yield lines


def _header_name(name: str) -> str:
    """Return the name of a header unchanged. Raises FormatMismatch if UTF-8 cannot encode it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise FormatMismatch(f"the name of header {name!a} is not UTF-8") from None
    return name


def read_lines(stream: BinaryIO) -> Iterator[list[str]]:
    """Yield lines in chunks that are available together. Raises CommandError for a line that is too long."""
    read: Any = getattr(stream, "read1", stream.read)
    rest = b""
    try:
        while chunk := read(CHUNK_BYTES):
            *whole, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise CommandError(
                    f"a line is longer than {MAX_LINE_BYTES} bytes: separate records with newlines"
                )
            if whole:
                yield list(map(_decoded, whole))
    except OSError as error:
        raise CommandError(f"standard input cannot be read: {error.strerror}") from error
    if rest:
        yield [_decoded(rest)]


def _decoded(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "surrogateescape")


def _line(text: str, options: Namespace, key: Encoder, value: Encoder) -> InputRecord:
    named = options.key
    if options.key_separator is not None:
        named, separator, text = text.partition(options.key_separator)
        if not separator:
            raise FormatMismatch(f"no key separator {options.key_separator!r} in {named[:80]!r}")
    return InputRecord(
        None if named is None else key.encode_text(named),
        NULL if text == options.null_value else value.encode_text(text),
        (),
        None,
        None,
    )


def _object(text: str, key: Encoder, value: Encoder) -> InputRecord:
    """Parse a JSON record. Raises FormatMismatch."""
    try:
        record = json.loads(text)
    except ValueError as error:
        raise FormatMismatch(
            f"not JSON ({error}): give one object per line, as 'kwire consume --json' prints it"
        ) from None
    if not isinstance(record, Mapping):
        raise FormatMismatch("not an object with key and value")
    if unknown := record.keys() - FIELDS:
        name = min(unknown)
        near = suggestion(name, FIELDS) or f": expected {', '.join(FIELDS)}"
        raise FormatMismatch(f"a record has no field '{name}'{near}")
    if "value" not in record:
        raise FormatMismatch("the value is missing; use null for a tombstone")
    headers = record.get("headers") or []
    pairs_: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    try:
        named = [(str(name), text) for name, text in pairs_]
    except (TypeError, ValueError):
        raise FormatMismatch("headers must be an object, or an array of names and values") from None
    for name in ("partition", "timestamp"):
        number = record.get(name)
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise FormatMismatch(f"{name} is not a whole number")
        if number is not None and not -1 <= number < MAX_NUMBER:
            raise FormatMismatch(f"{name} is not a number from 0 to {MAX_NUMBER}")
    return InputRecord(
        key.encode_json(record.get("key")),
        value.encode_json(record["value"]),
        [(_header_name(name), HEADER.encode_json(text)) for name, text in named],
        record.get("partition"),
        record.get("timestamp"),
    )

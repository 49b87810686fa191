"""`kwire consume`: print records of topics."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Final

from kwire.cli.records.formats import (
    Decode,
    add_deserializer_options,
    as_json,
    decode_or_hex,
    decode_text,
    decoders,
    format_line,
)
from kwire.cli.records.positions import END, POSITIONS_HELP, resolve_position
from kwire.cli.shared.client_settings import settings_from_options
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import UsageError
from kwire.cli.shared.options import add_connection_options, add_json_option, command_parser
from kwire.cli.shared.output import CYAN, DIM, Output, format_time
from kwire.client.consumer import Consumer, ConsumerRecord
from kwire.client.errors import UnknownPartition
from kwire.wire.primitives import TopicPartition

COMMITTED: Final = "read_committed"


def parser(name: str) -> ArgumentParser:
    parser = command_parser(
        name,
        "Print records of topics, existing and new ones, until Ctrl-C or a limit is reached.",
        "kwire consume orders --from beginning --until end --value-format json\n"
        "  kwire consume orders --from 10m --json | jq .value",
        run,
    )
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    parser.add_argument(
        "--partition", type=int, action="append", metavar="N", help="only this partition; can be repeated"
    )
    parser.add_argument(
        "--from", dest="start", default=END, metavar="POSITION", help=f"{POSITIONS_HELP} (default: end)"
    )
    parser.add_argument(
        "--until", metavar="POSITION", help="stop at this position, which is resolved when the command starts"
    )
    parser.add_argument("-n", "--max", type=int, metavar="N", help="stop after N records")
    parser.add_argument("--idle", type=float, metavar="SECONDS", help="stop after this time without records")
    parser.add_argument(
        "--read-committed", action="store_true", help="skip records of open and aborted transactions"
    )
    parser.add_argument("--values", action="store_true", help="print values only, one per line")
    add_deserializer_options(parser)
    add_connection_options(parser)
    add_json_option(parser)
    return parser


def run(options: Namespace, output: Output) -> int:
    if options.values and options.json:
        raise UsageError("--values and --json cannot be used together")
    if options.max is not None and options.max < 1:
        raise UsageError(f"--max {options.max}: expected 1 or more")
    if options.idle is not None and not options.idle >= 0:
        raise UsageError(f"--idle {options.idle:g}: expected 0 or more seconds")
    settings = settings_from_options(options)
    shown = _RecordPrinter(output, *decoders(options, settings.properties), values_only=options.values)
    committed = options.read_committed or settings.properties.get("isolation.level") == COMMITTED
    with CommandClient(settings) as cluster:
        partitions = _partitions(cluster, options)
        now_ms = time.time_ns() // 1_000_000
        starts = resolve_position(cluster, options.start, partitions, now_ms, "--from", committed=committed)
        ends = (
            None
            if options.until is None
            else resolve_position(cluster, options.until, partitions, now_ms, "--until", committed=committed)
        )
        if ends is not None and all(starts[one] >= ends[one] for one in partitions):
            output.note(f"there are no records from {options.start} until {options.until}")
        reader = Consumer(cluster, starts, committed=committed, note=output.note)
        left = options.max if options.max is not None else -1
        last = time.monotonic()
        while left:
            open_ = [one for one in partitions if ends is None or reader.positions[one] < ends[one]]
            if not open_:
                break
            for found in reader.poll(open_):
                last = time.monotonic()
                if ends is None or found.record.offset < ends[found.partition]:
                    shown.show(found)
                    left -= 1
                    if not left:
                        break
            output.out.flush()
            if options.idle is not None and time.monotonic() - last >= options.idle:
                break
    return 0


def _partitions(cluster: CommandClient, options: Namespace) -> list[TopicPartition]:
    found = []
    for topic in cluster.topics(options.topics):
        existing = sorted(one.partition_index for one in topic.partitions)
        for index in options.partition or ():
            if index not in existing:
                raise UnknownPartition(topic.name or "", index, len(existing))
        found += [(topic.name or "", index) for index in options.partition or existing]
    return found


class _RecordPrinter:
    """Printer of records, one per line."""

    def __init__(self, output: Output, key: Decode, value: Decode, *, values_only: bool) -> None:
        self._output = output
        self._key = key
        self._value = value
        self._values_only = values_only

    def show(self, found: ConsumerRecord) -> None:
        (topic, partition), record = found
        key = self._decode(self._key, record.key, found, "key")
        value = self._decode(self._value, record.value, found, "value")
        headers = [
            [name, self._decode(decode_text, data, found, f"header {name}")] for name, data in record.headers
        ]
        output = self._output
        if output.as_json:
            row = {
                "topic": topic,
                "partition": partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": key,
                "value": value,
                "headers": headers,
            }
            output.line(as_json(row))
        elif self._values_only:
            output.line(output.printable(_text(value)))
        else:
            place = f"{topic}-{partition}@{record.offset} {format_time(record.timestamp) or '-'}"
            named = "".join(f" {name}={_text(text)}" for name, text in headers)
            output.line(
                output.colored(place, DIM)
                + output.colored(output.printable(named), CYAN)
                + ("" if key is None else " " + output.printable(_text(key)) + " →")
                + " "
                + output.printable(_text(value))
            )

    def _decode(self, decode: Decode, data: bytes | None, found: ConsumerRecord, what: str) -> object:
        shown, why = decode_or_hex(decode, data)
        if why is not None:
            (topic, partition), record = found
            self._output.note(f"{topic}-{partition}@{record.offset}: printing the {what} as hex: {why}")
        return shown


def _text(value: object) -> str:
    return "null" if value is None else format_line(value)

"""`kwire dump`: print and check the files of a data directory, written by kwire or Apache Kafka."""

from __future__ import annotations

import json
import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from kwire.broker.raft.quorum_state import FILE_NAME as QUORUM_STATE
from kwire.broker.raft.quorum_state import decode_quorum_state
from kwire.broker.storage.checkpoints import (
    CLEANED_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_epochs,
    read_offsets,
)
from kwire.broker.storage.disk import RealDisk, StorageError
from kwire.broker.storage.log.producer_snapshot import CorruptSnapshot, read_snapshot
from kwire.broker.storage.log.transaction_index import read_aborted_txns
from kwire.cli.files.internal_records import KIND_BY_TOPIC, METADATA
from kwire.cli.files.segment_files import (
    PROBLEM,
    SegmentFilter,
    dump_batches,
    dump_offset_index,
    dump_time_index,
    problem_row,
    read_file,
)
from kwire.cli.records.formats import add_deserializer_options, as_json, decoders
from kwire.cli.records.positions import MAX_OFFSET
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import cannot_read
from kwire.cli.shared.options import add_json_option, command_parser
from kwire.cli.shared.output import BOLD, DIM, RED, Output, Row, format_time
from kwire.wire.java_properties import load

_PARTITION: Final = re.compile(r"(.+)-\d+(?:\.[0-9a-f]{32}-(?:delete|future|stray))?")
ORDER: Final = (".log", ".checkpoint", ".index", ".timeindex", ".txnindex", ".snapshot")
CHECKPOINTS: Final = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANED_OFFSETS)


def parser(name: str) -> ArgumentParser:
    parser = command_parser(
        name,
        "Print and check the files of a data directory. The files are only read, and no broker is needed.",
        "kwire dump kwire-data/orders-0\n"
        "  kwire dump kwire-data/__consumer_offsets-3/00000000000000000000.log --records",
        run,
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a file, a partition's directory, or a data directory"
    )
    parser.add_argument("--records", action="store_true", help="include the records of each batch")
    parser.add_argument(
        "--as",
        dest="kind",
        choices=(*sorted(set(KIND_BY_TOPIC.values())), "plain"),
        help="type of the records (default: derived from the directory's name)",
    )
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="OFFSET", help="first offset")
    parser.add_argument(
        "--until", dest="last", type=int, default=MAX_OFFSET, metavar="OFFSET", help="last offset"
    )
    add_deserializer_options(parser)
    add_json_option(parser)
    return parser


def run(options: Namespace, output: Output) -> int:
    if options.first > options.last:
        raise UsageError(f"--from {options.first} is greater than --until {options.last}")
    problems = 0
    shown = 0
    with output.progress("rows") as progress:
        for path in (path for given in options.paths for path in _files(given)):
            if not output.as_json:
                output.line(path, BOLD)
            for row in _rows(path, options):
                problems += PROBLEM in row
                _show(output, path, row)
                shown += 1
                if not output.is_terminal:
                    progress.update(shown)
    if problems:
        output.note(f"problems found: {problems}")
    return 1 if problems else 0


def _show(output: Output, path: str, row: Row) -> None:
    if output.as_json:
        output.line(as_json({"file": path, **row}))
    elif PROBLEM in row:
        output.line(f"  PROBLEM: {row[PROBLEM]}", RED)
    else:
        fields = "  ".join(
            f"{output.colored(name.replace('_', ' '), DIM)} {output.printable(_text(value))}"
            for name, value in row.items()
            if value is not None
        )
        output.line(("    " if "offset" in row and "batch" not in row else "  ") + fields)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return as_json(value) if isinstance(value, (dict, list)) else str(value)


def _files(path: str) -> Iterator[str]:
    """Yield the path of a file, or of the known files in a directory. Raises CommandError."""
    if not os.path.exists(path):
        raise CommandError(f"{path}: no such file or directory: give a path below a broker's log.dirs")
    if not os.path.isdir(path):
        yield path
        return
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise cannot_read(path, error) from error
    known = [name for name in names if _reader(name) is not None]
    if not known:
        raise CommandError(f"{path} has no Kafka files: give a data directory or a partition's directory")
    known.sort(
        key=lambda name: (ORDER.index(end) if (end := os.path.splitext(name)[1]) in ORDER else -1, name)
    )
    for name in known:
        yield os.path.join(path, name)


def _rows(path: str, options: Namespace) -> Iterable[Row]:
    read = _reader(os.path.basename(path))
    if read is None:
        raise CommandError(
            f"{path} has an unknown name: expected a segment (.log), an index, a snapshot or a checkpoint"
        )
    try:
        yield from read(path, options)
    except StorageError as error:
        yield problem_row(str(error))


def _reader(name: str) -> Callable[[str, Namespace], Iterable[Row]] | None:
    if name in _BY_NAME:
        return _BY_NAME[name]
    # Files that are to be deleted or swapped in have the format of the original.
    name = re.sub(r"\.(deleted|cleaned|swap)$", "", name)
    return _BY_SUFFIX.get(os.path.splitext(name)[1])


def _segment(path: str, options: Namespace) -> Iterable[Row]:
    kind = options.kind
    if kind is None:
        parent = os.path.basename(os.path.dirname(os.path.abspath(path)))
        partition = _PARTITION.fullmatch(parent)
        kind = KIND_BY_TOPIC.get(partition[1]) if partition else None
        if path.endswith(".checkpoint"):
            kind = METADATA
    key, value = decoders(options, {})
    wanted = SegmentFilter(
        options.records, None if kind == "plain" else kind, key, value, options.first, options.last
    )
    return dump_batches(path, wanted)


def _aborted(path: str, _: Namespace) -> Iterator[Row]:
    for one in read_aborted_txns(RealDisk(), path):
        yield {
            "producer_id": one.producer_id,
            "first_offset": one.first_offset,
            "last_offset": one.last_offset,
            "last_stable_offset": one.last_stable_offset,
        }


def _snapshot(path: str, _: Namespace) -> Iterator[Row]:
    try:
        producers = list(read_snapshot(read_file(path)))
    except CorruptSnapshot as error:
        yield problem_row(str(error))
        return
    for producer_id, state in producers:
        yield {
            "producer_id": producer_id,
            "epoch": state.epoch,
            "last_sequence": state.last_sequence,
            "last_offset": state.batches[-1].last_offset if state.batches else None,
            "time": format_time(state.last_timestamp),
            "coordinator_epoch": state.coordinator_epoch,
            "txn_start_offset": state.txn_first_offset,
        }


def _offsets(path: str, _: Namespace) -> Iterator[Row]:
    for (topic, partition), offset in sorted(read_offsets(RealDisk(), path).items()):
        yield {"topic": topic, "partition": partition, "checkpoint": offset}


def _epochs(path: str, _: Namespace) -> Iterator[Row]:
    for epoch, start in read_epochs(RealDisk(), path):
        yield {"leader_epoch": epoch, "start_offset": start}


def _properties(path: str, _: Namespace) -> Iterator[Row]:
    try:
        yield dict(load(read_file(path).decode("iso-8859-1")))
    except ValueError as error:
        yield problem_row(str(error))


def _partition_metadata(path: str, _: Namespace) -> Iterator[Row]:
    yield dict(
        (part.strip() for part in line.split(":", 1))  # type: ignore[misc]
        for line in read_file(path).decode("utf-8", "replace").splitlines()
        if ":" in line
    )


def _quorum_state(path: str, _: Namespace) -> Iterator[Row]:
    try:
        decode_quorum_state(content := read_file(path))
        yield json.loads(content)
    except ValueError as error:
        yield problem_row(str(error))


_BY_NAME: Final[Mapping[str, Callable[[str, Namespace], Iterable[Row]]]] = {
    **dict.fromkeys(CHECKPOINTS, _offsets),
    LEADER_EPOCHS: _epochs,
    PARTITION_METADATA: _partition_metadata,
    META_PROPERTIES: _properties,
    QUORUM_STATE: _quorum_state,
}
_BY_SUFFIX: Final[Mapping[str, Callable[[str, Namespace], Iterable[Row]]]] = {
    ".log": _segment,
    ".checkpoint": _segment,
    ".index": lambda path, _: dump_offset_index(path),
    ".timeindex": lambda path, _: dump_time_index(path),
    ".txnindex": _aborted,
    ".snapshot": _snapshot,
}

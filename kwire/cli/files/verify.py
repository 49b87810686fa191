"""`kwire logs verify`: find the batches in segment files that Kafka's clients or Apache Kafka cannot read."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator

from kwire.broker.storage.log.scan import InvalidBatch, LegacyFormat, WholeBatch, scan_batches
from kwire.broker.storage.log.validator import MAX_INT64, MIN_INT64
from kwire.cli.files.segment_files import open_read_only
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.errors import cannot_read
from kwire.cli.shared.output import RED, Output, Row
from kwire.wire.batch import MAGIC, CorruptBatch, crc_is_valid, decompress_records, read_header
from kwire.wire.plural import plural
from kwire.wire.record_scan import scan

SEGMENT = ".log"
MAX_BYTES = 0x7FFFFFFF


def verify_logs(options: Namespace, output: Output) -> int:
    """Check each batch of the segments below the given paths. Return 1 if a batch cannot be read."""
    rows: list[Row] = []
    batches = 0
    with output.progress("batches") as progress:
        for path in (path for given in options.paths for path in _segments(given)):
            for problem in _problems(path):
                if problem is not None:
                    rows.append(problem)
                batches += 1
                progress.update(batches)
    checked = "1 batch" if batches == 1 else f"all {plural(batches, 'batch')}"
    output.show(rows, empty=f"{checked} can be read", color=lambda row: RED)
    return 1 if rows else 0


def _segments(path: str) -> Iterator[str]:
    """Yield the segment at `path`, or all segments below it. Raises CommandError if there is none."""
    if not os.path.isdir(path):
        if not path.endswith(SEGMENT):
            raise CommandError(f"{path} is no segment: give a directory or a file with the suffix {SEGMENT}")
        yield path
        return

    def fail(error: OSError) -> None:
        raise cannot_read(error.filename, error) from error

    found = sorted(
        os.path.join(directory, name)
        for directory, _, names in os.walk(path, onerror=fail, followlinks=True)
        for name in names
        if _has_offset_name(name)
    )
    if not found:
        raise CommandError(f"{path} has no segments: give a data directory or a partition's directory")
    yield from found


def _has_offset_name(path: str) -> bool:
    name = os.path.basename(path)
    return name.endswith(SEGMENT) and name.removesuffix(SEGMENT).isdecimal()


def _problems(path: str) -> Iterator[Row | None]:
    """Yield the problem of each batch of a segment, or None for a batch that can be read."""

    def problem(offset: int | None, position: int, text: str) -> Row:
        return {"segment": path, "base_offset": offset, "position": position, "problem": text}

    file = open_read_only(path)
    position = 0
    least = int(os.path.basename(path).removesuffix(SEGMENT)) if _has_offset_name(path) else 0
    try:
        for batch in scan_batches(file, 0, file.size()):
            text = _problem_of(batch, least)
            yield problem(batch.location.base_offset, batch.location.position, text) if text else None
            position = batch.location.next_position
            if not text:
                least = batch.location.last_offset + 1
    except LegacyFormat as error:
        # Kafka's clients can read older formats, and kwire never writes them.
        raise CommandError(
            f"{path}: {error}: only segments with message format v2 can be verified"
        ) from error
    except InvalidBatch as error:
        if not _is_preallocated(path, position):
            yield problem(None, position, f"{error}; the rest of the segment was not checked")


def _problem_of(batch: WholeBatch, least_offset: int) -> str:
    """Return why the batch cannot be read, or an empty text.

    `least_offset` is the offset after the last record of the previous batch.
    """
    header = read_header(batch.buffer, batch.at)
    # The CRC covers neither the magic nor the base offset.
    if header.magic != MAGIC:
        return f"the magic is {header.magic}"
    if header.base_offset < least_offset:
        return f"the base offset is below {least_offset}"
    if not crc_is_valid(batch.buffer, batch.at, header):
        return "the CRC is wrong"
    try:
        payload = decompress_records(batch.buffer, batch.at, header, MAX_BYTES)
    except CorruptBatch as error:
        return str(error)
    found = scan(payload, header.records_count, header.base_timestamp, MIN_INT64, MAX_INT64, False)
    return found.problem_text


def _is_preallocated(path: str, position: int) -> bool:
    """Return whether only zeros follow, as in a segment that Apache Kafka has preallocated."""
    with open(path, "rb") as file:
        file.seek(position)
        return all(not chunk.strip(b"\0") for chunk in iter(lambda: file.read(1 << 20), b""))

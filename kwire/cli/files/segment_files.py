"""Rows that describe segments and indexes. The files are checked while they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from kwire.broker.storage.disk import RealFile, StorageError
from kwire.broker.storage.log.index import OFFSET_ENTRY, TIME_ENTRY
from kwire.broker.storage.log.scan import (
    BatchLocation,
    InvalidBatch,
    LegacyFormat,
    scan_batches,
    scan_headers,
)
from kwire.cli.files.internal_records import decode_control_record, decode_record
from kwire.cli.records.formats import Decode, as_hex_object, decode_or_hex, decode_text
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.errors import FormatMismatch, cannot_read
from kwire.cli.shared.output import Row, format_time
from kwire.client.consumer import MAX_BATCH_BYTES
from kwire.wire.batch import BatchHeader, CorruptBatch, Record, crc_is_valid, read_header, records

PROBLEM: Final = "problem"


class SegmentFilter(NamedTuple):
    """Selection and decoding of a segment's records, from offset `first` to offset `last`."""

    records: bool
    kind: str | None
    """Type of the records of an internal topic; None for other topics."""
    key: Decode
    value: Decode
    first: int
    last: int


def problem_row(text: str) -> Row:
    return {PROBLEM: text}


def open_read_only(path: str) -> RealFile:
    """Open a file for reading only. Raises CommandError."""
    try:
        return RealFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise cannot_read(path, error) from error


def base_offset(path: str) -> int:
    """Return the base offset in a file's name. Raises CommandError."""
    name = os.path.basename(path).partition(".")[0].partition("-")[0]
    if not name.isdecimal():
        raise CommandError(
            f"{path} is not named after its base offset, like 00000000000000000000.log: restore its name"
        )
    return int(name)


def dump_batches(path: str, wanted: SegmentFilter) -> Iterator[Row]:
    """Yield each batch of a segment, its records if selected, and problems. Raises CommandError."""
    file = open_read_only(path)
    try:
        for whole in scan_batches(file, 0, file.size()):
            if whole.location.last_offset < wanted.first:
                continue
            if whole.location.base_offset > wanted.last:
                return
            header = read_header(whole.buffer, whole.at)
            valid = crc_is_valid(whole.buffer, whole.at, header)
            yield _batch(whole.location, header, valid)
            if not valid:
                yield problem_row(f"the batch at byte {whole.location.position} has a wrong CRC")
            elif wanted.records:
                try:
                    for record in records(whole.buffer, whole.at, header, max_bytes=MAX_BATCH_BYTES):
                        if wanted.first <= record.offset <= wanted.last:
                            yield from _record(header, record, wanted)
                except CorruptBatch as error:
                    yield problem_row(f"the batch at byte {whole.location.position}: {error}")
    except (InvalidBatch, LegacyFormat) as error:
        yield problem_row(f"invalid data after the last batch: {error}")
    except StorageError as error:
        raise CommandError(f"{path}: {error}") from error


def _batch(place: BatchLocation, header: BatchHeader, valid: bool) -> Row:
    row: dict[str, object] = {
        "batch": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.records_count,
        "position": place.position,
        "size": place.size_bytes,
        "leader_epoch": header.leader_epoch,
        "time": format_time(header.max_timestamp),
        "codec": header.codec.name.lower() if header.attributes & 7 < 5 else header.attributes & 7,
        "crc_valid": valid,
    }
    if header.has_producer_id:
        row |= {
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "first_sequence": header.base_sequence,
            "last_sequence": header.last_sequence,
        }
    for name in ("is_transactional", "is_control", "has_log_append_time", "has_delete_horizon"):
        if getattr(header, name):
            row[name] = True
    return row


def _record(header: BatchHeader, record: Record, wanted: SegmentFilter) -> Iterator[Row]:
    row: dict[str, object] = {"offset": record.offset, "time": format_time(record.timestamp)}
    unread = []

    def show(decode: Decode, data: bytes | None) -> object:
        shown, why = decode_or_hex(decode, data)
        if why is not None:
            unread.append(why)
        return shown

    try:
        if header.is_control:
            row |= decode_control_record(record)
        elif wanted.kind is not None:
            row |= decode_record(wanted.kind, record)
        else:
            row |= {"key": show(wanted.key, record.key), "value": show(wanted.value, record.value)}
    except FormatMismatch as mismatch:
        row |= {"key": as_hex_object(record.key), "value": as_hex_object(record.value)}
        unread.append(str(mismatch))
    if record.headers:
        row["headers"] = [[name, show(decode_text, data)] for name, data in record.headers]
    yield {**row, "decode_error": "; ".join(unread)} if unread else row


def dump_offset_index(path: str) -> Iterator[Row]:
    """Yield each entry, followed by its problems. Raises CommandError.

    An entry has a problem if its offset is not larger than all earlier offsets, or if no batch with that
    offset or a lower one starts at its position.
    """
    base = base_offset(path)
    places = iter(_batch_headers(path))
    place = next(places, None)
    is_checked = place is not None
    last = -1
    for relative, position in _entries(path, OFFSET_ENTRY):
        if last >= 0 and not relative and not position:
            return  # preallocated space
        yield {"offset": base + relative, "position": position}
        if relative <= last:
            yield problem_row(f"offset {base + relative} follows {base + last}")
        last = max(last, relative)
        while place is not None and place.position < position:
            place = next(places, None)
        found = place is not None and place.position == position and place.base_offset <= base + relative
        if is_checked and not found:
            yield problem_row(
                f"byte {position} is not the start of a batch at or before offset {base + relative}"
            )


def dump_time_index(path: str) -> Iterator[Row]:
    """Yield each entry, followed by its problems. Raises CommandError.

    An entry has a problem if its timestamp is smaller than that of an earlier entry, or of a record up to the
    entry's offset.
    """
    base = base_offset(path)
    places = iter(_batch_headers(path))
    place = next(places, None)
    greatest = last = -1
    for number, (timestamp, relative) in enumerate(_entries(path, TIME_ENTRY)):
        if number and not timestamp and not relative:
            return
        yield {"timestamp": timestamp, "time": format_time(timestamp), "offset": base + relative}
        if timestamp < last:
            yield problem_row(f"timestamp {timestamp} follows {last}")
        last = max(last, timestamp)
        while place is not None and place.last_offset <= base + relative:
            greatest = max(greatest, place.max_timestamp)
            place = next(places, None)
        if greatest > timestamp:
            yield problem_row(
                f"a record up to offset {base + relative} has timestamp {greatest}, which is later"
            )


def _batch_headers(path: str) -> Iterator[BatchLocation]:
    """Yield the batches of an index's segment; nothing if the segment does not exist."""
    log = path.rpartition(".")[0] + ".log"
    if not os.path.exists(log):
        return
    file = open_read_only(log)
    try:
        yield from scan_headers(file, 0, file.size())
    except InvalidBatch:
        return  # reported for the segment itself


def _entries(path: str, entry: Struct) -> Iterator[tuple[int, int]]:
    content = read_file(path)
    if len(content) > entry.size and not content.strip(b"\0"):
        return  # preallocated index of the active segment, without entries
    yield from entry.iter_unpack(content[: len(content) // entry.size * entry.size])


def read_file(path: str) -> bytes:
    """Read a small file. Raises CommandError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise cannot_read(path, error) from error

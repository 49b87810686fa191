"""The findings of the pipeline-kills checker: each fault that a job could leave is planted by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interop.pipeline_kills.checker import check_archive, check_mapped, check_same, check_windows
from interop.pipeline_kills.jobs import toml
from interop.pipeline_kills.kill_points import BATCH_HEADER, COMPLETE, PREPARED, TransactionLog
from interop.pipeline_kills.reading import Entry, Record, read_entries

PLACE = ("flights", 0)
DAY_MS = 86_400_000
ENDS = {PLACE: 8}
"""Offset 5 is a marker."""


def record(offset: int, **changes: Any) -> Record:
    headers = (("origin", b"JFK"), ("n", None))
    plain = Record(offset, 10 * DAY_MS + offset % 2 * DAY_MS, 0, b"k%d" % offset, b"v%d" % offset, headers)
    return plain._replace(**changes)


TRUTH = [record(offset) for offset in (0, 1, 2, 3, 4, 6, 7)]


class Archive:
    """An archive written by hand: manifests, and files of records."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifests: list[dict[str, Any]] = []
        (directory / "_manifests").mkdir()

    def file(self, day: int, held: list[Record], name: str = "", **lies: Any) -> dict[str, Any]:
        name = name or f"part-{held[0].offset}"
        path = f"data/topic=flights/date=1970-01-{day:02d}/partition=0/{name}.parquet"
        full = self.directory / path
        full.parent.mkdir(parents=True, exist_ok=True)
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        columns: dict[str, Any] = {
            "offset": pa.array([one.offset for one in held], pa.int64()),
            "timestamp": pa.array([one.timestamp_ms * 1000 for one in held], pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array([one.timestamp_type for one in held], pa.int32()),
            "key": pa.array([one.key for one in held], pa.binary()),
            "value": pa.array([one.value for one in held], pa.binary()),
            "headers": pa.array(
                [[{"key": key, "value": value} for key, value in one.headers] for one in held],
                pa.list_(header),
            ),
        }
        pq.write_table(pa.table(columns), full)
        offsets = [one.offset for one in held]
        return {
            "path": path,
            "topic": "flights",
            "partition": 0,
            "date": f"1970-01-{day:02d}",
            "first_offset": min(offsets),
            "last_offset": max(offsets),
            "records": len(offsets),
            "size_bytes": full.stat().st_size,
            "sha256": hashlib.sha256(full.read_bytes()).hexdigest(),
            **lies,
        }

    def commit(
        self, start: int, end: int, *files: dict[str, Any], replaced: Sequence[str] = (), batch_id: int = 0
    ) -> None:
        response = {
            "batch_id": batch_id,
            "ranges": {"flights": {"0": [start, end]}},
            "files": files,
            "replaced": replaced,
        }
        path = self.directory / "_manifests" / f"{len(self.manifests):020d}.json"
        path.write_text(json.dumps(response))
        self.manifests.append(response)

    def kinds(self) -> set[str]:
        return {finding.kind for finding in check_archive({PLACE: TRUTH}, ENDS, self.directory)}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


def test_complete_archive_has_no_finding(archive: Archive) -> None:
    whole(archive)
    assert archive.kinds() == set()


def test_files_may_be_replaced(archive: Archive) -> None:
    whole(archive)
    old = [manifest["files"][0]["path"] for manifest in archive.manifests]
    merged = archive.file(11, [TRUTH[0], TRUTH[2], TRUTH[4], TRUTH[5]], name="merged")
    archive.commit(0, 8, merged, replaced=old, batch_id=-1)
    assert archive.kinds() == set()
    (archive.directory / old[0]).unlink()
    assert archive.kinds() == set()
    archive.commit(0, 8, replaced=[merged["path"]], batch_id=-1)
    assert archive.kinds() == {"lost"}


DECODE_ERRORS: dict[str, tuple[Callable[[list[Record]], list[Record]], str]] = {
    "a record is lost": (lambda records: records[1:], "lost"),
    "a record is there twice": (lambda records: [*records, records[0]], "twice"),
    "a record is one of an aborted transaction": (lambda records: [*records, record(5)], "extra"),
    "a value is another": (lambda records: [records[0]._replace(value=b"x"), *records[1:]], "changed"),
    "a key is none": (lambda records: [records[0]._replace(key=None), *records[1:]], "changed"),
    "a header is empty, not none": (
        lambda records: [records[0]._replace(headers=(("origin", b"JFK"), ("n", b""))), *records[1:]],
        "changed",
    ),
    "a time is a millisecond off": (
        lambda records: [records[0]._replace(timestamp_ms=records[0].timestamp_ms + 1), *records[1:]],
        "changed",
    ),
    "a type of timestamp is another": (
        lambda records: [records[0]._replace(timestamp_type=1), *records[1:]],
        "changed",
    ),
}


@pytest.mark.parametrize("name", DECODE_ERRORS)
def test_fault_in_a_file_is_found(archive: Archive, name: str) -> None:
    spoil, kind = DECODE_ERRORS[name]
    archive.commit(0, 4, archive.file(11, TRUTH[0:3:2]), archive.file(12, TRUTH[1:4:2]))
    records = spoil([TRUTH[4], TRUTH[5]])
    archive.commit(4, 8, archive.file(11, records), archive.file(12, TRUTH[6:]))
    assert kind in archive.kinds()


def whole(archive: Archive, **lies: Any) -> None:
    archive.commit(0, 4, archive.file(11, TRUTH[0:3:2], **lies), archive.file(12, TRUTH[1:4:2]))
    archive.commit(4, 8, archive.file(11, TRUTH[4:6]), archive.file(12, TRUTH[6:]))


@pytest.mark.parametrize(
    ("lies", "kind"),
    [
        ({"sha256": "0" * 64}, "checksum"),
        ({"records": 3}, "manifest"),
        ({"size_bytes": 1}, "manifest"),
        ({"last_offset": 3}, "manifest"),
        ({"date": "1970-01-12"}, "manifest"),
    ],
)
def test_wrong_manifest_is_found(archive: Archive, lies: dict[str, Any], kind: str) -> None:
    whole(archive, **lies)
    assert kind in archive.kinds()


def test_missing_changed_and_unlisted_files_are_found(archive: Archive) -> None:
    whole(archive)
    assert archive.kinds() == set()
    first, second = (archive.directory / one["path"] for one in archive.manifests[0]["files"])
    (first.parent / "part-left.parquet").write_bytes(first.read_bytes())
    assert archive.kinds() == {"unlisted"}
    (first.parent / "part-left.parquet").unlink()
    first.write_bytes(b"PAR1")
    assert archive.kinds() == {"unreadable", "lost"}
    second.unlink()
    assert archive.kinds() == {"unreadable", "lost"}


def test_gap_between_manifests_is_found(archive: Archive) -> None:
    archive.commit(0, 4, archive.file(11, TRUTH[0:3:2]), archive.file(12, TRUTH[1:4:2]))
    archive.commit(3, 8, archive.file(11, TRUTH[4:6]), archive.file(12, TRUTH[6:]))
    assert archive.kinds() == {"manifest"}


def test_step_listed_twice_is_found(archive: Archive) -> None:
    whole(archive)
    response = archive.manifests[1]
    archive.commit(8, 8, *response["files"])
    assert "manifest" in archive.kinds()


def test_topic_with_the_same_offsets() -> None:
    found = {("flights.copy", 0): list(TRUTH)}
    assert not check_same({PLACE: TRUTH}, found, ".copy")
    found["flights.copy", 0].append(record(7))
    found["flights.copy", 0][0] = record(1)
    kinds = {finding.kind for finding in check_same({PLACE: TRUTH}, found, ".copy")}
    assert kinds == {"lost", "twice"}


COPIED = [one._replace(offset=at) for at, one in zip((0, 1, 2, 3, 5, 6, 7), TRUTH, strict=True)]
"""Written in two transactions. The marker of the first has offset 4."""
MAP = [Entry(0, 4, [(0, 0), (1, 1), (2, 2), (3, 3)]), Entry(4, 8, [(4, 5), (6, 6), (7, 7)])]


def mapped(found: list[Record], entries: list[Entry]) -> set[str]:
    return {finding.kind for finding in check_mapped(PLACE, TRUTH, found, entries, 8)}


def test_topic_with_an_offset_map() -> None:
    assert mapped(COPIED, MAP) == set()


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        (COPIED[:-1], {"lost", "map"}),
        ([*COPIED, COPIED[-1]._replace(offset=9)], {"twice", "map"}),
        ([*COPIED, record(77)._replace(offset=9)], {"extra", "map"}),
        ([COPIED[1]._replace(offset=0), COPIED[0]._replace(offset=1), *COPIED[2:]], {"order", "map"}),
        ([COPIED[0]._replace(value=b""), *COPIED[1:]], {"lost", "extra", "map"}),
    ],
)
def test_faults_of_a_topic_with_an_offset_map_are_found(found: list[Record], kinds: set[str]) -> None:
    assert mapped(found, MAP) == kinds


@pytest.mark.parametrize(
    "entries",
    [
        MAP[:1],
        [MAP[0], *MAP],
        [MAP[0], Entry(4, 8, [(4, 5), (6, 7), (7, 6)])],
        [MAP[0], Entry(4, 8, [(4, 5), (6, 6)])],
        [MAP[0], Entry(5, 8, MAP[1].pairs)],
        [MAP[0], Entry(4, 9, MAP[1].pairs)],
    ],
)
def test_faults_of_an_offset_map_are_found(entries: list[Entry]) -> None:
    assert mapped(COPIED, entries) == {"map"}


def test_offset_map_entries_are_read() -> None:
    value = b'{"source": 4, "end": 8, "target": 5, "runs": [0, 0, 1, 1, 0, 2]}'
    response = {("flights.offset-map", 0): [Record(0, 0, 0, b"job/0/4", value, ())]}
    assert read_entries(response, 0, "job") == [MAP[1]]
    assert read_entries(response, 1, "job") == []


def flight(offset: int, carrier: str, **changes: Any) -> Record:
    value = {"carrier": carrier, "distance": 100, "dep_time": None if offset % 2 else 900, **changes}
    return record(offset, value=json.dumps(value).encode())


def figures(day: int, carrier: str, flights: int, distance: float, cancelled: int) -> Record:
    key = {"window_start": f"1970-01-{day}T00:00:00.000Z", "carrier": carrier}
    value = {**key, "flights": flights, "distance": distance, "cancelled": cancelled}
    return Record(0, 0, 0, json.dumps(key).encode(), json.dumps(value).encode(), ())


FLIGHTS = [flight(0, "AA"), flight(1, "AA"), flight(2, "AA", distance=50), record(4, value=b"")]
FIGURES = [figures(11, "AA", 1, 100, 0), figures(12, "AA", 1, 100.0, 1), figures(11, "AA", 2, 150.0, 0)]


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        (FIGURES, set()),
        (FIGURES[:2], {"changed"}),
        (FIGURES[2:], {"lost"}),
        ([*FIGURES, figures(13, "AA", 1, 100, 0)], {"extra"}),
        ([*FIGURES, FIGURES[0]], {"changed"}),
        ([*FIGURES, figures(12, "AA", 2, 200, 2)], {"changed"}),
    ],
)
def test_wrong_window_results_are_found(found: list[Record], kinds: set[str]) -> None:
    findings = check_windows({PLACE: FLIGHTS}, {("windows", 0): found})
    assert {finding.kind for finding in findings} == kinds


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def batch(*states: tuple[bytes, int]) -> bytes:
    """Return a batch of the transaction log with the fields that the checker reads."""
    records = b""
    for key, status in states:
        value = bytes(16) + bytes([status]) + bytes(8)
        inner = b"\0\0\0" + varint(len(key)) + key + varint(len(value)) + value + b"\0"
        records += varint(len(inner)) + inner
    header = BATCH_HEADER.pack(0, 49 + len(records), 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, len(states))
    return header + records


def test_transaction_states_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "__transaction_state-3" / "00000000000000000000.log"
    path.parent.mkdir()
    first = batch((b"\0\0\0\3one", 1), (b"\0\0\0\3one", PREPARED), (b"\0\0\0\3two", PREPARED))
    second = batch((b"\0\0\0\3one", COMPLETE))
    path.write_bytes(first + second[:-1])
    log = TransactionLog(tmp_path, "one")
    assert (log.count(PREPARED), log.count(COMPLETE)) == (1, 0)
    path.write_bytes(first + second)
    assert (log.count(PREPARED), log.count(COMPLETE)) == (1, 1)


def test_job_config_is_written_as_toml() -> None:
    assert toml({"input": {"format": "kafka", "options": {"kafka.x": "1"}}}) == (
        '["input"]\n"format" = "kafka"\n["input"."options"]\n"kafka.x" = "1"\n'
    )

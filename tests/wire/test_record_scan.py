"""The record scan: its native form and the one in Python give equal results, which other readers confirm."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.wire.batch import HEADER_BYTES, CorruptBatch, NewRecord, build, read_header, records
from kwire.wire.record_scan import (
    MAX_REJECTED,
    NO_TIMESTAMP,
    Problem,
    RecordScan,
    Rejection,
    native_scan,
    scan_in_python,
)

MIN, MAX = -(1 << 63), (1 << 63) - 1
BASE = 1_700_000_000_000
GOOD = bytes.fromhex("0c 00 00 00 01 01 00")
"""A record: its length, attributes, deltas, null key, null value, no headers."""
Scan = Callable[..., RecordScan]


@pytest.fixture(params=["Python", "native"])
def scan(request: pytest.FixtureRequest) -> Scan:
    if request.param == "Python":
        return scan_in_python
    if native_scan is None:
        pytest.skip("kwire was installed without native code: no C compiler, or no headers of Python")
    return native_scan


def payload_of(count: int) -> bytes:
    new: list[NewRecord] = [
        (BASE + index, b"k" if index % 2 else None, b"v" * index, []) for index in range(count)
    ]
    return bytes(build(new)[HEADER_BYTES:])


def test_valid_records(scan: Scan) -> None:
    found = scan(payload_of(300), 300, BASE, MIN, MAX, False)
    assert found == RecordScan(Problem.NONE, 300, BASE + 299, True, 0, False, [])


def test_buffers_are_read_in_place(scan: Scan) -> None:
    data = b"\0" + payload_of(3) + b"\0"
    for buffer in (memoryview(data)[1:-1], bytearray(data)[1:-1], data[1:-1]):
        assert scan(buffer, 3, BASE, MIN, MAX, False).max_timestamp == BASE + 2


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ("", Problem.RECORD_MISSING),
        ("80", Problem.LENGTH_INCOMPLETE),
        ("ff ff ff ff", Problem.LENGTH_INCOMPLETE),
        ("ff ff ff ff ff 01", Problem.LENGTH_TOO_LONG),
        ("01", Problem.LENGTH_NEGATIVE),
        ("0c 00 00 00 01 01", Problem.RECORD_TRUNCATED),
        ("fe ff ff ff 0f", Problem.RECORD_TRUNCATED),
        ("00", Problem.FIELD_INVALID),
        ("02 00", Problem.FIELD_INVALID),
        ("0c 00 80 80 80 80 80", Problem.FIELD_INVALID),
        ("1e 00 ff ff ff ff ff ff ff ff ff ff 00 01 01 00", Problem.FIELD_INVALID),
        ("0c 00 00 00 7e 01 00", Problem.FIELD_INVALID),
        ("0c 00 00 00 02 01 00", Problem.FIELD_INVALID),
        ("0c 00 00 00 01 02 00", Problem.FIELD_INVALID),
        ("0c 00 00 00 01 01 01", Problem.HEADER_COUNT_INVALID),
        ("0c 00 00 00 01 01 7e", Problem.HEADER_COUNT_INVALID),
        ("10 00 00 00 01 01 02 01 01", Problem.HEADER_KEY_MISSING),
        ("10 00 00 00 01 01 02 02 61", Problem.FIELD_INVALID),
        ("12 00 00 00 01 01 02 00 04 61", Problem.FIELD_INVALID),
        ("0e 00 00 00 01 01 00 00", Problem.BYTES_AFTER_HEADERS),
        ("0c 00 00 00 01 01 00 00", Problem.BYTES_AFTER_RECORDS),
        ("0c 00 00 00 01 01 00 0c 00 00 00 01 01 00", Problem.BYTES_AFTER_RECORDS),
    ],
)
def test_malformed_records(scan: Scan, payload: str, problem: Problem) -> None:
    assert scan(bytes.fromhex(payload), 1, BASE, MIN, MAX, False).problem == problem


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ("0c 00 00 00 01 01 00", Problem.NONE),
        ("0c 00 00 00 09 05 00", Problem.NONE),  # null, with lengths of -5 and -3
        ("14 00 00 80 80 80 80 10 01 01 00", Problem.NONE),  # an offset delta with bits beyond 32
        ("8c 80 80 80 10 00 00 00 01 01 00", Problem.NONE),  # a length with bits beyond 32
        ("20 00 80 80 80 80 80 80 80 80 80 7e 00 01 01 00 00", Problem.BYTES_AFTER_HEADERS),
        ("1e 00 80 80 80 80 80 80 80 80 80 7e 00 01 01 00", Problem.NONE),  # bits beyond 64
        ("1a 00 00 00 01 01 06 00 01 00 00 02 61 01", Problem.NONE),  # headers with empty keys, null values
    ],
)
def test_unusual_records(scan: Scan, payload: str, problem: Problem) -> None:
    found = scan(bytes.fromhex(payload), 1, BASE, MIN, MAX, False)
    assert (found.problem, found.max_timestamp, found.is_sequential) == (
        problem,
        BASE if problem == Problem.NONE else NO_TIMESTAMP,
        True,
    )


def test_rejected_records(scan: Scan) -> None:
    found = scan(payload_of(6), 6, BASE, BASE + 2, BASE + 4, True)
    assert found == RecordScan(
        Problem.NONE,
        6,
        BASE + 3,
        True,
        5,
        True,
        [
            (0, Rejection.KEY_MISSING, BASE, 0),
            (1, Rejection.TIMESTAMP_OUT_OF_RANGE, BASE + 1, 1),
            (2, Rejection.KEY_MISSING, BASE + 2, 2),
            (4, Rejection.KEY_MISSING, BASE + 4, 4),
            (5, Rejection.TIMESTAMP_OUT_OF_RANGE, BASE + 5, 5),
        ],
    )


def test_missing_timestamp_is_never_out_of_range(scan: Scan) -> None:
    assert scan(GOOD, 1, NO_TIMESTAMP, BASE, MAX, False) == RecordScan(0, 1, NO_TIMESTAMP, True, 0, False, [])


def test_timestamps_wrap(scan: Scan) -> None:
    found = scan(bytes.fromhex("0c 00 02 00 01 01 00"), 1, MAX, 0, MAX, False)
    assert found.rejected == [(0, Rejection.TIMESTAMP_OUT_OF_RANGE, MIN, 0)]


def test_list_of_rejected_records_is_bounded(scan: Scan) -> None:
    count = MAX_REJECTED + 10
    found = scan(GOOD * count, count, BASE, MIN, MAX, True)
    assert (found.records_count, found.rejected_count, len(found.rejected)) == (count, count, MAX_REJECTED)


def test_offset_deltas_that_do_not_count_up(scan: Scan) -> None:
    assert not scan(GOOD * 2, 2, BASE, MIN, MAX, False).is_sequential


def test_native_form_rejects_wrong_arguments() -> None:
    if native_scan is None:
        pytest.skip("kwire was installed without native code: no C compiler, or no headers of Python")
    for arguments in (
        (b"", 1),
        ("text", 1, 1, 1, 1, False),
        (b"", "x", 1, 1, 1, False),
        (b"", 1, 1 << 64, 1, 1, 0),
    ):
        with pytest.raises((TypeError, OverflowError)):
            native_scan(*arguments)


def mutations(choose: random.Random) -> Iterator[tuple[bytes, int]]:
    """Yield payloads, most of them damaged, and the number of records that they had."""
    while True:
        count = choose.randint(1, 12)
        new = [
            (
                BASE + choose.randrange(-50, 5000),
                choose.choice([None, b"", b"key"]),
                choose.choice([None, b"", b"v" * choose.randrange(200)]),
                [
                    (choose.choice(["", "a", "ü"]), choose.choice([None, b"", b"x"]))
                    for _ in range(choose.choice([0, 0, 1, 3]))
                ],
            )
            for _ in range(count)
        ]
        payload = build(new)[HEADER_BYTES:]
        for _ in range(choose.choice([0, 1, 1, 2, 5])):
            at = choose.randrange(len(payload) + 1)
            match choose.randrange(5):
                case 0:
                    payload[at : at + 1] = choose.randbytes(1)
                case 1:
                    payload[at : at + 1] = choose.choice([b"\0", b"\1", b"\2", b"\x7f", b"\x80", b"\xff"])
                case 2:
                    payload[at:at] = choose.randbytes(choose.randrange(1, 11))
                case 3:
                    del payload[at : at + choose.randrange(1, 5)]
                case 4:
                    payload[at:at] = b"\xff" * choose.randrange(1, 11)
        yield bytes(payload), count


def test_both_forms_give_equal_results() -> None:
    if native_scan is None:
        pytest.skip("kwire was installed without native code: no C compiler, or no headers of Python")
    choose = random.Random("both forms")
    damaged = 0
    for (payload, count), _ in zip(mutations(choose), range(20_000), strict=False):
        arguments = (
            payload,
            count + choose.choice([0, 0, 0, 1, -1]),
            choose.choice([BASE, BASE, MIN, MAX, NO_TIMESTAMP]),
            choose.choice([MIN, BASE]),
            choose.choice([MAX, BASE + 1000]),
            choose.random() < 0.3,
        )
        found = native_scan(*arguments)
        assert found == scan_in_python(*arguments), arguments
        damaged += found.problem != Problem.NONE
    assert 5_000 < damaged < 18_000


def test_scan_accepts_what_the_reader_reads(scan: Scan) -> None:
    choose = random.Random("the reader")
    for (payload, count), _ in zip(mutations(choose), range(5000), strict=False):
        found = scan(payload, count, BASE, MIN, MAX, False)
        batch = build([(BASE, None, None, [])])[:HEADER_BYTES] + payload
        header = read_header(batch)._replace(records_count=count, batch_length=len(batch) - 12)
        try:
            read = list(records(batch, 0, header))
        except CorruptBatch:
            assert found.problem != Problem.NONE
            continue
        assert found.problem == Problem.NONE
        assert found.max_timestamp == max([NO_TIMESTAMP, *(record.timestamp for record in read)])
        assert found.is_sequential == ([record.offset for record in read] == list(range(count)))


@given(st.binary(max_size=60), st.integers(0, 4), st.integers(MIN, MAX))
def test_random_bytes(payload: bytes, count: int, base_timestamp: int) -> None:
    found = scan_in_python(payload, count, base_timestamp, 0, BASE, True)
    assert 0 <= found.records_count <= count
    if native_scan is not None:
        assert native_scan(payload, count, base_timestamp, 0, BASE, True) == found

"""The statistics of a profile: from the counts and sketches of Spark to the content of the JSON file.

Times are ISO 8601 in UTC, sizes are in bytes, and shares are fractions. Sketches are estimates: distinct keys
within about 1 %, quantiles within 0.1 % of the records. The counts of the most frequent items are exact if
there are fewer distinct items than the sketch keeps.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from kwire.pipeline.report.schemas import infer
from kwire.pipeline.report.times import to_datetime

TOMBSTONE, EMPTY, JSON, FRAMED, TEXT, BINARY = "tombstone", "empty", "json", "framed", "text", "binary"
KINDS: Final = (TOMBSTONE, EMPTY, JSON, FRAMED, TEXT, BINARY)
"""Kinds of values. FRAMED is Confluent's wire format: usually Avro, with a schema id of a registry."""
TIMESTAMP_TYPES: Final = {-1: "none", 0: "CreateTime", 1: "LogAppendTime"}

SIZE_CLASSES: Final = 22
"""The number of size classes: one for empty values, then one per power of two. The last has no limit."""
MAX_RATE_STEPS: Final = 400
STEPS_S: Final = tuple(
    minutes * 60 for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2 * 1440, 7 * 1440)
)


def size_class(number: int) -> tuple[int, int | None]:
    """Return the smallest size of a class, and the smallest size of the next class (None for the last)."""
    low = 0 if number == 0 else 1 << (number - 1)
    return low, None if number == SIZE_CLASSES - 1 else 1 << number


def step_s(spans_ms: Iterable[tuple[int, int]]) -> int:
    """Return the length of a plot's time steps in seconds. The plot has at most about MAX_RATE_STEPS steps.

    `spans_ms` has the first and last timestamp of each partition.
    """
    spans = list(spans_ms)
    if not spans:
        return STEPS_S[0]
    length_s = (max(last for _, last in spans) - min(first for first, _ in spans)) // 1000
    for step in STEPS_S:
        if length_s // step < MAX_RATE_STEPS:
            return step
    days = -(-length_s // (MAX_RATE_STEPS * 86_400))
    return int(days * 86_400)


def filled(points: Sequence[Mapping[str, Any]], step: int) -> list[tuple[datetime, int, int]]:
    """Return the start, records and bytes of each time step, including the steps without records.

    `points` are the steps with records. `step` is the length of a step in seconds.
    """
    if not points:
        return []
    known = {datetime.fromisoformat(point["start"]).timestamp(): point for point in points}
    first, last = int(min(known)), int(max(known))
    return [
        (
            datetime.fromtimestamp(at, UTC),
            known[at]["records"] if at in known else 0,
            known[at]["bytes"] if at in known else 0,
        )
        for at in range(first, last + 1, step)
    ]


def iso(time_ms: int | None) -> str | None:
    """Format a Kafka timestamp as ISO 8601, or in milliseconds if it is outside the years 1 to 9999."""
    if time_ms is None:
        return None
    found = to_datetime(time_ms)
    return f"{time_ms} ms" if found is None else found.isoformat(timespec="milliseconds")


def key_text(key_hex: str) -> str:
    """Format a key as text if the key is printable, and otherwise in hexadecimal.

    `key_hex` is the key in hexadecimal, or `#` and the hash of a long key.
    """
    if key_hex.startswith("#"):
        return f"long key, hash {key_hex[1:].lower()}"
    try:
        text = bytes.fromhex(key_hex).decode()
    except UnicodeDecodeError:
        text = "\x00"
    return text if text.isprintable() else f"0x{key_hex.lower()}"


def profile_statistics(
    *,
    topic: str,
    side: str,
    now_ms: int,
    sketched: Mapping[str, Any],
    partitions: Sequence[Mapping[str, Any]],
    types: Mapping[int, int],
    rates: Sequence[tuple[int | None, int, int]],
    step_s: int,
    quantiles: Sequence[float],
    top: int,
) -> dict[str, Any]:
    """Return all statistics except the groups. `sketched` and `partitions` are rows of jobs/profile.py.

    `types` has the number of records of each timestamp type. `rates` has the start in seconds, the records
    and the bytes of each time step. The start is None for timestamps outside the years 1 to 9999.
    """
    records = sum(row["records"] for row in partitions)
    size_bytes = sum(row["bytes"] for row in partitions)
    starts = [None if start is None else to_datetime(start * 1000) for start, _, _ in rates]
    names = ["min", *(f"p{q * 100:g}" for q in quantiles[1:-1]), "max"]

    def quantiles_of(name: str) -> dict[str, int] | None:
        values = sketched.get(f"{name}_quantiles")
        return None if values is None else dict(zip(names, values, strict=True))

    return {
        "topic": topic,
        "side": side,
        "profiled_at": iso(now_ms),
        "records": records,
        "bytes": size_bytes,
        # If Spark repeats a task, the sketches count the records of the task twice.
        "sketches_exact": sketched.get("records", 0) == records,
        "partitions": [_partition(row, records) for row in partitions],
        "rates": {
            "step_seconds": step_s,
            "points": [
                {
                    "start": start.isoformat(timespec="milliseconds"),
                    "records": count,
                    "bytes": count_bytes,
                }
                for start, (_, count, count_bytes) in zip(starts, rates, strict=True)
                if start is not None
            ],
            "records_outside_years_1_to_9999": sum(
                count for start, (_, count, _) in zip(starts, rates, strict=True) if start is None
            ),
        },
        "keys": _keys(sketched, records, top),
        "sizes": {
            name: {"bytes": sketched.get(f"{name}_bytes", 0), "quantiles": quantiles_of(name)}
            for name in ("key", "value", "headers")
        },
        "size_classes": {
            name: [sketched.get(f"{name}_class_{number}", 0) for number in range(SIZE_CLASSES)]
            for name in ("key", "value")
        },
        "headers": _headers(sketched, records, top),
        "values": _values(sketched, records, top),
        "timestamps": {
            "first": iso(_least(partitions, "first_ms")),
            "last": iso(_most(partitions, "last_ms")),
            "types": {TIMESTAMP_TYPES.get(number, str(number)): types[number] for number in sorted(types)},
            "out_of_order": sum(row["out_of_order"] for row in partitions),
            "behind_ms": quantiles_of("behind"),
            "from_the_future": sum(row["from_the_future"] for row in partitions),
        },
        "tombstones": sum(row["tombstones"] for row in partitions),
    }


def _least(rows: Sequence[Mapping[str, Any]], name: str) -> int | None:
    return min((row[name] for row in rows if row[name] is not None), default=None)


def _most(rows: Sequence[Mapping[str, Any]], name: str) -> int | None:
    return max((row[name] for row in rows if row[name] is not None), default=None)


def _partition(row: Mapping[str, Any], records: int) -> dict[str, Any]:
    return {
        "partition": row["partition"],
        "records": row["records"],
        "share": _share(row["records"], records),
        "bytes": row["bytes"],
        "first_offset": row["first_offset"],
        "last_offset": row["last_offset"],
        # The other offsets are compacted and aborted records, and transaction markers.
        "gaps": row["last_offset"] - row["first_offset"] + 1 - row["records"],
        "first": iso(row["first_ms"]),
        "last": iso(row["last_ms"]),
        "tombstones": row["tombstones"],
        "out_of_order": row["out_of_order"],
        "furthest_behind_ms": row["furthest_behind_ms"],
        "from_the_future": row["from_the_future"],
    }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _frequent(values: Iterable[Any] | None) -> list[tuple[str, int]]:
    """Return a sketch's items and their counts, the most frequent first.

    Omits null, which stands for the records without an item.
    """
    pairs = [(item["item"], item["count"]) for item in values or () if item["item"] is not None]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


def _keys(sketched: Mapping[str, Any], records: int, top: int) -> dict[str, Any]:
    frequent = _frequent(sketched.get("keys_top"))[:top]
    return {
        "without": sketched.get("keys_null", 0),
        "distinct_estimate": (sketched.get("keys_distinct") or 0) + (1 if sketched.get("keys_empty") else 0),
        "hottest_share": _share(frequent[0][1], records) if frequent else 0.0,
        "top": [
            {"key": key_text(key), "records": count, "share": _share(count, records)}
            for key, count in frequent
        ],
    }


def _headers(sketched: Mapping[str, Any], records: int, top: int) -> dict[str, Any]:
    by_name: Counter[str] = Counter()
    with_headers = 0
    for names, count in _frequent(sketched.get("names_top")):
        found = json.loads(names)
        with_headers += count if found else 0
        by_name.update(dict.fromkeys(found, count))
    ordered = sorted(by_name.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "records": with_headers,
        "share": _share(with_headers, records),
        "names": [
            {"name": name, "records": count, "share": _share(count, records)} for name, count in ordered[:top]
        ],
    }


def _values(sketched: Mapping[str, Any], records: int, top: int) -> dict[str, Any]:
    kinds = [(kind, sketched.get(f"kind_{kind}", 0)) for kind in KINDS]
    guess = infer(bytes(value) for value in sketched.get("sample") or () if value is not None)
    return {
        "kinds": [
            {"kind": kind, "records": count, "share": _share(count, records)}
            for kind, count in sorted(kinds, key=lambda pair: -pair[1])
            if count
        ],
        "schema_ids": [
            {"id": int(number), "records": count, "share": _share(count, records)}
            for number, count in _frequent(sketched.get("schema_ids_top"))[:top]
        ],
        "json": {
            "sampled": guess.sampled,
            "parsed": guess.parsed,
            "schema": guess.schema,
            "fields": [field._asdict() for field in guess.fields],
        },
    }

"""The HTML page of a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kwire.pipeline.report import plots
from kwire.pipeline.report.page import Cell, Page, Plot, Section, Table, duration, share, size
from kwire.pipeline.report.profile_statistics import FRAMED, SIZE_CLASSES, filled, size_class
from kwire.wire.plural import plural

KIND_NAMES: Final = {FRAMED: "framed with a schema id (Avro or another format of a schema registry)"}
MAX_PARTITIONS: Final = 200
"""The maximum number of partitions in the table. The plot has all partitions."""


def page_of(topics: Sequence[Mapping[str, Any]]) -> Page:
    """Return one page for the statistics of all topics; see pipeline/report/profile_statistics.py."""
    sections: list[Section] = []
    for statistics in topics:
        prefix = f"{statistics['topic']}: " if len(topics) > 1 else ""
        found = [
            _overview(statistics),
            _rates(statistics),
            _partitions(statistics),
            _keys(statistics),
            _sizes(statistics),
            _values(statistics),
            _headers(statistics),
            _timestamps(statistics),
        ]
        if statistics["groups"] is not None:
            found.append(_groups(statistics))
        sections += [section._replace(title=prefix + section.title) for section in found]
    names = ", ".join(statistics["topic"] for statistics in topics)
    sides = ", ".join(
        sorted({f"{statistics['side']} at {statistics['profiled_at']}" for statistics in topics})
    )
    return Page(f"Profile of {names}", sides, sections)


def _overview(statistics: Mapping[str, Any]) -> Section:
    keys, times = statistics["keys"], statistics["timestamps"]
    kinds = statistics["values"]["kinds"]
    facts: list[tuple[str, Cell]] = [
        ("records", statistics["records"]),
        ("keys, values and headers", size(statistics["bytes"])),
        ("partitions with records", len(statistics["partitions"])),
        ("first timestamp", times["first"]),
        ("last timestamp", times["last"]),
        ("distinct keys (estimate)", keys["distinct_estimate"]),
        ("share of the hottest key", share(keys["hottest_share"])),
        ("most frequent kind of value", _kind(kinds[0]["kind"]) if kinds else None),
        ("tombstones", statistics["tombstones"]),
        ("out of order", times["out_of_order"]),
    ]
    notes = []
    if not statistics["sketches_exact"]:
        notes.append(
            "Spark repeated a part of the job, so some records count twice in the statistics of keys, sizes, "
            "headers and kinds of values. Partitions and rates are exact."
        )
    return Section("Overview", facts, notes=notes)


def _rates(statistics: Mapping[str, Any]) -> Section:
    step_s = statistics["rates"]["step_seconds"]
    steps = filled(statistics["rates"]["points"], step_s)
    outside = statistics["rates"]["records_outside_years_1_to_9999"]
    left_off = f"{plural(outside, 'record', ',')} with timestamps outside of the years 1 to 9999: not shown."
    notes = [left_off] if outside else []
    if not steps:
        return Section("Rate", notes=notes or ["No record has a timestamp."])
    times = [start for start, _, _ in steps]
    each = duration(step_s)
    name = statistics["topic"]
    busiest = max(steps, key=lambda step: step[1])
    return Section(
        "Rate",
        [
            ("busiest step", f"{busiest[0]:%Y-%m-%d %H:%M}, {plural(busiest[1], 'record', ',')} in {each}"),
            ("mean", f"{sum(records for _, records, _ in steps) / len(steps):,.1f} records in {each}"),
            ("steps without records", sum(1 for _, records, _ in steps if not records)),
        ],
        [
            Plot(
                plots.over_time(f"{name} records", times, [records for _, records, _ in steps], "records"),
                f"Records by their timestamps, in steps of {each}",
            ),
            Plot(
                plots.over_time(f"{name} bytes", times, [count for _, _, count in steps], "bytes"),
                f"Bytes of keys, values and headers, in steps of {each}",
            ),
        ],
        notes=notes,
    )


def _partitions(statistics: Mapping[str, Any]) -> Section:
    rows = statistics["partitions"]
    if not rows:
        return Section("Partitions", notes=["There are no records."])
    labels = [str(row["partition"]) for row in rows]
    name = statistics["topic"]
    fair = statistics["records"] / len(rows)
    most = max(rows, key=lambda row: row["records"])
    return Section(
        "Partitions",
        [
            ("largest", f"{most['partition']}, {share(most['share'])} of the records"),
            ("relative to an even distribution", f"{most['records'] / fair:.2f} times"),
        ],
        [
            Plot(
                plots.bars(
                    f"{name} partitions", labels, {"records": [row["records"] for row in rows]}, "records"
                ),
                "Records in each partition",
            ),
            Plot(
                plots.bars(
                    f"{name} partition bytes", labels, {"bytes": [row["bytes"] for row in rows]}, "bytes"
                ),
                "Bytes in each partition",
            ),
        ],
        [
            Table(
                ["partition", "records", "share", "size", "offsets", "gaps", "first", "last", "tombstones"],
                [
                    [
                        str(row["partition"]),
                        row["records"],
                        share(row["share"]),
                        size(row["bytes"]),
                        f"{row['first_offset']:,} to {row['last_offset']:,}",
                        row["gaps"],
                        row["first"],
                        row["last"],
                        row["tombstones"],
                    ]
                    for row in rows[:MAX_PARTITIONS]
                ],
            )
        ],
    )


def _keys(statistics: Mapping[str, Any]) -> Section:
    keys = statistics["keys"]
    facts: list[tuple[str, Cell]] = [
        ("distinct (estimate)", keys["distinct_estimate"]),
        ("records without key", keys["without"]),
        ("share of the hottest key", share(keys["hottest_share"])),
        ("share of the keys below", share(sum(one["share"] for one in keys["top"]))),
    ]
    if not keys["top"]:
        return Section("Keys", facts)
    return Section(
        "Keys",
        facts,
        [_ranking(f"{statistics['topic']} keys", keys["top"], "key", "Records of the most frequent keys")],
        [_shares("key", "key", keys["top"])],
    )


def _sizes(statistics: Mapping[str, Any]) -> Section:
    classes = statistics["size_classes"]
    used = [number for number in range(SIZE_CLASSES) if classes["key"][number] or classes["value"][number]]
    measured = {name: one for name, one in statistics["sizes"].items() if one["quantiles"]}
    if not used or not measured:
        return Section("Sizes", notes=["No record has a key or a value."])
    shown = range(used[0], used[-1] + 1)
    columns = list(next(iter(measured.values()))["quantiles"])
    return Section(
        "Sizes",
        plots=[
            Plot(
                plots.bars(
                    f"{statistics['topic']} sizes",
                    [_class(number) for number in shown],
                    {name: [classes[name][number] for number in shown] for name in ("key", "value")},
                    "records",
                ),
                "Records by size of key and value; each class is twice as wide as the previous one",
            )
        ],
        tables=[
            Table(
                ["bytes of", *columns, "total"],
                [[name, *one["quantiles"].values(), size(one["bytes"])] for name, one in measured.items()],
            )
        ],
    )


def _class(number: int) -> str:
    low, high = size_class(number)
    text = size(low).replace(" bytes", "").replace(".0 ", " ")
    return f"≥ {text}" if high is None else text


def _values(statistics: Mapping[str, Any]) -> Section:
    values = statistics["values"]
    tables = [
        Table(
            ["kind of value", "records", "share"],
            [[_kind(one["kind"]), one["records"], share(one["share"])] for one in values["kinds"]],
        )
    ]
    if values["schema_ids"]:
        tables.append(_shares("schema id", "id", values["schema_ids"]))
    found = values["json"]
    if found["fields"]:
        tables.append(
            Table(
                ["field", "type", "present", "example"],
                [[one["path"], one["types"], share(one["share"]), one["example"]] for one in found["fields"]],
                f"JSON, from {plural(found['sampled'], 'sampled value', ',')}; the JSON file has the schema",
            )
        )
    pictures = []
    if values["kinds"]:
        pictures.append(_ranking(f"{statistics['topic']} kinds", values["kinds"], "kind", "Kinds of values"))
    return Section("Values", plots=pictures, tables=tables)


def _ranking(name: str, rows: Sequence[Mapping[str, Any]], label: str, caption: str) -> Plot:
    """Return the plot of the records of each row, with the value of `label` as the text of its bar."""
    labels, records = [row[label] for row in rows], [row["records"] for row in rows]
    return Plot(plots.horizontal_bars(name, labels, records, "records"), caption)


def _shares(title: str, key: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of each row's records and their share. The first column has the values of `key`."""
    return Table(
        [title, "records", "share"],
        [[str(row[key]), row["records"], share(row["share"])] for row in rows],
    )


def _kind(kind: str) -> str:
    return KIND_NAMES.get(kind, kind)


def _headers(statistics: Mapping[str, Any]) -> Section:
    headers = statistics["headers"]
    facts: list[tuple[str, Cell]] = [
        ("records with headers", headers["records"]),
        ("share", share(headers["share"])),
    ]
    if not headers["names"]:
        return Section("Headers", facts)
    return Section("Headers", facts, tables=[_shares("name", "name", headers["names"])])


def _timestamps(statistics: Mapping[str, Any]) -> Section:
    times = statistics["timestamps"]
    behind = times["behind_ms"]
    facts: list[tuple[str, Cell]] = [
        *[(f"type {name}", count) for name, count in times["types"].items()],
        ("in the future", times["from_the_future"]),
        ("out of order", times["out_of_order"]),
    ]
    if behind:
        facts += [
            ("median delay of out-of-order records", duration(behind["p50"] / 1000)),
            ("maximum delay", duration(behind["max"] / 1000)),
        ]
    return Section(
        "Timestamps",
        facts,
        notes=[
            "A record is out of order if its timestamp is before that of an earlier record in its partition "
            "that the same task has read."
        ],
    )


def _groups(statistics: Mapping[str, Any]) -> Section:
    groups = statistics["groups"]
    if not groups:
        return Section("Consumer groups", notes=["No group has committed offsets for this topic."])
    shown = groups[:20]
    return Section(
        "Consumer groups",
        plots=[
            Plot(
                plots.horizontal_bars(
                    f"{statistics['topic']} groups",
                    [one["group"] for one in shown],
                    [one["lag"] for one in shown],
                    "offsets",
                ),
                "Lag of consumer groups, in offsets",
            )
        ],
        tables=[
            Table(
                ["group", "state", "lag", "partitions with commits", "largest partition lag"],
                [
                    [
                        one["group"],
                        one["state"],
                        one["lag"],
                        len(one["partitions"]),
                        max(one["partitions"].values()),
                    ]
                    for one in groups
                ],
            )
        ],
    )

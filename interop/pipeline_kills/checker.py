"""The comparison of a job's output with its source.

Each function returns findings. If there are none, every record is in the output exactly once and unchanged.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from interop.pipeline_kills.reading import (
    Entry,
    Listed,
    Manifest,
    Partition,
    Record,
    Records,
    Unreadable,
    read_manifests,
    read_parquet,
)
from kwire.wire.plural import plural

LOST, EXTRA, TWICE, CHANGED, ORDER = "lost", "extra", "twice", "changed", "order"
UNLISTED, CHECKSUM, MANIFEST, MAP, UNREADABLE = "unlisted", "checksum", "manifest", "map", "unreadable"
STUCK, FAILED, AGAIN = "stuck", "failed", "again"
"""The job did not end, failed at every start, or changed something after it had succeeded."""


class Finding(NamedTuple):
    """A difference between the source and the output of a job."""

    kind: str
    about: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.about}"


def partition_name(place: Partition) -> str:
    return f"{place[0]}-{place[1]}"


def compare(name: str, truth: Sequence[Record], found: Sequence[Record], *, kinds: bool) -> list[Finding]:
    """Compare records by offset. With `kinds`, also compare their timestamp types."""
    findings = []
    by_offset: dict[int, Record] = {}
    twice = []
    for record in found:
        if record.offset in by_offset:
            twice.append(record.offset)
        by_offset[record.offset] = record
    wanted = {record.offset: record for record in truth}
    changed = []
    for offset, record in wanted.items():
        other = by_offset.get(offset)
        if other is not None and (
            other.content != record.content or (kinds and other.timestamp_type != record.timestamp_type)
        ):
            changed.append(offset)
    for kind, offsets in (
        (TWICE, twice),
        (LOST, [offset for offset in wanted if offset not in by_offset]),
        (EXTRA, [offset for offset in by_offset if offset not in wanted]),
        (CHANGED, changed),
    ):
        if offsets:
            findings.append(Finding(kind, f"{name}: {plural(len(offsets), 'offset')}, {_some(offsets)}"))
    return findings


def _some(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    return ", ".join(map(str, ordered[:5])) + (f" … {ordered[-1]}" if len(ordered) > 5 else "")


def check_archive(truth: Records, ends: Mapping[Partition, int], archive: Path) -> list[Finding]:
    """Check an archive of topics. `ends` are the end offsets of the archived partitions."""
    try:
        manifests = read_manifests(archive)
    except Unreadable as error:
        return [Finding(UNREADABLE, str(error))]
    findings = check_manifests(manifests, ends)
    files: dict[str, Listed] = {}
    replaced: set[str] = set()
    for manifest in manifests:
        for path in manifest.replaced:
            if files.pop(path, None) is None:
                findings.append(Finding(MANIFEST, f"{manifest.number} replaces {path}, which is not there"))
        replaced.update(manifest.replaced)
        for file in manifest.files:
            if file.path in files:
                findings.append(Finding(MANIFEST, f"{manifest.number} lists {file.path} again"))
            files[file.path] = file
    there = {str(path.relative_to(archive)) for path in (archive / "data").rglob("*") if path.is_file()}
    # Spark's file system writes these checksum files beside its files.
    there = {path for path in there if not path.endswith(".crc")}
    findings += [Finding(UNLISTED, path) for path in sorted(there - set(files) - replaced)]
    found: Records = {}
    for file in files.values():
        records, wrong = check_file(archive, file)
        findings += wrong
        found.setdefault((file.topic, file.partition), []).extend(records)
    for place in sorted({*truth, *found}):
        findings += compare(partition_name(place), truth.get(place, []), found.get(place, []), kinds=True)
    return findings


def check_manifests(manifests: Sequence[Manifest], ends: Mapping[Partition, int]) -> list[Finding]:
    """Check that the numbers of manifests have no gaps, and that each partition is archived up to its end."""
    findings = []
    if [manifest.number for manifest in manifests] != list(range(len(manifests))):
        findings.append(Finding(MANIFEST, f"numbers {[manifest.number for manifest in manifests]}"))
    reached: dict[Partition, int] = dict.fromkeys(ends, 0)
    for manifest in manifests:
        for place, (start, end) in manifest.ranges.items():
            if start != reached.get(place):
                findings.append(
                    Finding(
                        MANIFEST,
                        f"{manifest.number} looks at {partition_name(place)} from {start}, "
                        f"and {reached.get(place)} was next",
                    )
                )
            reached[place] = end
    findings += [
        Finding(MANIFEST, f"all end at {reached[place]} of {partition_name(place)}, which ends at {end}")
        for place, end in ends.items()
        if reached[place] != end
    ]
    return findings


def check_file(archive: Path, file: Listed) -> tuple[list[Record], list[Finding]]:
    """Read a file of an archive. Return its records, and the differences from its entry in the manifest."""
    path = archive / file.path
    try:
        data = path.read_bytes()
        records = read_parquet(path)
    except (OSError, Unreadable) as error:
        return [], [Finding(UNREADABLE, f"{file.path}: {error}")]
    findings = []
    if hashlib.sha256(data).hexdigest() != file.sha256:
        findings.append(Finding(CHECKSUM, file.path))
    offsets = [record.offset for record in records]
    listed = (file.size_bytes, file.records, file.first_offset, file.last_offset)
    is_so = (len(data), len(records), min(offsets, default=-1), max(offsets, default=-1))
    if listed != is_so:
        findings.append(
            Finding(MANIFEST, f"{file.path}: size, records, first and last {listed}, not {is_so}")
        )
    where = f"topic={file.topic}/date={file.date}/partition={file.partition}/"
    if where not in file.path:
        findings.append(Finding(MANIFEST, f"{file.path} is not below {where}"))
    dates = {_date(record.timestamp_ms) for record in records}
    if dates - {file.date}:
        findings.append(Finding(CHANGED, f"{file.path} holds records of {sorted(dates)}"))
    return records, findings


def _date(timestamp_ms: int) -> str:
    return f"{datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC):%Y-%m-%d}"


def check_same(truth: Records, found: Records, suffix: str) -> list[Finding]:
    """Check topics that must have the source's records at the same offsets.

    The name of such a topic is that of the source topic and `suffix`.
    """
    findings = []
    for (topic, partition), records in truth.items():
        other = found.get((topic + suffix, partition), [])
        findings += compare(partition_name((topic + suffix, partition)), records, other, kinds=False)
    return findings


def check_mapped(
    place: Partition, truth: Sequence[Record], found: Sequence[Record], entries: Sequence[Entry], end: int
) -> list[Finding]:
    """Check a partition that must have the source's records in the same order, and its offset map.

    `end` is the end offset of the source partition.
    """
    name = partition_name(place)
    findings = check_order(name, truth, found)
    source = {record.offset: record for record in truth}
    target = {record.offset: record for record in found}
    reached = 0
    pairs: list[tuple[int, int]] = []
    for entry in entries:
        if entry.source != reached:
            findings.append(Finding(MAP, f"{name}: an entry begins at {entry.source}, and {reached} is next"))
        reached = entry.end
        if any(not entry.source <= first < entry.end for first, _ in entry.pairs):
            findings.append(Finding(MAP, f"{name}: the entry of {entry.source} tells of others"))
        pairs += entry.pairs
    if reached < max(source, default=-1) + 1 or reached > end:
        findings.append(Finding(MAP, f"{name}: the map ends at {reached}, the source at {end}"))
    for what, offsets, wanted in (
        ("source", [first for first, _ in pairs], source),
        ("target", [second for _, second in pairs], target),
    ):
        if sorted(offsets) != sorted(wanted):
            findings.append(
                Finding(
                    MAP,
                    f"{name}: {plural(len(offsets), 'offset')} of the {what} in the map, {len(set(offsets))} "
                    f"of them different, and {plural(len(wanted), 'record')}",
                )
            )
    wrong = [
        first
        for first, second in pairs
        if first in source and second in target and source[first].content != target[second].content
    ]
    if wrong:
        findings.append(Finding(MAP, f"{name}: {plural(len(wrong), 'offset')} became others, {_some(wrong)}"))
    return findings


def check_order(name: str, truth: Sequence[Record], found: Sequence[Record]) -> list[Finding]:
    """Check that the contents are the same and in the same order. Offsets may differ."""
    wanted = [record.content for record in truth]
    contents = [record.content for record in found]
    if wanted == contents:
        return []
    findings = []
    # Contents may occur several times, because flight schedules repeat.
    missing, more = _less(wanted, contents), _less(contents, wanted)
    if missing:
        findings.append(Finding(LOST, f"{name}: {plural(len(missing), 'record')}, {missing[0]!r:.200}"))
    if more:
        kind = TWICE if set(more) <= set(wanted) else EXTRA
        findings.append(Finding(kind, f"{name}: {plural(len(more), 'record')}, {more[0]!r:.200}"))
    if not findings:
        at = next(at for at, (one, other) in enumerate(zip(wanted, contents, strict=True)) if one != other)
        findings.append(Finding(ORDER, f"{name}: from record {at} on"))
    return findings


def _less(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    """Return the values that occur more often in `left` than in `right`."""
    counts: dict[Any, int] = {}
    for one in right:
        counts[one] = counts.get(one, 0) + 1
    over = []
    for one in left:
        left_over = counts.get(one, 0)
        if left_over:
            counts[one] = left_over - 1
        else:
            over.append(one)
    return over


def check_windows(truth: Records, found: Records) -> list[Finding]:
    """Check flights, distance and cancellations by day and carrier in the last result of each window."""
    wanted: dict[tuple[str, str], list[float]] = {}
    for record in (record for records in truth.values() for record in records):
        if not record.value:
            continue
        flight = json.loads(record.value)
        figures = wanted.setdefault((_date(record.timestamp_ms), flight["carrier"]), [0, 0, 0])
        figures[0] += 1
        figures[1] += flight["distance"]
        figures[2] += flight["dep_time"] is None
    last: dict[tuple[str, str], list[float]] = {}
    findings = []
    for record in (record for records in found.values() for record in records):
        key, value = json.loads(record.key or b"{}"), json.loads(record.value or b"{}")
        window = (key["window_start"][:10], key["carrier"])
        if (value["window_start"][:10], value["carrier"]) != window:
            findings.append(Finding(CHANGED, f"the figures of {window} are about another: {value}"))
        last[window] = [value["flights"], value["distance"], value["cancelled"]]
    for kind, windows in (
        (LOST, set(wanted) - set(last)),
        (EXTRA, set(last) - set(wanted)),
        (CHANGED, {window for window in wanted if wanted[window] != last.get(window, wanted[window])}),
    ):
        if windows:
            one = min(windows)
            findings.append(
                Finding(
                    kind,
                    f"{plural(len(windows), 'window')}, {one}: {last.get(one)}, and it should be "
                    f"{wanted.get(one)}",
                )
            )
    return findings

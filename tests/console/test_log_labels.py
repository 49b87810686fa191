"""The labels of the drawn log in Chromium: their rendered boxes do not overlap, in any font and width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kwire.console.app import HERE, PREFIX, _templates
from kwire.console.drawing import Segment, detail, overview
from kwire.console.fetching import Batch, BatchStatus, LogOffsets
from kwire.console.page import ConsoleSettings
from kwire.testing import Broker
from kwire.wire.batch import build, read_header
from tests.console.browser import Browser, chromium
from tests.console.conftest import ConsoleClient
from tests.console.test_newest import large_producer

PATH = chromium()
pytestmark = pytest.mark.skipif(
    PATH is None, reason="Chromium is not there (Debian: apt-get install chromium)"
)
WIDTHS: Final = (320, 800, 1280)
ZOOMS: Final = (0.5, 1, 2)
FONTS: Final = ("", "DejaVu Sans", "serif")
LARGEST: Final = (1 << 63) - 1
PROBLEMS: Final = """
(() => {
  const box = element => {
    const {left, top, right, bottom} = element.getBoundingClientRect();
    return {left, top, right, bottom, name: element.textContent || element.outerHTML};
  };
  const slack = .25;  // browsers round to device pixels
  const overlap = (one, other) =>
    one.left < other.right - slack && other.left < one.right - slack &&
    one.top < other.bottom - slack && other.top < one.bottom - slack;
  const within = (one, other) =>
    one.left > other.left - slack && one.right < other.right + slack &&
    one.top > other.top - slack && one.bottom < other.bottom + slack;
  const problems = [];
  for (const svg of document.querySelectorAll('.drawing svg')) {
    const outer = box(svg);
    const texts = [...svg.querySelectorAll('text')].map(box);
    texts.forEach((one, at) => {
      if (!within(one, outer)) problems.push([one, 'is not within the drawing', outer]);
      for (const other of texts.slice(0, at))
        if (overlap(one, other)) problems.push([one, 'overlaps', other]);
    });
    for (const group of svg.querySelectorAll('g')) {
      const texts = [...group.querySelectorAll('text')].map(box);
      const bar = texts.length ? box(group.querySelector('rect')) : null;
      for (const text of texts)
        if (!within(text, bar)) problems.push([text, 'is not within its bar', bar]);
    }
    const bars = [...svg.querySelectorAll('g rect')].map(box);
    for (const label of [...svg.querySelectorAll('text.label')].map(box))
      for (const bar of bars)
        if (overlap(label, bar)) problems.push([label, 'overlaps the bar', bar]);
  }
  return problems.map(([one, what, other]) => `${one.name} ${what} ${other.name}`).slice(0, 5);
})()
"""
"""A script that returns sentences about labels that overlap, or that are not within their bars."""


class DrawnLog(NamedTuple):
    """The log that a page draws."""

    bounds: LogOffsets
    segments: Sequence[Segment]
    epochs: Sequence[tuple[int, int]]
    batches: Sequence[Batch]
    descriptions: Sequence[str]


def new_batch(offset: int, records: int, epoch: int, status: BatchStatus, producer: int) -> Batch:
    data = build([(0, None, b"x", ())], base_offset=offset, leader_epoch=epoch, producer_id=producer)
    header = read_header(data)._replace(records_count=records, last_offset_delta=records - 1)
    return Batch(header, status, data, 0)


def log_of(
    draw: Random, *, first: int, count: int, records: Sequence[int], segment_share: float, epoch_share: float
) -> DrawnLog:
    """Return a log with batches of random sizes, segments and leader epochs, from the offset `first` on."""
    batches: list[Batch] = []
    descriptions: list[str] = []
    bases: list[int] = []
    epochs: list[tuple[int, int]] = []
    offset, epoch = first, draw.choice([0, 2**31 - 1 - count])
    for number in range(count):
        if not number or draw.random() < segment_share:
            bases.append(offset)
        if not number or draw.random() < epoch_share:
            epoch += 1
            epochs.append((epoch, offset))
        status, description = draw.choice(
            [
                (BatchStatus.PLAIN, "not transactional"),
                (BatchStatus.ABORTED, "aborted"),
                (BatchStatus.OPEN, "undecided"),
                (BatchStatus.CONTROL, "commit marker"),
                (BatchStatus.CONTROL, "control records"),
            ]
        )
        size = 1 if status is BatchStatus.CONTROL else draw.choice(records)
        batches.append(new_batch(offset, size, epoch, status, draw.randrange(-1, 9)))
        descriptions.append(description)
        offset += size
    segments = [Segment(base, end, 1 << 20) for base, end in zip(bases, [*bases[1:], offset], strict=True)]
    stable = draw.choice([first, batches[count // 2].header.base_offset, offset])
    bounds = LogOffsets(draw.choice([first, draw.randrange(first, stable + 1)]), stable, offset)
    drawn = slice(-60, None) if draw.random() < 0.7 else slice(0, 60)
    return DrawnLog(bounds, segments, epochs, batches[drawn], descriptions[drawn])


LOGS: Final[Mapping[str, DrawnLog]] = {
    "many short segments": log_of(
        Random(1), first=12_345_678, count=60, records=[1], segment_share=1, epoch_share=0
    ),
    "offsets of 19 digits": log_of(
        Random(2), first=LARGEST - 10_000, count=60, records=[1, 50], segment_share=1, epoch_share=1
    ),
    "large batches": log_of(
        Random(3),
        first=LARGEST - (60 << 31),
        count=60,
        records=[2**31 - 1],
        segment_share=0.3,
        epoch_share=0.3,
    ),
    "hundreds of segments": log_of(
        Random(4), first=0, count=800, records=[1, 7], segment_share=1, epoch_share=0.5
    ),
    "one batch": log_of(Random(5), first=0, count=1, records=[1], segment_share=1, epoch_share=1),
    "empty": DrawnLog(LogOffsets(LARGEST, LARGEST, LARGEST), [], [], [], []),
    **{
        f"random {seed}": log_of(
            Random(seed),
            first=Random(seed).choice([0, 10**9, 10**15, LARGEST - 10**9]),
            count=Random(seed).choice([3, 60, 200]),
            records=Random(seed).choice([[1], [1, 10, 1_000], [100_000, 1]]),
            segment_share=Random(seed).random(),
            epoch_share=Random(seed).random(),
        )
        for seed in range(10, 13)
    },
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PATH is not None
    started = Browser(PATH)
    yield started
    started.close()


def render(log: DrawnLog) -> str:
    """Return the page that draws a log."""
    templates = _templates()
    templates.globals |= {
        "settings": ConsoleSettings("none", 1, (), may_write=False),
        "token": "",
        "user": "",
        "prefix": PREFIX,
    }
    colors = {producer: producer for producer in range(8)}
    values: dict[str, Any] = {
        "topic": "drawn",
        "partition": 0,
        "bounds": log.bounds,
        "local_replica": None,
        "replicas": [1],
        "overview": overview(log.bounds, log.segments, log.epochs, log.batches),
        "detail": detail(log.bounds, log.segments, log.batches, log.descriptions, colors),
        "batches": list(zip(log.batches, log.descriptions, strict=True)),
        "colors": colors,
        "producers": [],
        "first": log.bounds.log_start,
        "next": log.bounds.high_watermark,
        "BatchStatus": BatchStatus,
    }
    return templates.get_template("log.html").render(values)


def check_labels(browser: Browser, source: str, directory: Path, name: str) -> int:
    """Assert that no labels overlap, at all widths, zooms and fonts. Returns the number of labels."""
    page = directory / "page.html"
    css = (HERE / "static" / "console.css").read_text()
    page.write_text(source.replace("</head>", f"<style>{css}</style></head>"))
    labels = 0
    for width in WIDTHS:
        tab = browser.tab(width, 800)
        tab.load(page.as_uri())
        labels = tab.run("document.querySelectorAll('.drawing text').length")
        for zoom, font in product(ZOOMS, FONTS):
            tab.run(
                f"document.documentElement.style.zoom = {zoom};"
                "document.querySelectorAll('svg text').forEach"
                f"(text => {{ text.style.fontFamily = {font!r}; }})"
            )
            assert tab.run(PROBLEMS) == [], (name, width, zoom, font)
        tab.close()
    return labels


@pytest.mark.parametrize("name", LOGS)
def test_labels_do_not_overlap(browser: Browser, tmp_path: Path, name: str) -> None:
    log = LOGS[name]
    labels = check_labels(browser, render(log), tmp_path, name)
    # The log start, the last stable offset, the high watermark, and the two labels of each batch.
    assert labels >= 3 + 2 * len(log.batches)


async def test_labels_of_a_partition_do_not_overlap(
    console: ConsoleClient, broker: Broker, admin: AdminClient, browser: Browser, tmp_path: Path
) -> None:
    config = {"segment.bytes": "1048576"}
    admin.create_topics([NewTopic("short-segments", 1, 1, config=config)])["short-segments"].result(10)
    producer = large_producer(broker)
    for _ in range(14):
        producer.produce("short-segments", bytes(600_000))
    producer.flush(30)
    source = await console.source("/topics/short-segments/0/log")
    assert source.count('class="mark segment"') > 5
    check_labels(browser, source, tmp_path, "a partition")


def test_overlapping_labels_are_found(browser: Browser, tmp_path: Path) -> None:
    """The script that looks for overlaps finds one that a page really has."""
    source = render(LOGS["many short segments"])
    page = tmp_path / "page.html"
    page.write_text(source.replace("</head>", "<style>svg text { font: 30px sans-serif }</style></head>"))
    tab = browser.tab(1280, 800)
    tab.load(page.as_uri())
    problems = " ".join(tab.run(PROBLEMS))
    assert "overlaps" in problems or "is not within" in problems
    tab.close()

"""Pages and plots are self-contained files, and the content of records is escaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kwire.pipeline.config import ConfigError
from kwire.pipeline.report import plots
from kwire.pipeline.report.audit_page import DIFFERENT, EXTRA, MISSING, SAME, Window, page_of, plot_cells
from kwire.pipeline.report.page import Page, Plot, Section, Table, cell, duration, render, share, size, write
from kwire.pipeline.report.times import END_MS, FIRST_MS

START = datetime(2013, 1, 1, tzinfo=UTC)
TIMES = [START + timedelta(hours=hour) for hour in range(30)]
NASTY = "<script>$a$ & \x00\ud800 " + "long " * 20


def drawn() -> dict[str, str]:
    return {
        "over time": plots.over_time("rate", TIMES, [float(hour) for hour in range(30)], "records/s"),
        "one time": plots.over_time("one", TIMES[:1], [3.0], "records/s"),
        "bars": plots.bars("bars", [NASTY, "b"], {"key": [1, 2], "value": [3, 4]}, "records"),
        "lying bars": plots.horizontal_bars("lying", [NASTY, "b"], [1, 2], "records"),
        "grid": plots.grid(
            "grid",
            ["t-0", NASTY],
            TIMES,
            [[0] * 30, [None] * 29 + [1]],
            [("same", "#cde"), ("missing", "#c00")],
        ),
    }


def test_plots_are_well_formed_and_self_contained() -> None:
    for name, svg in drawn().items():
        root = ET.fromstring(svg)
        assert root.tag.endswith("svg"), name
        for element in root.iter():
            assert not element.tag.endswith("script"), name
            for attribute, value in element.attrib.items():
                assert not attribute.endswith("href") or value.startswith(("#", "data:")), (name, value)


def test_a_plot_is_reproducible_with_unique_ids() -> None:
    first, again = drawn(), drawn()
    assert first == again
    clips = [set(re.findall(r'<clipPath id="([^"]+)"', svg)) for svg in first.values()]
    assert all(clips)
    assert sum(map(len, clips)) == len(set.union(*clips))


def test_a_page_is_one_file_and_escapes_its_content(tmp_path: Path) -> None:
    svg = plots.bars("p", ["a"], {"records": [1]}, "records")
    page = Page(
        "Profile of <flights>",
        "by & for people",
        [
            Section(
                "Keys",
                facts=[("hottest", "<b>"), ("records", 1234567), ("none", None)],
                plots=[Plot(svg, "caption")],
                tables=[Table(["key", "records"], [["</td><script>", 12]], "top")],
                notes=["note"],
            )
        ],
    )
    path = tmp_path / "deep" / "page.html"
    write(page, path)
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;/td&gt;&lt;script&gt;" in text
    assert "Profile of &lt;flights&gt;" in text
    assert "1,234,567" in text
    assert '<td class="figure">12</td>' in text
    assert svg in text
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", text)
    assert "@import" not in text
    assert "url(http" not in text


def test_an_unwritable_page_is_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the report .* cannot be written"):
        write(Page("t", "s", []), tmp_path / "file" / "page.html")
    assert "<h1>t</h1>" in render(Page("t", "s", []))


def test_numbers_are_formatted_for_people() -> None:
    assert [cell(value) for value in (None, 1000, 12.34, 0.12345, "x")] == [
        "–",
        "1,000",
        "12.3",
        "0.123",
        "x",
    ]
    assert [share(part) for part in (0.0, 0.00001, 0.0123, 0.5, 1.0)] == [
        "0.00 %",
        "< 0.01 %",
        "1.23 %",
        "50.0 %",
        "100.0 %",
    ]
    assert [size(count) for count in (0, 1023, 1536, 5 << 30)] == [
        "0 bytes",
        "1,023 bytes",
        "1.5 KiB",
        "5.0 GiB",
    ]
    assert [duration(seconds) for seconds in (0, 0.25, 61, 90_061, -3600)] == [
        "0 s",
        "250 ms",
        "1 min 1 s",
        "1 d 1 h",
        "-1 h",
    ]


def audited(partition: int, hour: int, verdict: str, told: str = "") -> Window:
    start_ms = int((START + timedelta(hours=hour)).timestamp() * 1000)
    return Window("flights", partition, start_ms, verdict, 10, 9, told)


def test_the_audit_page_shows_differences() -> None:
    windows = [
        audited(0, 0, SAME),
        audited(0, 1, MISSING, "flights-0: <missing>"),
        audited(1, 3, DIFFERENT),
        audited(1, 0, EXTRA),
    ]
    assert plot_cells([0, 1], windows) == (
        [START + timedelta(hours=hour) for hour in range(4)],
        [
            [0, 2, None, None],
            [1, None, None, 3],
        ],
    )
    text = render(page_of("kafka h:1", "archive /a", "1 hour", windows))
    assert "Audit: 3 of 4 windows differ" in text
    assert "flights-0: &lt;missing&gt;" in text
    assert "Audit: clean" in render(page_of("a", "b", "1 hour", windows[:1]))
    assert "Audit: clean" in render(page_of("a", "b", "1 hour", []))


def test_a_cell_shows_its_worst_window() -> None:
    windows = [audited(0, hour, SAME) for hour in range(10_000)]
    windows[5] = audited(0, 5, DIFFERENT)
    windows[6] = audited(0, 6, MISSING)
    times, [row] = plot_cells([0], windows)
    assert len(times) == len(row) <= 240
    assert row[0] == 3
    assert set(row[1:]) == {0}
    many = [audited(0, hour, MISSING) for hour in range(1_500)]
    assert "the first 1,000 of 1,500" in render(page_of("a", "b", "1 hour", many))


def test_windows_outside_the_years_1_to_9999_are_listed_but_not_plotted() -> None:
    far = [
        Window("flights", 0, time_ms, DIFFERENT, 1, 1, "told")
        for time_ms in (FIRST_MS - 1, FIRST_MS, END_MS - 1, END_MS, 1 << 53)
    ]
    text = render(page_of("a", "b", "1 hour", far))
    for told in (
        f"before the year 1 ({FIRST_MS - 1} ms)",
        "9999-12-31 23:59",
        f"after the year 9999 ({END_MS} ms)",
        "3 windows outside of the years 1 to 9999: not in the plot",
    ):
        assert told in text, told
    assert text.count("<svg") == 1
    assert "<svg" not in render(page_of("a", "b", "1 hour", far[3:]))


@pytest.mark.parametrize(
    ("first", "step", "steps"),
    [
        (datetime(2013, 1, 1, tzinfo=UTC), timedelta(days=365 * 20), 390),
        (datetime(9990, 1, 1, tzinfo=UTC), timedelta(days=7), 500),
        (datetime(9999, 12, 31, 23, tzinfo=UTC), timedelta(minutes=59), 2),
        (datetime(1, 1, 1, tzinfo=UTC), timedelta(minutes=1), 9),
        (datetime(1, 1, 1, tzinfo=UTC), timedelta(days=365 * 25), 395),
    ],
)
def test_plots_cover_the_years_1_to_9999(first: datetime, step: timedelta, steps: int) -> None:
    times = [first + step * number for number in range(steps)]
    ET.fromstring(plots.over_time("far", times, [1.0] * steps, "records"))

"""Tables, color, JSON and progress of commands."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from kwire.cli.shared.output import RED, Output, Progress, format_size, format_table, format_time


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _output(terminal: bool, *, as_json: bool = False, **environ: str) -> tuple[Output, io.StringIO]:
    out = Terminal() if terminal else io.StringIO()
    return Output(as_json=as_json, environ=environ, out=out, err=out), out


ROWS: list[dict[str, Any]] = [{"a_name": "x", "n": 5, "l": [1, 2]}, {"a_name": None, "n": 1234, "l": []}]


def test_table_aligns_numbers_to_the_right() -> None:
    assert list(format_table(ROWS)) == ["a name     n  l", "x          5  1,2", "-       1234  -"]


def test_a_very_long_cell_does_not_widen_the_other_lines() -> None:
    rows = [{"group": "g" * 900, "state": "Empty"}, {"group": "short", "state": "Stable"}]
    assert list(format_table(rows)) == ["group  state", f"{'g' * 900}  Empty", "short  Stable"]


@pytest.mark.parametrize(
    ("terminal", "environ", "colored"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_color_only_in_a_terminal(terminal: bool, environ: dict[str, str], colored: bool) -> None:
    output, out = _output(terminal, as_json=False, **environ)
    output.show(ROWS, empty="", color=lambda row: RED if row["n"] == 5 else None)
    assert ("\x1b[31mx" in out.getvalue()) is colored
    assert ("\x1b" in out.getvalue()) is colored


def test_json_is_never_colored() -> None:
    output, out = _output(True, as_json=True)
    output.show(ROWS, empty="none")
    assert json.loads(out.getvalue()) == ROWS


def test_no_rows_print_a_sentence_or_an_empty_list() -> None:
    output, out = _output(False)
    output.show([], empty="there are none")
    assert out.getvalue() == "there are none\n"
    output, out = _output(False, as_json=True)
    output.show([], empty="there are none")
    assert out.getvalue() == "[]\n"


def test_reports_are_a_sentence_each_or_one_json_array() -> None:
    for as_json, expected in ((False, "a is gone\nb is gone\n"), (True, '[{"gone": "a"}, {"gone": "b"}]')):
        output, out = _output(False, as_json=as_json)
        for name in "ab":
            output.report(f"{name} is gone", gone=name)
        output.finish()
        assert (json.loads(out.getvalue()) == json.loads(expected)) if as_json else out.getvalue() == expected


def test_control_characters_are_escaped_for_terminals() -> None:
    output, _ = _output(True)
    assert output.printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\n"
    assert "\x1b" not in "".join(format_table([{"k": "\x1b[2J"}]))
    output, _ = _output(False)
    assert output.printable("\x1b") == "\x1b"


def test_progress_is_drawn_at_intervals_and_erased() -> None:
    times = iter([1.0, 1.05, 2.0])
    stream = Terminal()
    with Progress("read", stream, lambda: next(times)) as progress:
        for done in (10, 20, 30):
            progress.update(done, 40)
    assert stream.getvalue() == "\r\x1b[Kread: 10 of 40 (25 %)\r\x1b[Kread: 30 of 40 (75 %)\r\x1b[K"


def test_format_time_and_format_size() -> None:
    assert format_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert format_time(-1) is None
    assert format_time(1 << 62) == str(1 << 62)
    assert [format_size(n) for n in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]

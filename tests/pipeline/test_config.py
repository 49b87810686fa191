"""A job's file: what is wrong in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import ConfigError, Input, JobConfig

GOOD = """
[input]
format = "kafka"
[input.options]
subscribe = "flights"
includeHeaders = true
minPartitions = 4
"""


def load(tmp_path: Path, text: str) -> JobConfig:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return JobConfig.load(path)


def test_an_input_is_read(tmp_path: Path) -> None:
    wanted = {"subscribe": "flights", "includeHeaders": "true", "minPartitions": "4"}
    assert load(tmp_path, GOOD).input() == Input("kafka", wanted)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", r"the table \[input\] is missing"),
        ("[input", "is no TOML"),
        ("[input]\nformat = 'csv'", "input.format is one of kafka, kwire, not 'csv'"),
        ("[input]\nformat = 3", "input.format is a string, not 3"),
        ("[input]\nformats = 'kafka'", "there is no input.formats; input has format, options"),
        ("[input]\n[input.options]\na = [1]", "input.options.a is a string, a number or a truth value"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        load(tmp_path, text).input()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        JobConfig.load(tmp_path / "absent.toml")


def test_numbers_and_flags(tmp_path: Path) -> None:
    table = load(tmp_path, "[a]\nn = 3\nf = true\nwrong = true\n").table("a")
    assert table.number("n") == 3
    assert table.number("other", 7) == 7
    assert table.flag("f", False)
    with pytest.raises(ConfigError, match=r"a\.wrong is a whole number, not True"):
        table.number("wrong")
    with pytest.raises(ConfigError, match=r"a\.n is at least 4, not 3"):
        table.number("n", least=4)
    with pytest.raises(ConfigError, match=r"a\.absent is missing"):
        table.number("absent")

"""Parsing of numbers, compared with Java, including very long texts."""

from __future__ import annotations

import math

import pytest

from kwire.broker.config.definition import parse_double, parse_integer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("+5", 5),
        ("-0", 0),
        ("2147483647", 2147483647),
        ("-2147483648", -2147483648),
        ("2147483648", None),
        ("\u0661", 1),
        ("1_0", None),
        ("-" + "0" * 5000 + "7", -7),
        ("9" * 5000, None),
        ("", None),
    ],
)
def test_parse_integer_reads_what_java_reads(text: str, number: int | None) -> None:
    assert parse_integer(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e3", 1000.0),
        ("0x1p3", 8.0),
        ("9" * 5000, math.inf),
        ("-0x1p" + "9" * 5000, -math.inf),
        ("0x1p", None),
        ("\u0661", None),
    ],
)
def test_parse_double_reads_what_java_reads(text: str, number: float | None) -> None:
    assert parse_double(text) == number

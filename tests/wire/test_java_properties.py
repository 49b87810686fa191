"""Java properties files, compared with OpenJDK 17."""

from __future__ import annotations

import pytest

from kwire.wire.java_properties import escaped, load, parse_integer


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("# a=1\n! b=2\n\n  \t\f\n", {}),
        ("a=1\r\nb : 2\rc 3\n d\t=\f4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("a", {"a": ""}),
        ("=1", {"": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1 \t", {"a": "1 \t"}),
        ("a==1", {"a": "=1"}),
        ("a\\ b\\=c=1", {"a b=c": "1"}),
        ("a=1,\\\n   2,\\\r\n# 3", {"a": "1,2,# 3"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=\\t\\n\\r\\f\\z\\u2603\\uD83D\\uDE00", {"a": "\t\n\r\fz\N{SNOWMAN}\N{GRINNING FACE}"}),
        ("a=1\x85b=2\x0b\x1c", {"a": "1\x85b=2\x0b\x1c"}),
        ("a\xa0b=1", {"a\xa0b": "1"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, properties: dict[str, str]) -> None:
    assert load(text) == properties


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "\\u=1"])
def test_malformed_escape_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"malformed \\u escape"):
        load(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (" a  b ", "\\ a  b "),
        ("a=b:c#d!e\\f", "a\\=b\\:c\\#d\\!e\\\\f"),
        ("\t\n\r\f\x01\x7f\x85\xfc", "\\t\\n\\r\\f\x01\x7f\x85\xfc"),
        ("\N{SNOWMAN}\N{GRINNING FACE}", "\\u2603\\uD83D\\uDE00"),
    ],
)
def test_values_are_escaped(value: str, text: str) -> None:
    assert escaped(value) == text
    assert load(f"a={text}\n") == {"a": value}


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("+007", 7), ("-2147483648", -(1 << 31))])
def test_numbers_are_read_as_java_reads_them(text: str, value: int) -> None:
    assert parse_integer(text) == value


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1_0", "1.0", "x", "--1", "2147483648"])
def test_text_that_java_rejects_as_a_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a number|does not fit"):
        parse_integer(text)


def test_short_has_a_smaller_range() -> None:
    assert parse_integer("32767", bits=16) == 32_767
    with pytest.raises(ValueError, match="does not fit 16 bits"):
        parse_integer("32768", bits=16)

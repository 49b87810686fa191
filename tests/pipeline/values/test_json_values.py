"""Decoding of JSON values without Spark."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kwire.pipeline.values.columns import DecodeError
from kwire.pipeline.values.decoder import Decoder, Plan
from kwire.pipeline.values.json_numbers import loads, sample_of
from kwire.pipeline.values.json_text import document_of


def decode_as(format_: str, type_: pa.DataType | None, *values: bytes) -> tuple[list[Any], list[Any]]:
    data, faults = Decoder(Plan(format_, type_)).decode(pa.array(values, pa.binary()))
    return data.to_pylist(), faults.to_pylist()


class TestJson:
    TYPE = pa.struct(
        {
            "a": pa.int32(),
            "b": pa.string(),
            "c": pa.list_(pa.struct({"d": pa.float64()})),
            "m": pa.map_(pa.string(), pa.bool_()),
        }
    )

    def test_documents(self) -> None:
        data, faults = decode_as(
            "json",
            self.TYPE,
            b'{"a": 1, "b": "x", "c": [{"d": 1}, null, {"d": 0.1, "e": 2}], "m": {"k": true}, "z": 0}',
            b'{"b": {"any": [1.5, "\xc3\xa4"]}}',
            b"\x00\x00\x00\x00\x07{}",
        )
        empty = {"a": None, "b": None, "c": None, "m": None}
        assert faults == [None] * 3
        assert data == [
            {"a": 1, "b": "x", "c": [{"d": 1.0}, None, {"d": 0.1}], "m": [("k", True)]},
            {**empty, "b": '{"any": [1.5, "ä"]}'},
            empty,
        ]

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            (b"", "not valid JSON"),
            (b"{", "not valid JSON"),
            (b"{} {}", "not valid JSON: Extra data"),
            (b"\xff", "not valid UTF-8: invalid start byte at byte 0"),
            (b"null", "the document is null"),
            (b"[]", "[] is not an object"),
            (b'"x"', '"x" is not an object'),
            (b'{"a": "1"}', 'a: "1" is not an integer'),
            (b'{"a": 1.5}', "a: 1.5 is not an integer"),
            (b'{"a": true}', "a: true is not an integer"),
            (b'{"a": 4294967296}', "does not fit"),
            (b'{"c": {}}', "c: {} is not a list"),
            (b'{"c": [{"d": "x"}]}', 'c: d: "x" is not a number'),
            (b'{"m": {"k": 1}}', "m: 1 is not true or false"),
            (b"[" * 100_000, "not valid JSON"),
        ],
    )
    def test_documents_that_do_not_fit(self, value: bytes, why: str) -> None:
        data, faults = decode_as("json", self.TYPE, b'{"a": 1}', value, b'{"a": 2}')
        assert [found and found["a"] for found in data] == [1, None, 2]
        assert why in faults[1]
        assert faults[::2] == [None, None]

    @pytest.mark.parametrize(
        "text",
        [
            "12345678901234567890.123456789",
            "0.1000",
            "1e400",
            "1e2",
            "-0",
            "1" * 10_000,
            '{"a": [1.50, {"b": -0}, [], {}], "ä": 1E+2}',
            "[" * 500 + "1.0" + "]" * 500,
        ],
    )
    def test_text_has_numbers_as_they_are_written(self, text: str) -> None:
        assert decode_as("json", self.TYPE, f'{{"b": {text}}}'.encode())[0][0]["b"] == text

    @pytest.mark.parametrize("text", ["1e400", "-1e400", "1" + "0" * 400])
    def test_no_number_is_made_infinite(self, text: str) -> None:
        [data], [fault] = decode_as("json", pa.struct({"x": pa.float64()}), f'{{"x": {text}}}'.encode())
        assert data is None
        assert "too large" in fault

    @pytest.mark.parametrize(
        ("type_", "text", "why"),
        [
            (pa.float32(), "1e39", "too large"),
            (pa.float32(), "-1e39", "too large"),
            (pa.float32(), "1" + "0" * 39, "too large"),
            (pa.float32(), "16777217", "too many digits"),
            (pa.float32(), "1e-46", "too small"),
            (pa.float64(), "9007199254740993", "too many digits"),
            (pa.float64(), "-9007199254740993", "too many digits"),
            (pa.float64(), "123456789012345678", "too many digits"),
            (pa.float64(), "1" + "0" * 23, "too many digits"),
            (pa.float64(), "1" + "0" * 5_000, "not valid JSON|too large"),
            (pa.float64(), "-0.1e-400", "too small"),
            (pa.float64(), "true", "not a number"),
            (pa.float64(), '"1"', "not a number"),
        ],
    )
    def test_a_number_that_its_column_cannot_hold(self, type_: pa.DataType, text: str, why: str) -> None:
        for around, inside in ((pa.struct({"x": type_}), "{}"), (pa.list_(type_), "[]")):
            value = f'{{"x": {text}}}' if inside == "{}" else f"[{text}]"
            [data], [fault] = decode_as("json", around, value.encode())
            assert data is None
            assert re.search(why, fault), fault

    @pytest.mark.parametrize(
        ("type_", "text", "wanted"),
        [
            (pa.float32(), "16777216", 2.0**24),
            (pa.float32(), "16777218", 2.0**24 + 2),
            (pa.float32(), "0.1", 0.10000000149011612),
            (pa.float32(), "3.4028235e38", 3.4028234663852886e38),
            (pa.float32(), "1e-45", 1.401298464324817e-45),
            (pa.float64(), "9007199254740992", 2.0**53),
            (pa.float64(), "9007199254740994", 2.0**53 + 2),
            (pa.float64(), "1" + "0" * 22, 1e22),
            (pa.float64(), "1e23", 1e23),
            (pa.float64(), "1e300", 1e300),
            (pa.float64(), "0e-400", 0.0),
            (pa.float64(), "0.000", 0.0),
            (pa.float64(), "5", 5.0),
            (pa.float64(), "0.1234567890123456789", 0.12345678901234568),
        ],
    )
    def test_a_number_that_its_column_can_hold(self, type_: pa.DataType, text: str, wanted: float) -> None:
        [data], [fault] = decode_as("json", pa.struct({"x": type_}), f'{{"x": {text}}}'.encode())
        assert (data, fault) == ({"x": wanted}, None)

    @pytest.mark.parametrize(
        ("type_", "text", "wanted"),
        [
            (
                pa.decimal128(38, 9),
                "12345678901234567890.123456789",
                Decimal("12345678901234567890.123456789"),
            ),
            (pa.decimal128(20, 0), "1234567890123456789", Decimal("1234567890123456789")),
            (pa.int64(), "-9223372036854775808", -(1 << 63)),
            (pa.int64(), "-0", 0),
            (pa.decimal128(20, 10), "1.1234567891", Decimal("1.1234567891")),
            (pa.decimal128(20, 1), '"7.5"', Decimal("7.5")),
            (pa.date32(), '"2013-01-31"', date(2013, 1, 31)),
            (pa.timestamp("us", "UTC"), '"2013-01-31T01:00:00+01:00"', datetime(2013, 1, 31, tzinfo=UTC)),
            (pa.timestamp("us", "UTC"), '"2013-01-31 00:00:00"', datetime(2013, 1, 31, tzinfo=UTC)),
            (pa.timestamp("us"), '"2013-01-31T00:00:00"', datetime(2013, 1, 31)),
            (pa.binary(), '"/w=="', b"\xff"),
            (pa.float32(), "1", 1.0),
            (pa.int64(), "9007199254740993", 9007199254740993),
        ],
    )
    def test_types(self, type_: pa.DataType, text: str, wanted: Any) -> None:
        data, faults = decode_as("json", pa.struct({"x": type_}), f'{{"x": {text}}}'.encode(), b'{"x": []}')
        assert (data, faults[0]) == ([{"x": wanted}, None], None)
        assert faults[1]

    def test_types_that_json_cannot_represent(self) -> None:
        with pytest.raises(DecodeError, match="JSON cannot represent the type null"):
            Decoder(Plan("json", pa.null()))


class TestSample:
    def test_the_most_frequent_spelling_of_a_key_is_kept(self) -> None:
        documents = [
            {"A": 5},
            {"a": 1, "b": {"c": [{"D": 1}]}},
            {"a": 0},
            {"a": 1, "A": 2, "b": {"c": [{"d": 1}, {"d": 2}]}},
            {"B": {"x": 1}},
        ]
        assert sample_of(documents) == [
            "{}",
            '{"a": 1, "b": {"c": [{}]}}',
            '{"a": 0}',
            '{"a": 1, "b": {"c": [{"d": 1}, {"d": 2}]}}',
            "{}",
        ]

    def test_the_last_of_duplicate_keys_is_kept_as_in_decoding(self) -> None:
        value = b'{"a": "x", "a": 2}'
        assert sample_of([document_of(value)]) == ['{"a": 2}']
        assert decode_as("json", pa.struct({"a": pa.int32()}), value) == ([{"a": 2}], [None])

    def test_numbers_keep_their_text_for_inference(self) -> None:
        assert sample_of([loads('{"a": 1.0, "b": 1e2, "c": 9223372036854775808}')]) == [
            '{"a": 1.0, "b": 1e2, "c": 9223372036854775808}'
        ]

    def test_documents_without_column_type_are_excluded(self) -> None:
        deep = "[" * 700 + "]" * 700
        documents = [
            loads(text) for text in ("[1]", '"s"', '{"a": "\\ud800"}', f'{{"a": {deep}}}', '{"a": 1}')
        ]
        assert sample_of(documents) == ['{"a": 1}']
        assert sample_of(documents[:3]) == []

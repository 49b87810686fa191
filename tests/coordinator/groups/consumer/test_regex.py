"""Regular expressions of subscriptions, compared with RE2/J in Apache Kafka 4.3.1 (see `golden.py`)."""

from __future__ import annotations

import json

import pytest

from kwire.coordinator.groups.consumer import regex
from kwire.wire.errors import ApiError, ErrorCode
from tests.coordinator.groups.consumer.golden import EXPRESSIONS, INVALID, VALID, expressions

LINES = EXPRESSIONS.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", LINES)
def test_regex_matches_and_errors_as_in_kafka(line: str) -> None:
    input_json, output = line.split("\t")
    pattern, names = json.loads(input_json)
    matched = json.loads(output)
    if isinstance(matched, list):
        regex.check(pattern)
        assert regex.matching(pattern, names) == frozenset(matched)
    else:
        with pytest.raises(ApiError) as raised:
            regex.check(pattern)
        assert raised.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert raised.value.message == (
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {matched}."
        )


def test_data_has_every_expression() -> None:
    outputs = [json.loads(line.split("\t")[1]) for line in LINES]
    valid, invalid = expressions(VALID), expressions(INVALID)
    assert [type(output) for output in outputs] == [list] * len(valid) + [str] * len(invalid)


def test_nested_repetitions_are_limited() -> None:
    with pytest.raises(ApiError, match="invalid repeat count"):
        regex.check("((a{100}){100}){100}")

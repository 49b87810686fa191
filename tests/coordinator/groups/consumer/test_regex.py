"""Regular expressions of subscriptions, as RE2/J reads them in Apache Kafka 4.3.1; `golden.py` asked it."""

from __future__ import annotations

import json

import pytest

from kwire.coordinator.groups.consumer import regex
from kwire.wire.errors import ApiError, ErrorCode
from tests.coordinator.groups.consumer.golden import EXPRESSIONS, INVALID, VALID, expressions

LINES = EXPRESSIONS.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", LINES)
def test_it_is_read_as_kafka_reads_it(line: str) -> None:
    question, answer = line.split("\t")
    pattern, names = json.loads(question)
    found = json.loads(answer)
    if isinstance(found, list):
        regex.check(pattern)
        assert regex.matching(pattern, names) == frozenset(found)
    else:
        with pytest.raises(ApiError) as raised:
            regex.check(pattern)
        assert raised.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert raised.value.message == (
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {found}."
        )


def test_kafka_was_asked_of_every_expression() -> None:
    answers = [json.loads(line.split("\t")[1]) for line in LINES]
    valid, invalid = expressions(VALID), expressions(INVALID)
    assert [type(answer) for answer in answers] == [list] * len(valid) + [str] * len(invalid)


def test_repetitions_of_repetitions_have_an_end() -> None:
    with pytest.raises(ApiError, match="invalid repeat count"):
        regex.check("((a{100}){100}){100}")

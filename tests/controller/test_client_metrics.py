"""Settings of client metrics subscriptions: refusals and texts as Apache Kafka 4.3.1 was seen to give."""

from __future__ import annotations

import pytest

from broker.controller.client_metrics import subscription_fault
from broker.controller.commands import Fault
from kwire.errors import ErrorCode


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"metrics": "a,b", "interval.ms": "100", "match": ""},
        {"interval.ms": "3600000", "match": "client_id=a.*, client_source_port=1"},
    ],
)
def test_what_may_be(values: dict[str, str]) -> None:
    assert subscription_fault(values) is None


NO_NUMBER = "Invalid value {} for configuration interval.ms: Not a number of type INT"
TOO_FAR = "Invalid value {} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
NO_PATTERN = "Illegal client matching pattern: {}"


@pytest.mark.parametrize(
    ("name", "value", "code", "text"),
    [
        ("no", "1", ErrorCode.INVALID_REQUEST, "Unknown client metrics configuration: no"),
        ("interval.ms", "x", ErrorCode.INVALID_CONFIG, NO_NUMBER),
        ("interval.ms", "9999999999", ErrorCode.INVALID_CONFIG, NO_NUMBER),
        ("interval.ms", "99", ErrorCode.INVALID_REQUEST, TOO_FAR),
        ("interval.ms", "3600001", ErrorCode.INVALID_REQUEST, TOO_FAR),
        ("match", "client_id", ErrorCode.INVALID_CONFIG, NO_PATTERN),
        ("match", "client_id=", ErrorCode.INVALID_CONFIG, NO_PATTERN),
        ("match", "client_id=[", ErrorCode.INVALID_CONFIG, NO_PATTERN),
        ("match", "client_id=a=b", ErrorCode.INVALID_CONFIG, NO_PATTERN),
        ("match", "no_such=a", ErrorCode.INVALID_CONFIG, NO_PATTERN),
    ],
)
def test_what_may_not(name: str, value: str, code: ErrorCode, text: str) -> None:
    assert subscription_fault({name: value}) == Fault(code, text.format(value))

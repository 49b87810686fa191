"""Settings of client metrics subscriptions, with the errors of Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest

from kwire.broker.controller.client_metrics import subscription_fault
from kwire.broker.controller.commands import Fault
from kwire.wire.errors import ErrorCode


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"metrics": "a,b", "interval.ms": "100", "match": ""},
        {"interval.ms": " +00500 ", "metrics": "*", "match": "client_id= =, client_id = a==="},
        {"interval.ms": "3600000", "match": "client_id=a.*, client_source_port=1"},
    ],
)
def test_valid_settings_have_no_fault(values: dict[str, str]) -> None:
    assert subscription_fault(values) is None


NO_NUMBER = "Invalid value {} for configuration interval.ms: Not a number of type INT"
TOO_FAR = "Invalid value {} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
NO_ENTRY = "Configuration 'match' values must not be empty."
NO_PATTERN = "Illegal client matching pattern: {}"


@pytest.mark.parametrize(
    ("name", "value", "code", "text"),
    [
        ("no", "1", ErrorCode.INVALID_REQUEST, "Unknown client metrics configuration: no"),
        ("interval.ms", "x", ErrorCode.INVALID_CONFIG, NO_NUMBER),
        ("interval.ms", "9999999999", ErrorCode.INVALID_CONFIG, NO_NUMBER),
        ("interval.ms", "5_00", ErrorCode.INVALID_CONFIG, NO_NUMBER),
        ("interval.ms", "", ErrorCode.INVALID_CONFIG, NO_NUMBER),
        ("metrics", "a,", ErrorCode.INVALID_CONFIG, "Configuration 'metrics' values must not be empty."),
        ("match", "client_id=a,,client_id=b", ErrorCode.INVALID_CONFIG, NO_ENTRY),
        ("match", ",", ErrorCode.INVALID_CONFIG, NO_ENTRY),
        ("match", "=a", ErrorCode.INVALID_CONFIG, NO_PATTERN),
        ("match", "=", ErrorCode.INVALID_CONFIG, NO_PATTERN),
        ("interval.ms", "99", ErrorCode.INVALID_REQUEST, TOO_FAR),
        ("interval.ms", "3600001", ErrorCode.INVALID_REQUEST, TOO_FAR),
        ("match", "client_id", ErrorCode.INVALID_CONFIG, NO_PATTERN),
        ("match", "client_id=", ErrorCode.INVALID_CONFIG, NO_PATTERN),
        ("match", "client_id=[", ErrorCode.INVALID_CONFIG, NO_PATTERN),
        ("match", "client_id=a=b", ErrorCode.INVALID_CONFIG, NO_PATTERN),
        ("match", "no_such=a", ErrorCode.INVALID_CONFIG, NO_PATTERN),
    ],
)
def test_invalid_settings_have_kafkas_message(name: str, value: str, code: ErrorCode, text: str) -> None:
    assert subscription_fault({name: value}) == Fault(code, text.format(value))


def test_faults_are_reported_in_kafkas_order() -> None:
    values = {"match": "x", "interval.ms": "99", "metrics": ",", "nope": "1"}
    messages = []
    for removed in ("nope", "metrics", "interval.ms", "match"):
        fault = subscription_fault(values)
        assert fault is not None
        messages.append(fault.message)
        del values[removed]
    assert messages == [
        "Unknown client metrics configuration: nope",
        "Configuration 'metrics' values must not be empty.",
        TOO_FAR.format("99"),
        NO_PATTERN.format("x"),
    ]
    assert subscription_fault({"match": "x", "interval.ms": "5_00"}) == Fault(
        ErrorCode.INVALID_CONFIG, NO_NUMBER.format("5_00")
    )

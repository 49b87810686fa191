"""Loggers as a config resource (KIP-412), with the errors of Apache Kafka 4.3.1."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kwire.broker.api.configs.loggers import alter_loggers, describe_loggers
from kwire.broker.controller.commands import AlterOperation, ConfigChange, Fault
from kwire.host.loggers import known_loggers
from kwire.wire.errors import ApiError, ErrorCode

NAME = "kwire.a-test-of-loggers"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Return a logger that only these tests use."""
    logger = logging.getLogger(NAME)
    yield logger
    logger.setLevel(logging.NOTSET)


def alter(
    *changes: tuple[str, int, str | None], node: str = "1", validate_only: bool = False
) -> Fault | None:
    return alter_loggers(
        known_loggers(), 1, node, [ConfigChange(*change) for change in changes], validate_only=validate_only
    )


def described() -> dict[str, str | None]:
    return {entry.name: entry.value for entry in describe_loggers(known_loggers(), 1, "1")}


def test_logger_levels_are_set_and_deleted(logger: logging.Logger) -> None:
    inherited = described()[NAME]
    for name, level in (
        ("TRACE", 5),
        ("DEBUG", 10),
        ("INFO", 20),
        ("WARN", 30),
        ("ERROR", 40),
        ("FATAL", 50),
    ):
        assert alter((NAME, AlterOperation.SET, name), validate_only=True) is None
        assert described()[NAME] != name or inherited == name
        assert alter((NAME, AlterOperation.SET, name)) is None
        assert described()[NAME] == name
        assert logger.level == level
        assert alter((NAME, AlterOperation.DELETE, None)) is None
        assert logger.level == logging.NOTSET
        assert described()[NAME] == inherited


def test_the_root_logger_is_described_first() -> None:
    assert next(iter(described())) == "root"


@pytest.mark.parametrize("node", ["1", "+1", "01", "\u0661"])
def test_a_broker_id_is_parsed_as_in_java(node: str) -> None:
    assert alter(("root", AlterOperation.SET, "INFO"), node=node, validate_only=True) is None
    assert describe_loggers(known_loggers(), 1, node)


@pytest.mark.parametrize("node", ["", " 1", "1 ", "1_0", "1\u00a0", "0x1", "99999999999", "1" * 5000])
def test_an_invalid_broker_id_is_refused(node: str) -> None:
    text = f"Node id must be an integer, but it is: {node}"
    assert alter(("root", 0, "INFO"), node=node) == Fault(ErrorCode.INVALID_REQUEST, text)
    with pytest.raises(ApiError) as refused:
        describe_loggers(known_loggers(), 1, node)
    error = f"Broker id must be an integer, but it is: {node}" if node else "Broker id must not be empty"
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, error)


REFUSED = [
    (("nope", 0, "INFO"), ErrorCode.INVALID_CONFIG, "Logger nope does not exist!"),
    (("asyncio", 0, "INFO"), ErrorCode.INVALID_CONFIG, "Logger asyncio does not exist!"),
    (("nope", 1, None), ErrorCode.INVALID_CONFIG, "Logger nope does not exist!"),
    (
        ("root", 0, "debug"),
        ErrorCode.INVALID_CONFIG,
        "Cannot set the log level of root to debug as it is not a supported log level. Valid log levels are "
        "DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
    ),
    (
        ("root", 1, None),
        ErrorCode.INVALID_REQUEST,
        "Removing the log level of the root logger is not allowed",
    ),
    (
        ("root", 2, "INFO"),
        ErrorCode.INVALID_REQUEST,
        "APPEND operation is not allowed for the BROKER_LOGGER resource",
    ),
    (
        ("nope", 3, "INFO"),
        ErrorCode.INVALID_REQUEST,
        "SUBTRACT operation is not allowed for the BROKER_LOGGER resource",
    ),
    (("root", 9, "INFO"), ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
]


@pytest.mark.parametrize(("change", "code", "text"), REFUSED)
def test_an_invalid_change_stops_the_earlier_changes(
    logger: logging.Logger, change: tuple[str, int, str | None], code: ErrorCode, text: str | None
) -> None:
    """An error in one change also stops the changes before it."""
    assert alter((NAME, AlterOperation.SET, "FATAL"), change) == Fault(code, text)
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize(
    ("node", "described_as", "altered_as"),
    [
        ("", "Broker id must not be empty", "Node id must be an integer, but it is: "),
        ("x", "Broker id must be an integer, but it is: x", "Node id must be an integer, but it is: x"),
        (
            "2",
            "Unexpected broker id, expected 1 but received 2",
            "Unexpected node id. Expected 1, but received 2",
        ),
    ],
)
def test_loggers_of_another_broker_are_refused(node: str, described_as: str, altered_as: str) -> None:
    with pytest.raises(ApiError) as found:
        describe_loggers(known_loggers(), 1, node)
    assert (found.value.code, found.value.message) == (ErrorCode.INVALID_REQUEST, described_as)
    assert alter(("root", 0, "INFO"), node=node) == Fault(ErrorCode.INVALID_REQUEST, altered_as)

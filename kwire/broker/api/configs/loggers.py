"""The loggers of this broker as a configuration resource. KIP-412.

Levels have log4j's names. If a logger's own level is deleted, the level of its parent applies.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from kwire.broker.config.definition import parse_integer
from kwire.broker.config.describe import ConfigEntry, ConfigSource
from kwire.broker.controller.commands import AlterOperation, ConfigChange, Fault
from kwire.host.loggers import ROOT, TRACE
from kwire.wire.errors import ApiError, ErrorCode

Loggers = Mapping[str, logging.Logger]
"""The loggers of a node, by name."""

LEVELS: Final = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": TRACE,
    "WARN": logging.WARNING,
}
_NAMES: Final = sorted(((level, name) for name, level in LEVELS.items()), reverse=True)


def describe_loggers(loggers: Loggers, node_id: int, resource_name: str) -> list[ConfigEntry]:
    """Return every logger with its effective level.

    Raises ApiError INVALID_REQUEST if `resource_name` is not the id of this node.
    """
    if not resource_name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    broker_id = parse_integer(resource_name)
    if broker_id is None:
        text = f"Broker id must be an integer, but it is: {resource_name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    if broker_id != node_id:
        text = f"Unexpected broker id, expected {node_id} but received {resource_name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    return [
        ConfigEntry(
            name=name,
            value=_level_name(logger.getEffectiveLevel()),
            source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            synonyms=[],
            type=0,
            read_only=False,
            is_sensitive=False,
            documentation=None,
        )
        for name, logger in loggers.items()
    ]


def alter_loggers(
    loggers: Loggers,
    node_id: int,
    resource_name: str,
    changes: Sequence[ConfigChange],
    *,
    validate_only: bool,
) -> Fault | None:
    """Apply all changes of logger levels, or none if one is invalid. Return the error, or None."""
    broker_id = parse_integer(resource_name)
    if broker_id is None:
        return _invalid(f"Node id must be an integer, but it is: {resource_name}")
    if broker_id != node_id:
        return _invalid(f"Unexpected node id. Expected {node_id}, but received {broker_id}")
    for change in changes:
        fault = _fault(change, loggers)
        if fault is not None:
            return fault
    if not validate_only:
        for change in changes:
            is_set = change.operation == AlterOperation.SET
            loggers[change.name].setLevel(LEVELS[change.value or ""] if is_set else logging.NOTSET)
    return None


def _fault(change: ConfigChange, loggers: Loggers) -> Fault | None:
    name, operation, value = change
    if operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
        verb = AlterOperation(operation).name
        return _invalid(f"{verb} operation is not allowed for the BROKER_LOGGER resource")
    if operation not in (AlterOperation.SET, AlterOperation.DELETE):
        return _invalid(f"Unknown operations type {operation}")
    if name not in loggers:
        return Fault(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == AlterOperation.DELETE:
        if name == ROOT:
            return _invalid(f"Removing the log level of the {ROOT} logger is not allowed")
    elif value not in LEVELS:
        text = (
            f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}"
        )
        return Fault(ErrorCode.INVALID_CONFIG, text)
    return None


def _level_name(level: int) -> str:
    return next((name for least, name in _NAMES if level >= least), "TRACE")


def _invalid(text: str) -> Fault:
    return Fault(ErrorCode.INVALID_REQUEST, text)

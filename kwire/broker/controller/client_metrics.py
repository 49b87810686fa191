"""Validation of client metrics subscriptions. KIP-714."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kwire.broker.config.definition import ConfigError
from kwire.broker.controller.commands import Fault
from kwire.broker.metadata.client_metrics import KEYS, IllegalPattern, parse_patterns
from kwire.wire.errors import ErrorCode

MIN_INTERVAL_MS: Final = 100
MAX_INTERVAL_MS: Final = 3_600_000


def subscription_fault(values: Mapping[str, str]) -> Fault | None:
    """Return why these configs are not a valid subscription, or None if they are valid."""
    for name in values:
        if name not in KEYS:
            return Fault(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    try:
        parsed = {name: key.parse(values[name]) for name, key in KEYS.items() if name in values}
    except ConfigError as error:
        return Fault(ErrorCode.INVALID_CONFIG, str(error))
    interval_ms, patterns = parsed.get("interval.ms"), parsed.get("match")
    if isinstance(interval_ms, int) and not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
        reason = (
            f"Invalid value {interval_ms} for interval.ms, interval must be between {MIN_INTERVAL_MS} and "
            f"{MAX_INTERVAL_MS} (1 hour)"
        )
        return Fault(ErrorCode.INVALID_REQUEST, reason)
    try:
        parse_patterns(patterns if isinstance(patterns, list) else ())
    except IllegalPattern as error:
        return Fault(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {error}")
    return None

"""What the settings of a client metrics subscription may be. KIP-714."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from broker.controller.commands import Fault
from kwire.errors import ErrorCode

MIN_INTERVAL_MS: Final = 100
MAX_INTERVAL_MS: Final = 3_600_000
INT32_LIMIT: Final = 1 << 31
KEYS: Final = ("metrics", "interval.ms", "match")
SELECTORS: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
"""What of a client a pattern may speak of."""


def subscription_fault(values: Mapping[str, str]) -> Fault | None:
    """Why these cannot be a subscription's settings; None where they can."""
    for name, text in values.items():
        if name not in KEYS:
            return Fault(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
        fault = None
        if name == "interval.ms":
            fault = _interval_fault(text)
        elif name == "match":
            fault = _match_fault(text)
        if fault is not None:
            return fault
    return None


def _interval_fault(text: str) -> Fault | None:
    try:
        interval_ms = int(text)
    except ValueError:
        interval_ms = INT32_LIMIT
    if not -INT32_LIMIT <= interval_ms < INT32_LIMIT:
        reason = f"Invalid value {text} for configuration interval.ms: Not a number of type INT"
        return Fault(ErrorCode.INVALID_CONFIG, reason)
    if MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
        return None
    reason = (
        f"Invalid value {interval_ms} for interval.ms, interval must be between {MIN_INTERVAL_MS} and "
        f"{MAX_INTERVAL_MS} (1 hour)"
    )
    return Fault(ErrorCode.INVALID_REQUEST, reason)


def _match_fault(text: str) -> Fault | None:
    """Patterns are `selector=expression`, parted by commas."""
    for entry in filter(None, (part.strip() for part in text.split(","))):
        selector, _, expression = entry.partition("=")
        selector, expression = selector.strip(), expression.strip()
        if selector not in SELECTORS or not expression or "=" in expression:
            return Fault(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {entry}")
        try:
            re.compile(expression)
        except (re.error, OverflowError, RecursionError):
            return Fault(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {entry}")
    return None

"""What the settings of a client metrics subscription may be. KIP-714."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kwire.broker.config.client_metrics_keys import CLIENT_METRICS_KEYS
from kwire.broker.config.definition import ConfigError
from kwire.broker.controller.commands import Fault
from kwire.wire.errors import ErrorCode
from kwire.wire.java import BLANKS

MIN_INTERVAL_MS: Final = 100
MAX_INTERVAL_MS: Final = 3_600_000
KEYS: Final = {key.name: key for key in CLIENT_METRICS_KEYS}
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
    for pattern in patterns if isinstance(patterns, list) else ():
        if not _is_pattern(pattern):
            return Fault(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")
    return None


def _is_pattern(text: str) -> bool:
    """Whether this is `selector=expression`. As Java parts them, any more `=` may follow the expression."""
    selector, _, expression = text.rstrip("=").partition("=")
    if selector.strip(BLANKS) not in SELECTORS or not expression or "=" in expression:
        return False
    try:
        re.compile(expression.strip(BLANKS))
    except (re.error, OverflowError, RecursionError):
        return False
    return True

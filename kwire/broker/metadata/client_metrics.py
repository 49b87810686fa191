"""What a client metrics subscription says: which clients push which of their metrics, and how often. KIP-714.

Apache Kafka reads the expressions of `match` with Java's, and this file with RE2, as those of groups: they
are held against what clients say of themselves, and RE2 cannot be held up. docs/decisions/0007 has the
difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kwire.broker.config.client_metrics_keys import CLIENT_METRICS_KEYS
from kwire.wire.java_strings import BLANKS
from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    import re2

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


class IllegalPattern(ValueError):
    """No `selector=expression`. Its argument is the pattern."""


class ClientMetricsSubscription(NamedTuple):
    """One that is read."""

    metrics: tuple[str, ...]
    """The beginnings of the names of those that are asked for; `*` is all."""
    interval_ms: int
    patterns: Mapping[str, re2._Regexp[str]]
    """What each selector has to match. Of several for the same one the last counts."""

    def matches(self, client: Mapping[str, str]) -> bool:
        """Whether a client, by its selectors, is asked; without patterns each is."""
        return all(
            pattern.fullmatch(client[selector]) is not None for selector, pattern in self.patterns.items()
        )


def parse_subscription(values: Mapping[str, str]) -> ClientMetricsSubscription:
    """What these settings say, with defaults for what they leave out. ConfigError, IllegalPattern."""
    read: dict[str, Any] = {
        name: key.parse(values.get(name, key.default or "")) for name, key in KEYS.items()
    }
    return ClientMetricsSubscription(
        tuple(read["metrics"]), read["interval.ms"], parse_patterns(read["match"])
    )


def parse_patterns(texts: Iterable[str]) -> dict[str, re2._Regexp[str]]:
    """The expression for each selector. IllegalPattern."""
    return dict(map(_pattern, texts))


def _pattern(text: str) -> tuple[str, re2._Regexp[str]]:
    """`selector=expression`. As Java parts them, any more `=` may follow the expression."""
    selector, _, expression = text.rstrip("=").partition("=")
    selector = selector.strip(BLANKS)
    if selector not in SELECTORS or not expression or "=" in expression:
        raise IllegalPattern(text)
    import re2  # takes time and memory that a broker without subscriptions need not spend

    options = re2.Options()
    options.log_errors = False
    try:
        return selector, re2.compile(expression.strip(BLANKS), options)
    except re2.error:
        raise IllegalPattern(text) from None

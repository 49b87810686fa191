"""Client metrics subscriptions: which metrics the matching clients push, and how often. KIP-714.

The patterns of `match` are RE2 expressions, while Apache Kafka uses Java's regular expressions. Patterns are
matched with text from clients, and RE2 needs only linear time. docs/decisions/0007 lists the differences.
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
"""The client properties that a pattern can match."""


class IllegalPattern(ValueError):
    """A pattern that is not `selector=expression`, or has an unknown selector or an invalid expression.

    The exception's argument is the pattern, followed by the reason if RE2 is not installed.
    """


class ClientMetricsSubscription(NamedTuple):
    """A parsed subscription."""

    metrics: tuple[str, ...]
    """Prefixes of metric names; `*` means all metrics."""
    interval_ms: int
    patterns: Mapping[str, re2._Regexp[str]]
    """The expression of each selector. If the config has several for one selector, the last one applies."""

    def matches(self, client: Mapping[str, str]) -> bool:
        """Return whether all patterns match the client. Without patterns, every client matches.

        `client` has the client's value for each of SELECTORS.
        """
        return all(
            pattern.fullmatch(client[selector]) is not None for selector, pattern in self.patterns.items()
        )


def parse_subscription(values: Mapping[str, str]) -> ClientMetricsSubscription:
    """Parse a subscription's configs; missing keys get defaults. Raises ConfigError or IllegalPattern."""
    read: dict[str, Any] = {
        name: key.parse(values.get(name, key.default or "")) for name, key in KEYS.items()
    }
    return ClientMetricsSubscription(
        tuple(read["metrics"]), read["interval.ms"], parse_patterns(read["match"])
    )


def parse_patterns(texts: Iterable[str]) -> dict[str, re2._Regexp[str]]:
    """Parse patterns, and return the expression of each selector. Raises IllegalPattern."""
    return dict(map(_pattern, texts))


def _pattern(text: str) -> tuple[str, re2._Regexp[str]]:
    """Parse `selector=expression`. Trailing `=` are ignored, as with Java's String.split."""
    selector, _, expression = text.rstrip("=").partition("=")
    selector = selector.strip(BLANKS)
    if selector not in SELECTORS or not expression or "=" in expression:
        raise IllegalPattern(text)
    try:
        import re2  # a late import saves time and memory on brokers without subscriptions
    except ImportError:
        raise IllegalPattern(
            f"{text}: the broker lacks the package google-re2: run pip install 'kwire[regex]' where it runs"
        ) from None

    options = re2.Options()
    options.log_errors = False
    try:
        return selector, re2.compile(expression.strip(BLANKS), options)
    except re2.error:
        raise IllegalPattern(text) from None

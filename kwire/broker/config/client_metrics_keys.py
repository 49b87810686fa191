"""Keys of client metrics subscriptions. KIP-714."""

from __future__ import annotations

from typing import Final

from kwire.broker.config.definition import INT, LIST, Key

# fmt: off
CLIENT_METRICS_KEYS: Final = (
    Key("metrics", LIST, "",
        doc="The prefixes of the metric names that clients push, separated by commas. * means all metrics. "
            "An empty list means none."),
    Key("interval.ms", INT, "300000",
        doc="The time, in milliseconds, between two pushes of a client."),
    Key("match", LIST, "",
        doc="The clients that push metrics, as pairs of a client attribute and a regular expression, "
            "separated by commas. An empty list means all clients."),
)
# fmt: on
"""The keys, in the order in which Kafka parses them. The order decides which error is reported."""

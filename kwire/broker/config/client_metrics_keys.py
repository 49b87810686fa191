"""What a client metrics subscription can be reachable. KIP-714."""

from __future__ import annotations

from typing import Final

from kwire.broker.config.definition import INT, LIST, Key

# fmt: off
CLIENT_METRICS_KEYS: Final = (
    Key("metrics", LIST, "",
        doc="Which of their metrics they send, by the beginnings of their names."),
    Key("interval.ms", INT, "300000",
        doc="How often clients are to send what they measured, in milliseconds."),
    Key("match", LIST, "",
        doc="Which clients are asked: pairs of an attribute and a regular expression."),
)
# fmt: on
"""In the order in which Kafka reads them: of several faults the first is reachable."""

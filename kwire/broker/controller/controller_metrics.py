"""Counts of leader elections and of the controller's commands, as in Kafka's controller metrics.

Every controller counts the elections in the committed metadata, not only the active one, as in Kafka.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kwire.broker.metadata.delta import MetadataDelta
    from kwire.broker.metadata.image import MetadataImage

RESERVOIR_SIZE: Final = 1_000
"""The number of durations that quantiles are computed from."""


class ControllerMetrics:
    """The counts of one controller since it started."""

    def __init__(self) -> None:
        self.unclean_elections = 0
        """Elections of a replica that was neither in the ISR nor an eligible leader replica."""
        self.elr_elections = 0
        """Elections of an eligible leader replica (KIP-966)."""
        self.commands = 0
        """Commands that this node has run as the active controller."""
        self.processing_ms: deque[int] = deque(maxlen=RESERVOIR_SIZE)
        """The durations of the last commands in ms."""

    def record_command(self, duration_ms: int) -> None:
        """Count a command of the active controller."""
        self.commands += 1
        self.processing_ms.append(duration_ms)

    def image_changed(self, _image: MetadataImage, delta: MetadataDelta) -> None:
        """Count the elections in a change of the metadata. New partitions have no election."""
        for before, after in delta.elections:
            if after.leader in before.elr:
                self.elr_elections += 1
            elif after.leader not in before.isr:
                self.unclean_elections += 1

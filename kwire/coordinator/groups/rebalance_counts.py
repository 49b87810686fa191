"""The numbers of rebalances of a group coordinator, as in Kafka's metrics."""

from __future__ import annotations


class RebalanceCounts:
    """The rebalances of all groups of a broker since it started. Loading a partition does not change them."""

    __slots__ = ("classic_completed", "consumer")

    def __init__(self) -> None:
        self.classic_completed = 0
        """How often a classic group became Stable, because the assignment of its leader was committed."""
        self.consumer = 0
        """How often a request or a resolved regular expression bumped the epoch of a consumer group.

        As in Kafka, the removal of a member bumps the epoch without being counted.
        """

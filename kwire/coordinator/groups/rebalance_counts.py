"""The numbers of rebalances of a group coordinator, as in Kafka's metrics."""

from __future__ import annotations


class RebalanceCounts:
    """The rebalances of all groups of a broker since it started. Loading a partition does not change them."""

    __slots__ = ("classic_completed", "consumer")

    def __init__(self) -> None:
        self.classic_completed = 0
        """The number of times that a classic group became Stable because its assignment was committed."""
        self.consumer = 0
        """The number of bumps of the epoch of a consumer group by requests and resolved regular expressions.

        As in Kafka, a bump because of the removal of a member is not counted.
        """

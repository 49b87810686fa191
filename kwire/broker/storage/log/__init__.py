"""The log of a partition: segments, indexes, producers, recovery."""

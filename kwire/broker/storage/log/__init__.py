"""The log of a partition: segments, indexes, producer state, log recovery."""

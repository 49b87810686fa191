"""Group and transaction coordinators, as state machines over the partitions of internal topics."""

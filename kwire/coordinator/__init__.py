"""Coordinators: pure machines over the partitions of internal topics."""

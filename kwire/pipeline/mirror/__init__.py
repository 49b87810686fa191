"""Mirroring of topics to another cluster, each record exactly once, with maps of their offsets."""

"""Mirroring: topics of one cluster into another, each offset once, with a map of which became which."""

"""Chance for one node, in streams that do not disturb each other.

A client may draw as often as it likes: with a Metadata request, or a fetch session. So each purpose has a
stream of its own, and what one client draws moves nothing that another gets, nor what a seeded run repeats.
"""

from __future__ import annotations

import random


class RandomStreams:
    """One stream a purpose, all from the seed of a node."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, random.Random] = {}

    def of(self, purpose: str) -> random.Random:
        """The stream of a purpose: the same one each time."""
        stream = self._streams.get(purpose)
        if stream is None:
            stream = self._streams[purpose] = random.Random(f"{self._seed} {purpose}")
        return stream

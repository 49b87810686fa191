"""Independent streams of random numbers for one node, one for each purpose.

Clients can make a broker draw numbers at will, with a Metadata request or a fetch session. With one stream
for all purposes, such requests would change every later draw, and a seeded simulation could not be repeated.
"""

from __future__ import annotations

from random import Random


class RandomStreams:
    """One stream for each purpose, all from the seed of a node."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, Random] = {}

    def stream(self, purpose: str) -> Random:
        """Return the stream for this purpose, the same object each time."""
        stream = self._streams.get(purpose)
        if stream is None:
            stream = self._streams[purpose] = Random(f"{self._seed} {purpose}")
        return stream

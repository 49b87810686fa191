"""The seeds of simulated tests, from their marks or from the command line."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest

DEFAULT_SEEDS: Final = 10
"""The number of seeds of a simulated test, unless its mark or the command line sets them."""


def marked_seeds(mark: pytest.Mark | None) -> Sequence[int]:
    """Return the seeds that a simulated test's mark sets. The result is empty if the mark is invalid."""
    marked = DEFAULT_SEEDS if mark is None else mark.kwargs.get("seeds", DEFAULT_SEEDS)
    if isinstance(marked, int):
        return range(marked)
    try:
        seeds = list(marked)
    except TypeError:
        return []
    return seeds if all(isinstance(seed, int) for seed in seeds) else []


def parse_seeds(wanted: str) -> range:
    """Parse `--kwire-seeds`: a number of seeds, or a range such as 100-199.

    Raises ArgumentTypeError if the value is invalid or has no seeds.
    """
    first, is_range, last = wanted.partition("-")
    try:
        seeds = range(int(first), int(last) + 1) if is_range else range(int(wanted))
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise ArgumentTypeError(f"{wanted!r}: pass a number of seeds, or a range such as 100-199")
    return seeds

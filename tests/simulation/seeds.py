"""Checks for every simulation: seeds pass, a seed is deterministic, planted bugs are found."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import pytest

from simulation.storage.planted_bugs import PlantedBug
from simulation.storage.run import HistoryFactory, find_failure, run_seeds

MAX_SEEDS = 1000
"""A planted bug is found within this many seeds, if the seed that once found it no longer does."""


def check_seeds(seeds: Sequence[int], make: HistoryFactory, module: str) -> None:
    """Check that no invariant is violated under these seeds."""
    failures = run_seeds(seeds, make, module)
    assert not failures, failures[0]


def check_determinism(make: HistoryFactory, seed: int = 7) -> None:
    """Check that running a seed twice gives the same transcript."""
    transcripts = []
    for _ in range(2):
        history = make(seed)
        history.run()
        transcripts.append(history.transcript)
    assert transcripts[0] == transcripts[1]


def check_bug_is_found(
    bug: PlantedBug,
    monkeypatch: pytest.MonkeyPatch,
    make: HistoryFactory,
    module: str,
    max_seeds: int = MAX_SEEDS,
) -> None:
    """Check that the seed that once found a planted bug, or another one, fails."""
    bug.plant(monkeypatch.setattr)
    for seed in (bug.seed, *range(max_seeds)):
        failure = find_failure(seed, make, module)
        if failure is not None:
            break
    assert failure is not None, f"no seed finds the planted bug: {bug.name}"
    if seed != bug.seed:
        warnings.warn(f"seed {seed} now finds {bug.name}: update its seed, it saves time", stacklevel=1)
    assert f"replay with: python -m {module} --seed" in failure

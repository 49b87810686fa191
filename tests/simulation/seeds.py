"""What is asked of every simulation: that seeds hold, that one decides everything, that bugs are found."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import pytest

from simulation.storage.planted_bugs import PlantedBug
from simulation.storage.run import HistoryFactory, find_failure, run_seeds

MAX_SEEDS = 1000
"""Within so many seeds each bug made by hand is found, should the one that found it go another way now."""


def check_seeds(seeds: Sequence[int], make: HistoryFactory, module: str) -> None:
    """Every promise holds after every step."""
    failures = run_seeds(seeds, make, module)
    assert not failures, failures[0]


def check_determinism(make: HistoryFactory) -> None:
    """A seed comes to the same, run again."""
    transcripts = []
    for _ in range(2):
        history = make(7)
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
    """The seed that found a bug made by hand, or another one, finds it."""
    bug.plant(monkeypatch.setattr)
    for seed in (bug.seed, *range(max_seeds)):
        failure = find_failure(seed, make, module)
        if failure is not None:
            break
    assert failure is not None, f"{bug.name} goes unnoticed"
    if seed != bug.seed:
        warnings.warn(f"{bug.name} is found by seed {seed} now: note that, it saves time", stacklevel=1)
    assert f"replay with: python -m {module} --seed" in failure

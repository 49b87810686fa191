"""What is asked of every simulation: that seeds hold, that one decides everything, that bugs are found."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import pytest

from simulation.storage.breakage import Breakage
from simulation.storage.run import MakesHistory, failure_of, run_many

ENOUGH_SEEDS = 1000
"""Within so many seeds each bug made by hand is found, should the one that found it go another way now."""


def hold(seeds: Sequence[int], make: MakesHistory, module: str) -> None:
    """Every promise holds after every step."""
    failures = run_many(seeds, make, module)
    assert not failures, failures[0]


def decide_everything(make: MakesHistory) -> None:
    """A seed comes to the same, run again."""
    transcripts = []
    for _ in range(2):
        history = make(7)
        history.run()
        transcripts.append(history.transcript)
    assert transcripts[0] == transcripts[1]


def find(
    breakage: Breakage,
    monkeypatch: pytest.MonkeyPatch,
    make: MakesHistory,
    module: str,
    enough_seeds: int = ENOUGH_SEEDS,
) -> None:
    """The seed that found a bug made by hand, or another one, finds it."""
    breakage.make(monkeypatch.setattr)
    for seed in (breakage.seed, *range(enough_seeds)):
        failure = failure_of(seed, make, module)
        if failure is not None:
            break
    assert failure is not None, f"{breakage.name} goes unnoticed"
    if seed != breakage.seed:
        warnings.warn(f"{breakage.name} is found by seed {seed} now: note that, it saves time", stacklevel=1)
    assert f"replay with: python -m {module} --seed" in failure

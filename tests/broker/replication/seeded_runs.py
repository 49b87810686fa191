"""Checks of simulations: every seed passes, and a planted bug makes one fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

Run = Callable[[int], None]
Breakage = Callable[[pytest.MonkeyPatch], None]


def check_seeds(run: Run, seeds: Iterable[int]) -> None:
    """Run every seed, and name the one that fails."""
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def check_bug_is_detected(
    run: Run,
    seed: int,
    breakage: Breakage,
    monkeypatch: pytest.MonkeyPatch,
    *failures: type[Exception],
) -> None:
    """Check that the seed passes, and fails with the planted bug."""
    run(seed)
    breakage(monkeypatch)
    with pytest.raises((AssertionError, *failures)):
        run(seed)

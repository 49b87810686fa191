"""What is asked of every trouble that a seed decides: it holds, and misses what holds it together."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

Run = Callable[[int], None]
Break = Callable[[pytest.MonkeyPatch], None]


def hold(run: Run, seeds: Iterable[int]) -> None:
    """Every seed ends well; one that does not is named."""
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def miss(
    run: Run,
    seed: int,
    breakage: Break,
    monkeypatch: pytest.MonkeyPatch,
    *failures: type[Exception],
) -> None:
    """The seed finds what was taken out."""
    run(seed)
    breakage(monkeypatch)
    with pytest.raises((AssertionError, *failures)):
        run(seed)

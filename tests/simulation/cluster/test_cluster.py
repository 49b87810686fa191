"""Some seeds of the simulated cluster. `make simulate` runs more."""

from __future__ import annotations

import pytest

from simulation.cluster.history import THREE_NODES, History
from tests.simulation import seeds


def test_invariants_hold_after_every_step() -> None:
    seeds.check_seeds(range(120), History, "simulation.cluster")


def test_same_seed_gives_the_same_transcript() -> None:
    seeds.check_determinism(History)


def history_with_tls(seed: int) -> History:
    return History(seed, spec=THREE_NODES._replace(uses_tls=True))


@pytest.mark.parametrize("seed", range(4))
def test_same_seed_gives_the_same_transcript_with_tls(seed: int) -> None:
    """The random bytes of OpenSSL, which differ, change no event."""
    seeds.check_determinism(history_with_tls, seed)

"""Clusters whose controllers elect an active one: `python -m simulation.cluster.elected --seed 1`."""

from __future__ import annotations

import random
from typing import Final

from kwire.testing.simulated.environment import ClusterSpec
from simulation.cluster.history import History
from simulation.storage.run import main

MODULE: Final = "simulation.cluster.elected"
SPECS: Final = (
    ClusterSpec(dict.fromkeys((1, 2, 3), "broker,controller")),
    ClusterSpec({1: "broker", 2: "broker", 3: "broker", 4: "controller", 5: "controller", 6: "controller"}),
    ClusterSpec({node_id: "broker,controller" if node_id < 4 else "controller" for node_id in range(1, 6)}),
)


def elected_history(seed: int) -> History:
    """Create the run of a seed, for a cluster with several controllers."""
    rng = random.Random(f"kwire elected {seed}")
    fetch_bytes = rng.choice((150, 600, 1 << 20))
    spec = rng.choice(SPECS)._replace(fetch_bytes=fetch_bytes)
    layout = random.Random(f"kwire elected layout {seed}")
    return History(seed, spec=spec._replace(has_bootstrap_snapshot=layout.random() < 0.25))


if __name__ == "__main__":
    raise SystemExit(main(elected_history, MODULE))

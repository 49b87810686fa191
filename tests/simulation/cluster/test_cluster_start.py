"""The simulated time from the start of a cluster to its first acknowledged write."""

from __future__ import annotations

from statistics import median

from simulation.cluster.cluster_start import DEFAULTS, ClusterStart

SEEDS = range(40)
ELECTION_MS = 2 * int(DEFAULTS["controller.quorum.election.timeout.ms"])
FETCH_MS = int(DEFAULTS["controller.quorum.fetch.timeout.ms"])
SESSION_MS = int(DEFAULTS["broker.session.timeout.ms"])


def test_start_and_restart_do_not_sleep() -> None:
    starts = [ClusterStart(seed) for seed in SEEDS]
    for start in starts:
        start.run()
    starts_ms = [start.start_ms for start in starts]
    assert median(starts_ms) < 300
    assert max(starts_ms) < 1_000
    # A restarted voter waits for its previous leader. The last broker of a quorum stops without the
    # controller's permission, so its next registration waits for its session.
    restarts_ms = [start.restart_ms for start in starts]
    assert median(restarts_ms) < 1_000
    assert max(restarts_ms) < FETCH_MS + ELECTION_MS + SESSION_MS
    assert sum(restart_ms > FETCH_MS + ELECTION_MS for restart_ms in restarts_ms) < len(starts) / 8

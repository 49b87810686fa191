"""The first election of new quorums without faults. Their nodes start at different times."""

from __future__ import annotations

from statistics import median

from simulation.quorum.history import CONVERGENCE_MS, ELECTION_TIMEOUT_MS, History

SEEDS = range(300)


def first_election_ms(seed: int) -> float | None:
    """Return the time from the start of a majority of the voters to the first leader; None for one voter."""
    history = History(seed)
    history.faults.stop()
    voters = next(node.log.voters for node in history.nodes.values() if len(node.log.voters))
    if len(voters) == 1:
        return None
    history.run_until(CONVERGENCE_MS, lambda: history.leader is not None)
    assert history.leader is not None
    starts_ms = sorted(history.starts_ms[voter_id] for voter_id in voters.ids)
    return history.now_ms() - starts_ms[voters.majority - 1]


def test_new_quorum_has_a_leader_within_a_fraction_of_the_election_timeout() -> None:
    durations_ms = [duration_ms for seed in SEEDS if (duration_ms := first_election_ms(seed)) is not None]
    assert median(durations_ms) < ELECTION_TIMEOUT_MS / 3
    assert max(durations_ms) < 3 * ELECTION_TIMEOUT_MS  # some disks take 200 ms for each sync

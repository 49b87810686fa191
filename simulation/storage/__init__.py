"""Simulation of storage with crashes and failing disks: `python -m simulation.storage --seed 1`.

The seed determines the configuration, the operations on the logs, when the disk fails or the process dies,
and which unsynced data survives. So a seed that fails once always fails in the same way. The guide is
docs/simulation.md.

    broker        the logs of one broker on a simulated disk, and their idempotent producers
    expected_log  the records that must exist, and the records that may exist
    invariants    conditions that a log must meet after every operation
    history       the run of one seed: operations, crashes, recoveries
    bit_flips     a flipped bit in a file while the broker is down
    planted_bugs  removed safeguards, each of which the simulation must detect
    run           the command line, which all simulations share

The simulated disk is in `kwire.testing.disk`.
"""

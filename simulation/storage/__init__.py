"""Simulation of storage with crashes and failing disks: `python -m simulation.storage --seed 1`.

One seed decides the configuration, the operations on the logs, when the disk fails or the process dies, and
which unsynced data survives. So a failing seed fails again exactly. The guide is docs/simulation.md.

    broker        the logs of one broker on a simulated disk, and their idempotent producers
    expected_log  the records that must exist, and those that may
    invariants    conditions that a log meets after every step
    history       one seed: operations, crashes, recoveries
    bit_flips     a flipped bit in a file while the broker is down
    planted_bugs  removed safeguards, each of which the simulation must detect
    run           the command line, which all simulations share

`kwire.testing.disk` is the simulated disk.
"""

"""Simulation of a metadata quorum: `python -m simulation.quorum --seed 1`.

The raft state machines of one to ten nodes run with simulated messages, disks and clocks. The seed determines
the voters, the faults of network and nodes, and the voter changes. A run is short, so thousands of seeds take
minutes. `simulation.cluster` simulates complete nodes. The guide is docs/simulation.md.

    log             a node's metadata log in memory, and how much of it is durable
    node            a node: the state machine with a simulated I/O shell
    fault_injector  faults of the network and of nodes, and voter changes
    invariants      conditions that the quorum must meet after every event
    history         the run of one seed: faults, then convergence
    planted_bugs    removed safeguards, each of which the simulation must detect
"""

"""Simulation of a cluster with complete nodes and its clients: `python -m simulation.cluster --seed 1`.

The seed determines the cluster, the latency of each frame, the failures, which unsynced data a disk keeps,
and what clients do. So a seed that fails once always fails in the same way. The guide is docs/simulation.md.
Nodes, fault injector and invariants are in `kwire.testing.simulated`, with which users can simulate clusters
for their own programs. The simulated clients send the same requests as unmodified Kafka clients.

    history                 the run of one seed: start, clients, faults, convergence
    elected                 the same with several controllers: `python -m simulation.cluster.elected`
    producers               producers with acks=all or acks=1
    transactional_producer  transactional producers, before and since KIP-890
    transactional_copier    a transactional producer that commits offsets in its transactions
    consumers               consumers of both isolation levels
    group_members           members of consumer groups, of both protocols
    client_oracle           what clients sent, compared with the committed records
    group_oracle            the expected assignments and committed offsets of a group
    offset_committer        a client that commits offsets for a group without members
    operator                an operator: reassignments, elections, configurations
    delayed_requests        requests that are delayed until the worst moment
    unclean_elections       invariants of topics that allow unclean leader elections
    fault_injector          faults that only this simulation injects
    planted_bugs            removed safeguards, each of which the simulation must detect
    elected_planted_bugs    the same for several controllers
"""

"""A cluster of whole nodes under trouble, simulated: `python -m simulation.cluster --seed 1`.

One seed decides everything: what the cluster consists of, how long each frame takes, who dies and when, what
of the unsynced a disk then keeps, what clients do. So a seed that fails does so again by its number alone.

    nodes        the nodes, and their settings
    client       what clients have in common; producers, consumers and others do what stock clients do
    ledger       what clients were told, and what is committed
    watch        what must be true of all nodes after every step
    quorum_watch the same of the quorum that keeps the metadata
    trouble      what goes wrong
    convergence  what a cluster comes to when nothing goes wrong any more
    history      one seed
    elected      the same with controllers that elect one of them: `python -m simulation.cluster.elected`
    breakage     bugs put into the code by hand, which the simulation must find
"""

"""A quorum of machines alone, simulated: `python -m simulation.quorum --seed 1`.

One seed decides everything: who votes, what the network loses, doubles and delays, whose clock is slow, who
dies with how much of its disk, and who becomes a voter or is one no more. Whole nodes, with their real files
and sockets, are simulated in `simulation.cluster`; here a history is short, and there are thousands.

    log         the log of a node in memory, and what of it is durable
    node        a node: the machine, and a shell as slow as they come
    trouble     what goes wrong
    invariants  what must be true after every step
    history     one seed: what happens, and how it has to end
    breakage    safeguards taken out by hand, which the simulation must find
"""

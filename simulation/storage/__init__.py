"""Storage under crashes and failing disks, simulated: `python -m simulation.storage --seed 1`.

One seed decides everything: the configuration, what is done to the logs, when the disk fails or the machine
dies, and what of the unsynced then survives. So a seed that fails does so again by its number alone.

    disk        what a disk may do to files: the fault model
    promises    what the outside world was told, and so may rely on
    invariants  what must be true of a log after every step
    history     one seed: steps, crashes, recoveries
    flips       bits that turn over at rest
    breakage    bugs put into the code by hand, which the simulation must find
"""

"""A cluster under one seed, for programs of users: asyncio runs on its time, and through its network.

cluster       the cluster, and what tests ask of it
virtual_loop  asyncio on virtual time
transport     a program's end of a connection
program_time  what `time` and `random` are meanwhile
acknowledged  what programs were told, and so may rely on
"""

from kwire.testing.simulated.cluster import SimulatedCluster

__all__ = ["SimulatedCluster"]

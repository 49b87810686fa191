"""A simulated cluster, chosen by a seed, for programs that use asyncio.

cluster         the cluster, and its methods for tests
virtual_loop    an asyncio event loop on virtual time
transport       the program's end of a connection
patched_time    `time` and `random` inside of a program
program_oracle  checks that acknowledged records stay in the log
"""

from kwire.testing.simulated.cluster import SimulatedCluster

__all__ = ["SimulatedCluster"]

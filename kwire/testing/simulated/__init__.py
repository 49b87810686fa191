"""A simulated cluster for programs that use asyncio. A seed determines the faults.

    cluster         the cluster, and its methods for tests
    virtual_loop    an asyncio event loop on virtual time
    transport       the program's end of a connection
    patched_time    `time` and `random` inside of a program
    program_oracle  checks that acknowledged records stay in the log

`simulation.cluster` extends the other modules for clients of its own and for more faults.
"""

from kwire.testing.simulated.cluster import SimulatedCluster

__all__ = ["SimulatedCluster"]

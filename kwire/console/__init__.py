"""The web console of a cluster, a process beside its broker (docs/decisions/0022)."""

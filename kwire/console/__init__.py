"""The console: pages on a cluster, for a browser. A process beside its broker (docs/decisions/0022)."""

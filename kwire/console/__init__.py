"""The web console of a cluster. It runs in its own process beside a broker (docs/decisions/0022)."""

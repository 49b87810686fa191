"""`__cluster_metadata-0`: the voter that leads it alone, the observers that follow it, and its snapshots."""

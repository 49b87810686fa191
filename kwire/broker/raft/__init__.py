"""`__cluster_metadata-0`: the quorum that keeps it, the observers that follow it, and its snapshots."""

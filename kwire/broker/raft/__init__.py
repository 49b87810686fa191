"""KRaft: voters and observers of `__cluster_metadata-0`, its log, and its snapshots."""

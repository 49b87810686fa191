"""KRaft: the voters and observers of the metadata log `__cluster_metadata-0`, its files and its snapshots."""

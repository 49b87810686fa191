"""The roles of a partition: leader, follower, in-sync replicas, high watermark."""

"""The metadata log: a quorum of one voter over `__cluster_metadata-0`, and the service on top of it."""

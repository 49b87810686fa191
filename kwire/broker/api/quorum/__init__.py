"""The metadata log, as the other nodes of the cluster fetch it, and how its quorum is doing."""

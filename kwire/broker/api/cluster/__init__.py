"""The cluster: its brokers, its quorum, its features, who leads what and where it lies."""

"""Handlers for the cluster: brokers, features, quotas, leaders, reassignments and log directories."""

"""Schemas of what is kept in logs: cluster metadata, offsets and groups, transactions, the quorum."""

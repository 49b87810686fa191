"""Schemas of the records in Kafka's internal logs: metadata, quorum, groups and offsets, transactions."""

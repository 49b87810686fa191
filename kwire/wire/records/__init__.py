"""Schemas of the records in Kafka's internal logs and topics, and of the quorum-state file."""

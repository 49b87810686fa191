"""Kafka's wire formats: encoding and decoding without I/O and without a clock."""

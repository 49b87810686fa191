"""Kafka's request handlers: one function per API, one module per subject."""

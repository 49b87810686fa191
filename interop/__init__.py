"""Scenarios that run against Apache Kafka and kwire, and a comparison of the results."""

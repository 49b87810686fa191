"""Clients of other programming languages, compared on Apache Kafka and kwire."""

"""Measurements of kwire and Apache Kafka with client libraries: `python -m bench`."""

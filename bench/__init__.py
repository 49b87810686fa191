"""Measurements of kwire beside Apache Kafka, made through client libraries: `python -m bench`."""

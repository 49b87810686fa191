"""Partition logs on disk, in Apache Kafka's own files. Knows nothing of the network."""

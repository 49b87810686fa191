"""Partition logs on disk, in Apache Kafka's file formats. This package does not depend on the network."""

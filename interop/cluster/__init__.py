"""Clusters of several nodes: of Apache Kafka, of kwire, and of both."""

"""A data directory on which Apache Kafka and kwire take turns."""

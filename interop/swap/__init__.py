"""A data directory that Apache Kafka and kwire take turns on."""

"""A data directory on which Apache Kafka and kwire run alternately."""

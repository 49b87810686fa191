"""Apache Kafka and kwire side by side: the same scenarios against both, and what differs."""

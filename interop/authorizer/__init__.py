"""The authorization matrix: what Apache Kafka and kwire return to clients with different rights."""

"""kwire: an Apache Kafka broker in Python. `kwire serve` runs one; `kwire.testing` puts one into a test."""

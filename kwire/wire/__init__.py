"""The wire: Kafka's bytes to objects and back. No IO, no clock."""

"""Reading of Kafka's segment files without a broker. This package never writes, locks or repairs files."""

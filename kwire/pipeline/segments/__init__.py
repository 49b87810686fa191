"""Reading the segment files of Kafka's log without a broker. Nothing here writes, locks or repairs files."""

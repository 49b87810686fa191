"""Jobs on Spark, and Kafka's log segments as a source for it."""

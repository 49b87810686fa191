"""PySpark jobs for Kafka topics, and a Spark data source for log segments."""

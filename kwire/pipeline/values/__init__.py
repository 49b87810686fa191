"""What is in a record's value: text, JSON or Avro, as columns of Arrow and so of Spark."""

"""Decoding of record values (text, JSON and Avro) to columns of Arrow and Spark."""

"""kwire: an Apache Kafka broker in Python. `kwire serve` runs one; `kwire.testing` puts one into a test."""

__version__ = "0.1.0"
"""The version of the package. To read it from the metadata of the installed package would take 50 ms."""

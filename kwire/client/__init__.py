"""A blocking client of any Kafka, as small as the commands of `kwire` and `kwire.testing` need it.

It asks one thing at a time and waits for the answer, and speaks plain text. Programs take a client of the
field instead.
"""

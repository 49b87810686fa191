"""A small blocking Kafka client for the commands of `kwire` and for `kwire.testing`.

It sends one request at a time and waits for the response. Applications use one of Kafka's full clients.
"""

"""The broker: storage, metadata, replication, request handlers, and the shell that runs them."""

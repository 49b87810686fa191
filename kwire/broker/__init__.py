"""The broker: storage, metadata, replication, request handlers, and the network layer that runs them."""

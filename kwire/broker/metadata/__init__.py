"""Cluster metadata: records of the metadata log are replayed into immutable images for subscribers."""

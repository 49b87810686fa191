"""Cluster metadata: records of the metadata log become immutable images, which subscribers receive."""

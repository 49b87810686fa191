"""Cluster metadata: an immutable image, the records that change it, and the commands that give records."""

"""Handlers for topics: create, delete, add partitions, describe."""

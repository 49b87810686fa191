"""Handlers for groups and their committed offsets."""

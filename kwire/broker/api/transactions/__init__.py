"""Transactions and producers."""

"""Handlers for the configuration of topics, brokers, groups and loggers."""

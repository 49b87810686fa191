"""Configurations of topics, brokers, groups and loggers."""

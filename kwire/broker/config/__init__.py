"""Kafka's configuration keys: definitions, sources, validation, and the effective configuration of a node."""

from __future__ import annotations

from kwire.broker.config.broker import BrokerConfig
from kwire.broker.config.definition import ConfigError
from kwire.broker.config.listeners import ListenerEndpoint
from kwire.broker.config.load import load
from kwire.broker.config.topic import log_config

__all__ = ["BrokerConfig", "ConfigError", "ListenerEndpoint", "load", "log_config"]

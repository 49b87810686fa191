"""Kafka's configuration keys: their types, ranges and defaults, where they are set, and what they come to."""

from __future__ import annotations

from broker.config.broker import BrokerConfig
from broker.config.definition import ConfigError
from broker.config.listeners import ListenerEndpoint
from broker.config.load import load
from broker.config.topic import log_config

__all__ = ["BrokerConfig", "ConfigError", "ListenerEndpoint", "load", "log_config"]

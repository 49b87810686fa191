"""The controller's checks of config keys, which use the definitions in `broker.config`."""

from __future__ import annotations

from collections.abc import Mapping

from kwire.broker.config import BrokerConfig, ConfigError
from kwire.broker.config.broker_keys import BROKER_KEYS
from kwire.broker.config.definition import REQUIRED, ConfigType, Key
from kwire.broker.config.dynamic import remove_invalid
from kwire.broker.config.group import GROUP_KEYS_BY_NAME, check_group
from kwire.broker.config.topic import TOPIC_KEYS_BY_NAME, check_topic
from kwire.broker.controller.commands import Fault
from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC
from kwire.wire.errors import ErrorCode


class BrokerConfigRules:
    """`ConfigRules`, given one broker's static and dynamic configuration."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def topic_fault(self, values: Mapping[str, str]) -> str | None:
        try:
            check_topic(self._config, values)
        except ConfigError as error:
            return str(error)
        return None

    def group_fault(self, values: Mapping[str, str]) -> str | None:
        try:
            check_group(self._config, values)
        except ConfigError as error:
            return str(error)
        return None

    def broker_fault(self, values: Mapping[str, str], *, per_broker: bool) -> Fault | None:
        try:
            self._config.check_update(values, per_broker=per_broker)
        except ConfigError as error:
            return Fault(ErrorCode.INVALID_REQUEST, str(error))
        return None

    def usable(self, stored: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
        return remove_invalid(stored, self._config.logger, per_broker=per_broker)

    def is_list(self, resource_type: int, key: str) -> bool:
        known = _known(resource_type, key)
        return known is not None and known.type is ConfigType.LIST

    def is_known_broker_key(self, key: str) -> bool:
        return key in BROKER_KEYS

    def default(self, resource_type: int, key: str) -> str | None:
        known = _known(resource_type, key)
        return None if known is None or known.default == REQUIRED else known.default


def _known(resource_type: int, key: str) -> Key | None:
    if resource_type == RESOURCE_TOPIC:
        return TOPIC_KEYS_BY_NAME.get(key)
    if resource_type == RESOURCE_GROUP:
        return GROUP_KEYS_BY_NAME.get(key)
    return BROKER_KEYS.get(key) if resource_type == RESOURCE_BROKER else None

"""Static settings of a broker, and dynamic settings while it runs. KIP-226."""

from __future__ import annotations

import pytest

from kwire.broker.config import ConfigError, load


def test_an_endpoint_may_have_an_ipv6_address() -> None:
    config = load(None, {}, {"listeners": "PLAINTEXT://[::1]:9092"})
    assert config.listener_endpoints()[0].host == "::1"


def test_a_listener_can_have_its_own_connection_limit() -> None:
    config = load(None, {}, {"listener.name.plaintext.max.connections": "5"})
    assert config.connection_limits_per_listener() == {"PLAINTEXT": 5}
    assert load(None, {}, {}).connection_limits_per_listener() == {}


def test_dynamic_settings_override_static_settings() -> None:
    config = load(None, {}, {"message.max.bytes": "1000"})
    config.update({"message.max.bytes": "2000"}, {})
    assert config.value("message.max.bytes") == 2000
    config.update({"message.max.bytes": "2000"}, {"message.max.bytes": "3000"})
    assert config.value("message.max.bytes") == 3000
    config.update({}, {})
    assert config.value("message.max.bytes") == 1000


def test_a_cordoned_directory_must_be_written_exactly_as_in_log_dirs() -> None:
    config = load(None, {}, {"log.dirs": "/a/,/b"})
    config.check_update({"cordoned.log.dirs": "/a/"}, per_broker=True)
    config.update({}, {"cordoned.log.dirs": "/a/"})
    assert (config.log_dirs, config.cordoned_log_dirs) == (["/a", "/b"], ["/a"])
    with pytest.raises(ConfigError, match=r"Missing entries : /a$"):
        config.check_update({"cordoned.log.dirs": "/a"}, per_broker=True)


def test_a_read_only_key_does_not_change_dynamically() -> None:
    config = load(None, {}, {})
    config.update({"num.partitions": "9"}, {})
    assert config.num_partitions == 1

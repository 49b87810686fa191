"""What a broker's settings come to, those of the start and those that come while it runs. KIP-226."""

from __future__ import annotations

import pytest

from kwire.broker.config import ConfigError, load


def test_an_endpoint_may_have_an_ipv6_address() -> None:
    config = load(None, {}, {"listeners": "PLAINTEXT://[::1]:9092"})
    assert config.listener_endpoints()[0].host == "::1"


def test_a_listener_has_a_limit_of_its_own() -> None:
    config = load(None, {}, {"listener.name.plaintext.max.connections": "5"})
    assert config.connection_limits_per_listener() == {"PLAINTEXT": 5}
    assert load(None, {}, {}).connection_limits_per_listener() == {}


def test_what_is_set_on_the_running_broker_wins() -> None:
    config = load(None, {}, {"message.max.bytes": "1000"})
    config.update({"message.max.bytes": "2000"}, {})
    assert config.value("message.max.bytes") == 2000
    config.update({"message.max.bytes": "2000"}, {"message.max.bytes": "3000"})
    assert config.value("message.max.bytes") == 3000
    config.update({}, {})
    assert config.value("message.max.bytes") == 1000


def test_a_directory_is_cordoned_as_log_dirs_writes_it() -> None:
    config = load(None, {}, {"log.dirs": "/a/,/b"})
    config.check_update({"cordoned.log.dirs": "/a/"}, per_broker=True)
    config.update({}, {"cordoned.log.dirs": "/a/"})
    assert (config.log_dirs, config.cordoned_log_dirs) == (["/a", "/b"], ["/a"])
    with pytest.raises(ConfigError, match=r"Missing entries : /a$"):
        config.check_update({"cordoned.log.dirs": "/a"}, per_broker=True)


def test_a_read_only_key_does_not_change_while_the_broker_runs() -> None:
    config = load(None, {}, {})
    config.update({"num.partitions": "9"}, {})
    assert config.num_partitions == 1

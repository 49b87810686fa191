"""Properties files as Java reads them, and environment variables as Kafka's container image reads them."""

from __future__ import annotations

import pytest

from kwire.broker.config.definition import ConfigError
from kwire.broker.config.properties import environment_settings, parse_properties


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1 \n\n# note\n! note\n  b:2\nc 3\nd", {"a": "1", "b": "2", "c": "3", "d": ""}),
        ("a=1,\\\n   2,\\\n   3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=one\\\\\nb=2", {"a": "one\\", "b": "2"}),
        ("a\\=b=c\\:d", {"a=b": "c:d"}),
        ("a=\\u00e9\\t.", {"a": "é\t."}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a==1", {"a": "=1"}),
        ("# note \\\na=1", {"a": "1"}),
        ("a=1\\", {"a": "1"}),
        ("", {}),
    ],
)
def test_a_properties_file_is_parsed_as_in_java(text: str, settings: dict[str, str]) -> None:
    assert parse_properties(text) == settings


def test_an_incomplete_escape_is_refused() -> None:
    with pytest.raises(ConfigError, match="malformed"):
        parse_properties("a=\\u12")


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("KAFKA_NUM_PARTITIONS", "num.partitions"),
        ("KAFKA_LISTENER_NAME_CLIENT__A_MAX_CONNECTIONS", "listener.name.client_a.max.connections"),
        ("KAFKA_LISTENER_NAME_A___B_SSL_KEY_PASSWORD", "listener.name.a-b.ssl.key.password"),
    ],
)
def test_environment_variables_become_keys(variable: str, key: str) -> None:
    assert environment_settings({variable: "x", "HOME": "/"}) == {key: (variable, "x")}


def test_variables_for_the_jvm_are_not_settings() -> None:
    assert environment_settings({"KAFKA_HEAP_OPTS": "-Xmx1g", "KAFKA_OPTS": "-Da=b"}) == {}

"""Client settings from options and from a properties file."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from kwire.broker.security.settings import Credentials
from kwire.cli.shared.client_settings import ClientSettings, servers_of, settings_from_options
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.client.security import PLAINTEXT, jaas_config


def _settings(**options: Any) -> ClientSettings:
    return settings_from_options(
        Namespace(**{"bootstrap_server": None, "command_config": None, "timeout": None, **options})
    )


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a", (("a", 9092),)),
        ("a:1, b:2", (("a", 1), ("b", 2))),
        ("[::1]:9093", (("::1", 9093),)),
        ("PLAINTEXT://a:1", (("a", 1),)),
    ],
)
def test_servers_of_parses_addresses(text: str, servers: object) -> None:
    assert servers_of(text) == servers


@pytest.mark.parametrize("text", ["", ",", "a:b", "a:0", "a:99999", "::1"])
def test_invalid_servers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        servers_of(text)


def test_properties_file_has_the_keys_of_kafkas_tools(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=there:1\nclient.id=me\ndefault.api.timeout.ms=1500\nacks=1\n")
    settings = _settings(command_config=str(path))
    assert settings[:3] == ((("there", 1),), "me", 1.5)
    assert settings.properties["acks"] == "1"
    assert _settings(command_config=str(path), bootstrap_server="here:2", timeout=3)[:3] == (
        (("here", 2),),
        "me",
        3,
    )
    assert _settings().servers == (("127.0.0.1", 9092),)
    assert _settings().security == PLAINTEXT
    with path.open("a") as file:
        file.write("security.protocol=sasl_plaintext\nsasl.mechanism=PLAIN\n")
        file.write(f"sasl.jaas.config={jaas_config('PLAIN', 'me', 'mine')}")
    assert _settings(command_config=str(path)).security.credentials == Credentials("PLAIN", "me", "mine")
    assert _settings(timeout=2).request_timeout_ms == 1800


def test_invalid_properties_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    with pytest.raises(
        CommandError, match="No such file or directory: give the path of a client's properties file"
    ):
        _settings(command_config=str(path))
    path.write_text("security.protocol=SASL_PLAINTEXT")
    with pytest.raises(
        CommandError, match=rf"^{path}: sasl.mechanism=GSSAPI, which is Kafka's default, is not supported"
    ):
        _settings(command_config=str(path))
    path.write_text("default.api.timeout.ms=soon")
    with pytest.raises(CommandError, match="expected milliseconds"):
        _settings(command_config=str(path))
    for seconds in (0, float("nan"), float("inf")):
        with pytest.raises(UsageError):
            _settings(timeout=seconds)


def test_empty_bootstrap_servers_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--bootstrap-server is empty: expected HOST:PORT"):
        _settings(bootstrap_server="")
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=\n")
    with pytest.raises(UsageError, match=f"^bootstrap.servers of {path} is empty"):
        _settings(command_config=str(path))

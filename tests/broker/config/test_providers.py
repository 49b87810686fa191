"""Placeholders in settings, resolved by Kafka's configuration providers."""

from __future__ import annotations

import logging
from posixpath import normpath

import pytest

from kwire.broker.config.definition import ConfigError
from kwire.broker.config.providers import resolve_placeholders
from kwire.host.loggers import NodeLogger

PACKAGE = "org.apache.kafka.common.config.provider"
CONFIGURED = {
    "config.providers": "file,dir,env,nameless",
    "config.providers.file.class": f"{PACKAGE}.FileConfigProvider",
    "config.providers.dir.class": f" {PACKAGE}.DirectoryConfigProvider ",
    "config.providers.dir.param.allowed.paths": "/secrets,/more/",
    "config.providers.env.class": f"{PACKAGE}.EnvVarConfigProvider",
    "config.providers.env.param.allowlist.pattern": "SECRET_.*",
}
FILES = {"/secrets/all": "user = alice\\u002c\nkey:secret", "/secrets/one": "alone\n", "/etc/passwd": "x"}
OUTSIDE = (
    ": it is not below the paths in config.providers.dir.param.allowed.paths, so its placeholder is not "
    "replaced"
)
ENVIRON = {"SECRET_A": "a", "OTHER": "b", "SECRET_BYTES": "\udcff"}


def read(path: str) -> str:
    if "\0" in path:
        raise ValueError("embedded null byte")  # as open() does
    try:
        return FILES[normpath(path)]
    except KeyError:
        raise FileNotFoundError(path) from None


def value(text: str, changed: dict[str, str] | None = None) -> str:
    settings = CONFIGURED | (changed or {}) | {"x": text}
    return resolve_placeholders(settings, read, ENVIRON, NodeLogger("kwire.config", ""))["x"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain", "plain"),
        ("${file:/secrets/all:user}", "alice,"),
        ("<${file:/secrets/all:user}${file:/secrets/all:key}>", "<alice,secret>"),
        ("${file:/secrets/all:none}", "${file:/secrets/all:none}"),
        ("${file:key}", "${file:key}"),
        ("${dir:/secrets:one}", "alone\n"),
        ("${dir:/secrets:none}", "${dir:/secrets:none}"),
        ("${dir:/secrets:../etc/passwd}", "${dir:/secrets:../etc/passwd}"),
        ("${dir:/secrets:/../etc/passwd}", "${dir:/secrets:/../etc/passwd}"),
        ("${env:SECRET_A}", "a"),
        ("${env::SECRET_A}", "a"),
        ("${env:OTHER}", "${env:OTHER}"),
        ("${env:SECRET_B}", "${env:SECRET_B}"),
        ("${other:SECRET_A}", "${other:SECRET_A}"),
        ("${nameless:SECRET_A}", "${nameless:SECRET_A}"),
        ("${SECRET_A}", "${SECRET_A}"),
    ],
)
def test_placeholders_are_resolved(text: str, found: str) -> None:
    assert value(text) == found


def test_a_path_outside_the_allowed_paths_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert value("${dir:/etc:passwd}") == "${dir:/etc:passwd}"
        assert value("${dir:/secrets/../etc:passwd}") == "${dir:/secrets/../etc:passwd}"
        assert value("${dir:/secretsandmore:x}") == "${dir:/secretsandmore:x}"
    assert [record.getMessage() for record in caplog.records] == [
        f"The path /etc is not allowed to be accessed{OUTSIDE}",
        f"The path /etc is not allowed to be accessed{OUTSIDE}",
        f"The path /secretsandmore is not allowed to be accessed{OUTSIDE}",
    ]


@pytest.mark.parametrize(
    ("text", "changed", "error"),
    [
        ("${env:SECRET_BYTES}", {}, "environment variable SECRET_BYTES is not valid UTF-8"),
        ("${dir:/secrets:\0}", {}, "Could not read file /secrets/\0 for property \0"),
        ("${file:/none:x}", {}, "Could not read properties from file /none"),
        (
            "${env:/path:SECRET_A}",
            {},
            "Path is not supported for EnvVarConfigProvider, invalid value '/path'",
        ),
        (
            "",
            {"config.providers.file.class": "a.B"},
            "Invalid value a.B for configuration config.providers.file.class: Could not load config provider "
            "class or one of its dependencies",
        ),
        ("", {"config.providers.dir.param.allowed.paths": "x"}, "Path x is not absolute"),
        (
            "",
            {"config.providers.env.param.allowlist.pattern": "("},
            "allowlist.pattern is '(', an invalid pattern",
        ),
    ],
)
def test_invalid_placeholders_and_provider_settings_are_refused(
    text: str, changed: dict[str, str], error: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        value(text, changed)
    assert str(refused.value).startswith(error)

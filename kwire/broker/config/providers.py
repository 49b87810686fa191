"""Config providers, which resolve placeholders such as `${file:/run/secrets/kafka:password}`. KIP-297.

`config.providers` names the providers, and `config.providers.NAME.class` sets the class of each. Only Kafka's
own classes are supported. A placeholder that no provider resolves is left unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from posixpath import normpath
from typing import Final

from kwire.broker.config.definition import ConfigError, invalid
from kwire.host.loggers import NodeLogger
from kwire.wire.java_properties import load

PROVIDERS: Final = "config.providers"

ReadFile = Callable[[str], str]
"""Returns the text of a file. Raises OSError if the file cannot be read."""
Provider = Callable[[str, str], str | None]
"""Returns the value of a placeholder (path, key), or None. Raises ConfigError if the path is invalid."""

_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
_PACKAGE: Final = "org.apache.kafka.common.config.provider."


def resolve_placeholders(
    settings: Mapping[str, str], read: ReadFile, environ: Mapping[str, str], logger: NodeLogger
) -> dict[str, str]:
    """Return the settings with their placeholders resolved.

    Raises ConfigError if a provider has an unsupported class or invalid parameters, or cannot read a file.
    """
    providers: dict[str, Provider] = {}
    for name in settings.get(PROVIDERS, "").split(","):
        key = f"{PROVIDERS}.{name}.class"
        if key not in settings:
            continue
        prefix = f"{PROVIDERS}.{name}.param."
        parameters = {
            name.removeprefix(prefix): text for name, text in settings.items() if name.startswith(prefix)
        }
        class_name = settings[key].strip().removeprefix(_PACKAGE)
        if class_name == "EnvVarConfigProvider":
            providers[name] = _environment_provider(environ, parameters.get("allowlist.pattern", ".*"))
        elif class_name in ("FileConfigProvider", "DirectoryConfigProvider"):
            make_provider = _file_provider if class_name == "FileConfigProvider" else _directory_provider
            allowed = parameters.get("allowed.paths", "")
            providers[name] = _restrict_paths(
                make_provider(read), allowed.split(",") if allowed else [], f"{prefix}allowed.paths", logger
            )
        else:
            fault = "Could not load config provider class or one of its dependencies"
            raise invalid(key, settings[key], fault)

    def value(match: re.Match[str]) -> str:
        provider = providers.get(match[1])
        found = provider(match[2] or "", match[3]) if provider is not None else None
        return match[0] if found is None else found

    return {name: _PLACEHOLDER.sub(value, text) for name, text in settings.items()}


def _file_provider(read: ReadFile) -> Provider:
    """Return a provider for which the path is a properties file, and the key is a key in that file."""

    def look_up(path: str, key: str) -> str | None:
        try:
            return load(read(path)).get(key)
        except (OSError, ValueError):
            raise ConfigError(f"Could not read properties from file {path}") from None

    return look_up


def _directory_provider(read: ReadFile) -> Provider:
    """Return a provider for which the path is a directory, and the key is the name of a file in it."""

    def look_up(path: str, key: str) -> str | None:
        if "/" in key:
            return None
        try:
            return read(f"{path}/{key}")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except (OSError, ValueError):
            raise ConfigError(f"Could not read file {path}/{key} for property {key}") from None

    return look_up


def _restrict_paths(provider: Provider, allowed: list[str], name: str, logger: NodeLogger) -> Provider:
    """Return a provider that reads only paths below `allowed`, the value of the configuration key `name`."""
    parents = [normpath(path) for path in allowed]
    for path in parents:
        if not path.startswith("/"):
            raise ConfigError(f"Path {path} is not absolute")

    def look_up(path: str, key: str) -> str | None:
        if not path:
            return None
        if parents:
            path = normpath(path)
            if not any(path == parent or path.startswith(parent.rstrip("/") + "/") for parent in parents):
                logger.warning(
                    "The path %s is not allowed to be accessed: it is not below the paths in %s, so its "
                    "placeholder is not replaced",
                    *(path, name),
                )
                return None
        return provider(path, key)

    return look_up


def _environment_provider(environ: Mapping[str, str], pattern: str) -> Provider:
    try:
        allowed = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"allowlist.pattern is {pattern!r}, an invalid pattern: {error}") from None

    def look_up(path: str, key: str) -> str | None:
        if path:
            raise ConfigError(f"Path is not supported for EnvVarConfigProvider, invalid value '{path}'")
        found = environ.get(key) if allowed.fullmatch(key) else None
        try:
            (found or "").encode()
        except UnicodeEncodeError:  # Python represents invalid bytes as surrogates
            raise ConfigError(f"environment variable {key} is not valid UTF-8") from None
        return found

    return look_up

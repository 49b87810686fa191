"""Checks of the arguments that tests pass, so that a wrong argument fails with a sentence about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def check_text(name: str, value: object) -> None:
    """Raise TypeError unless the argument `name` is a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {value!r:.100}")


def check_number(name: str, value: object) -> None:
    """Raise TypeError unless the argument `name` is an int, or another integer such as numpy's."""
    if not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} is a whole number, not {value!r:.100}")


def check_seconds(name: str, value: object) -> None:
    """Raise TypeError unless the argument `name` is a number of seconds."""
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is a number of seconds, not {value!r:.100}")


def check_limit(name: str, value: object) -> None:
    """Raise TypeError unless the argument `name` is an int, and ValueError if it is less than 1."""
    if not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, not {value!r:.100}")
    if value < 1:
        raise ValueError(f"{name}={value}: pass 1 or more")


def check_delay(delay_ms: object) -> None:
    """Raise TypeError unless the delay is an int, and ValueError if it is negative."""
    if not isinstance(delay_ms, int):
        raise TypeError(f"delay_ms is a whole number of milliseconds, not {delay_ms!r:.100}")
    if delay_ms < 0:
        raise ValueError(f"delay_ms={delay_ms}: pass 0 or more, because time cannot go back")


def check_configs(configs: object) -> None:
    """Raise TypeError unless these are configs by name. None means no configs."""
    if configs is None:
        return
    if not isinstance(configs, Mapping):
        raise TypeError(f"configs map names to values, such as {{'retention.ms': 9}}, not {configs!r:.100}")
    for key in configs:
        if not isinstance(key, str):
            raise TypeError(f"names of configs are str, such as 'retention.ms', not {key!r:.100}")


def check_size(size: object) -> None:
    """Raise TypeError unless the size of a cluster is an int, and ValueError if it is less than 1."""
    if not isinstance(size, int):
        raise TypeError(f"size is the number of brokers, not {size!r:.100}")
    if size < 1:
        raise ValueError(f"size={size}: a cluster needs at least one broker")


def check_names(name: str, values: object) -> None:
    """Raise TypeError unless the argument `name` is a sequence of str."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"{name} are a list of str, not {values!r:.100}")
    for value in values:
        check_text(f"each of {name}", value)

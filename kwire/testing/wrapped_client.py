"""The base of the wrappers of Kafka clients that `History.producer` and `History.consumer` return.

A wrapper forwards all attributes and calls to its client, and records some calls before or after them. No
client library is imported: the wrappers recognize the classes by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kwire.testing.observations import UNKNOWN_VALUE, Observations

OWN_ATTRIBUTES: Final = "_kwire_"
"""The start of the names of a wrapper's own attributes."""


class WrappedClient:
    """A client whose calls are recorded."""

    def __init__(self, seen: Observations, inner: Any, name: str) -> None:
        self._kwire_seen = seen
        self._kwire_inner = inner
        self._kwire_name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kwire_inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith(OWN_ATTRIBUTES):
            object.__setattr__(self, name, value)
        else:
            setattr(self._kwire_inner, name, value)

    @property
    def __class__(self) -> Any:  # so that isinstance is true, as for mocks with a spec
        return type(self._kwire_inner)

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise TypeError("the class of a wrapped client cannot be changed")

    def __repr__(self) -> str:
        return f"<wrapper of {self._kwire_inner!r}>"

    def __enter__(self) -> Any:
        self._kwire_inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._kwire_inner.__exit__(*error)

    async def __aenter__(self) -> Any:
        await self._kwire_inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._kwire_inner.__aexit__(*error)


def class_of(client: object, classes: Mapping[tuple[str, str], type[WrappedClient]]) -> type[WrappedClient]:
    """Return the wrapper class of a client. `classes` are by package and class name of the client.

    Raises TypeError for other objects.
    """
    if OWN_ATTRIBUTES + "inner" in vars(client) if hasattr(client, "__dict__") else False:
        raise TypeError("this client is wrapped already")
    for one in type(client).__mro__:
        found = classes.get((one.__module__.partition(".")[0], one.__name__))
        if found is not None:
            return found
    names = ", ".join(f"{package}.{name}".replace("cimpl", "confluent_kafka") for package, name in classes)
    raise TypeError(f"only clients of these classes can be wrapped: {names}; not {client!r:.100}")


def unique_name(seen: Observations, name: str | None, client: Any, kind: str) -> str:
    """Return the name of a client in anomalies: the given name, or else its client id if that is unique."""
    if name is not None:
        return name
    config = getattr(client, "config", None)
    client_id = config.get("client_id") if isinstance(config, Mapping) else None
    for_kind = seen.next_number(("wrapped", kind))
    client_id = client_id or getattr(getattr(client, "client", None), "_client_id", None)
    client_id = client_id or getattr(getattr(client, "_client", None), "_client_id", None)
    if not client_id:
        return f"{kind} {for_kind}"
    number = seen.next_number(("wrapped", kind, client_id))
    return str(client_id) if number == 1 else f"{client_id} ({kind} {number})"


def known_bytes(value: object) -> bytes:
    """Return a key or value as bytes, or `UNKNOWN_VALUE` if a deserializer has changed it."""
    if value is None:
        return b""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else UNKNOWN_VALUE

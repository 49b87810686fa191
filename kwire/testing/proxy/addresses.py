"""The addresses of brokers in responses, and their replacement by addresses of the proxy.

In every response, a structure with a host, a port and a broker id is the address of a broker. So the proxy
supports later APIs and versions as soon as `kwire.wire` declares them. Responses to controllers and about
controllers are not changed, because clients do not use the addresses in them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from kwire.wire.api_keys import ApiKey
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message, fields_of

LOOPBACK: Final = "127.0.0.1"
ID_FIELDS: Final = "node_id", "broker_id"
QUORUM_APIS: Final = {
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.UPDATE_RAFT_VOTER,
}
"""APIs whose responses contain only addresses of controllers."""
UNDECLARED_APIS: Final = {78: "ShareFetch", 79: "ShareAcknowledge"}
"""APIs that `kwire.wire` does not declare, and whose responses contain addresses of brokers."""

LocalPort = Callable[[int, str, int], int]
"""Return the proxy's port for the broker with this id, host and port."""


class AddressFields(NamedTuple):
    """The fields of a message class in one version that contain addresses of brokers, at any depth."""

    id_field: str
    """The field with the id of the broker, or empty if the class is not an address itself."""
    inner: tuple[tuple[str, AddressFields], ...]
    """The names of the fields whose structures contain addresses."""

    def __bool__(self) -> bool:
        return bool(self.id_field or self.inner)


@cache
def address_fields(message_class: type[Message], version: int) -> AddressFields:
    """Return the fields of a response, or of a structure in it, that contain addresses of brokers."""
    if message_class.API_KEY in QUORUM_APIS:
        return AddressFields("", ())
    fields = [one for one in fields_of(message_class) if version in one.versions]
    names = {one.name for one in fields}
    id_field = ""
    if {"host", "port"} <= names:
        id_field = next((name for name in ID_FIELDS if name in names), "")
    inner = [(one.name, address_fields(one.message, version)) for one in fields if one.message is not None]
    return AddressFields(id_field, tuple((name, found) for name, found in inner if found))


def replace_addresses(message: Any, fields: AddressFields, local_port: LocalPort) -> bool:
    """Replace the addresses in a message. Return whether there was any."""
    is_changed = False
    if fields.id_field:
        broker_id = getattr(message, fields.id_field)
        # An error response has the id -1, an empty host and the port -1.
        if broker_id >= 0 and message.host and message.port > 0:
            message.port = local_port(broker_id, message.host, message.port)
            message.host = LOOPBACK
            is_changed = True
    for name, inner in fields.inner:
        value = getattr(message, name)
        for one in value if isinstance(value, list) else [value]:
            if one is not None and replace_addresses(one, inner, local_port):
                is_changed = True
    return is_changed

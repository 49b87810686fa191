"""The error codes in a response, for Kafka's metric ErrorsPerSec.

A response may have error codes at its top level and in its items. The fields with error codes are looked up
once per response class. Produce and Fetch responses may have many items, few of them with an error, so the
handlers of Produce and Fetch count the errors of partitions themselves. For Metadata, only the errors of the
response and of topics are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from kwire.wire.api_keys import ApiKey
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message, fields_of

_ERROR_FIELDS: Final = ("error_code", "partition_error_code")
_LEVELS: Final = {ApiKey.PRODUCE: 0, ApiKey.FETCH: 0, ApiKey.METADATA: 1}
_ALL_LEVELS: Final = 8


class _Places(NamedTuple):
    """The fields of a message with error codes, and the lists of messages that have such fields."""

    codes: tuple[str, ...]
    lists: tuple[tuple[str, _Places], ...]


@cache
def _places(message_class: type[Message], levels: int) -> _Places | None:
    codes, lists = [], []
    for field in fields_of(message_class):
        if field.name in _ERROR_FIELDS:
            codes.append(field.name)
        elif field.message is not None and field.is_list and levels > 0:
            inner = _places(field.message, levels - 1)
            if inner is not None:
                lists.append((field.name, inner))
    return _Places(tuple(codes), tuple(lists)) if codes or lists else None


def error_codes(api_key: int, response: Message) -> Iterator[int]:
    """Yield each error code of a response, without zeros."""
    places = _places(type(response), _LEVELS.get(ApiKey(api_key), _ALL_LEVELS))
    if places is not None:
        yield from _codes(response, places)


def _codes(message: Any, places: _Places) -> Iterator[int]:
    for name in places.codes:
        code = getattr(message, name)
        if code:
            yield code
    for name, inner in places.lists:
        for item in getattr(message, name) or ():
            yield from _codes(item, inner)

"""The error codes in a response, for Kafka's metric ErrorsPerSec.

A response may have error codes at its top level and in its items. The fields with error codes are looked up
once per response class. Produce and Fetch responses may have many items, few of them with an error, so the
handlers of Produce and Fetch count the errors of partitions themselves. For Metadata, only the errors of the
response and of topics are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, Final

from kwire.wire.api_keys import ApiKey
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message, fields_of

_ERROR_FIELDS: Final = ("error_code", "partition_error_code")
_LEVELS: Final[dict[int, int]] = {ApiKey.PRODUCE: 0, ApiKey.FETCH: 0, ApiKey.METADATA: 1}
_ALL_LEVELS: Final = 8
_NO_CODES: Final[tuple[int, ...]] = ()


class _Places(NamedTuple):
    """The fields of a message with error codes, and the lists of messages that have such fields."""

    codes: tuple[Callable[[Any], int], ...]
    """The functions that return an error code of the message."""
    lists: tuple[tuple[str, _Places], ...]


@cache
def _places(message_class: type[Message], levels: int) -> _Places | None:
    codes, lists = [], []
    for field in fields_of(message_class):
        if field.name in _ERROR_FIELDS:
            codes.append(attrgetter(field.name))
        elif field.message is not None and field.is_list and levels > 0:
            inner = _places(field.message, levels - 1)
            if inner is not None:
                lists.append((field.name, inner))
    return _Places(tuple(codes), tuple(lists)) if codes or lists else None


def error_codes(api_key: int, response: Message) -> Iterator[int]:
    """Return the error codes of a response, of which most are 0."""
    places = _places(type(response), _LEVELS.get(api_key, _ALL_LEVELS))
    return iter(_NO_CODES) if places is None else _codes(response, places)


def error_codes_of_partitions(api_key: int, response: Message) -> Iterator[int]:
    """Return the codes that `error_codes` leaves to the handlers of Produce and Fetch."""
    if api_key not in (ApiKey.PRODUCE, ApiKey.FETCH):
        return iter(_NO_CODES)
    places = _places(type(response), _ALL_LEVELS)
    assert places is not None
    return _codes(response, places._replace(codes=()))


def _codes(message: Any, places: _Places) -> Iterator[int]:
    if not places.codes:
        yield 0  # so that a caller that counts the codes also counts messages without any
    for code_of in places.codes:
        yield code_of(message)
    for name, inner in places.lists:
        items = getattr(message, name) or ()
        if inner.lists:
            for item in items:
                yield from _codes(item, inner)
        else:
            for code_of in inner.codes:
                yield from map(code_of, items)

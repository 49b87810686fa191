"""The names of the topics whose ids requests contain, for faults and recorded requests.

Nearly always, a client gets topic ids from a response that also contains the names. If the proxy has not seen
the name of a topic id, it sends a Metadata request on the client's own connection to the broker, with the
rights of the client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import WireError
from kwire.wire.primitives import ZERO_UUID, Uuid
from kwire.wire.schema import Message, fields_of

if TYPE_CHECKING:
    from kwire.broker.api.request.context import Channel
    from kwire.testing.exchange import Exchange

WITH_TOPIC_NAMES: Final = {ApiKey.METADATA, ApiKey.CREATE_TOPICS, ApiKey.DESCRIBE_TOPIC_PARTITIONS}
"""APIs whose responses contain topic ids with names."""
MAX_TOPIC_NAMES: Final = 100_000
MAX_IDS_IN_LOOKUP: Final = 1_000

LookUp = Callable[["Channel", Collection[Uuid], Callable[[Any], None]], None]
"""A function that sends a Metadata request for topic ids, and passes on the response."""


class TopicNames:
    """Topic names by id, from the responses of the cluster."""

    def __init__(self, names: dict[Uuid, str], look_up: LookUp) -> None:
        """`names` is filled, up to `MAX_TOPIC_NAMES`."""
        self._names = names
        self._look_up = look_up
        self._nameless: set[Uuid] = set()
        """Ids for which the cluster has returned no name."""

    def learn(self, response: Any) -> None:
        """Add the topics of a response of `WITH_TOPIC_NAMES`."""
        for topic in response.topics:
            topic_id = topic.topic_id
            if topic.name and topic_id != ZERO_UUID and topic_id not in self._names:
                if len(self._names) >= MAX_TOPIC_NAMES:
                    return
                self._names[topic_id] = topic.name

    # --- Topics of the interceptor

    def find_unknown(self, exchange: Exchange, *, is_needed: bool) -> Collection[Uuid]:
        """Return the topic ids in the request for which `look_up` is necessary."""
        header = exchange.header
        if not (is_needed or header.api_key == ApiKey.FETCH) or header.api_key == ApiKey.METADATA:
            return ()
        try:
            request = exchange.request_message
        except WireError:
            return ()
        if not _may_have_topic_ids(type(request), header.api_version):
            return ()
        return {*_topic_ids(request)} - self._names.keys() - self._nameless - {ZERO_UUID}

    def look_up(self, channel: Channel, topic_ids: Collection[Uuid], done: Callable[[], None]) -> None:
        """Look up names on the connection of the channel, and call `done` even if there are none."""
        if len(self._nameless) + len(topic_ids) > MAX_TOPIC_NAMES:
            self._nameless.clear()
        self._nameless.update(topic_ids)  # so that the request does not wait again

        def learn(response: Any) -> None:
            self.learn(response)
            self._nameless.difference_update(self._names.keys() & {*topic_ids})
            done()

        self._look_up(channel, list(topic_ids)[:MAX_IDS_IN_LOOKUP], learn)


@cache
def _may_have_topic_ids(message_class: type[Message], version: int) -> bool:
    return any(
        one.name == "topic_id" or (one.message is not None and _may_have_topic_ids(one.message, version))
        for one in fields_of(message_class)
        if version in one.versions
    )


def _topic_ids(message: Message) -> Iterator[Uuid]:
    for one in fields_of(type(message)):
        value = getattr(message, one.name)
        if one.name == "topic_id":
            yield value
        elif one.message is not None:
            for inner in value if isinstance(value, list) else [value]:
                if inner is not None:
                    yield from _topic_ids(inner)

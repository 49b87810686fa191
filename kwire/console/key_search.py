"""Search for a key in one partition, with limits of bytes and time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from kwire.cli.records.formats import encode
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import UsageError
from kwire.cli.shared.errors import FormatMismatch
from kwire.console.fetching import BatchStatus, FetchedMessages, FetchResult, Message, fetch_messages
from kwire.console.local_log import LocalLog, local_directory
from kwire.console.page import ConsoleSettings

SEARCHED_BYTES: Final = 8 * 1024 * 1024
SEARCH_SECONDS: Final = 3.0
"""Limits of the search of one page, in bytes and seconds, after which the page offers to continue."""
FORMATS: Final = ("text", "hex")


class Deadline:
    """The end of the time of a search. A call returns whether the time is up."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Start the time; `now` returns the time in seconds."""
        self._now = now
        self._end = now() + SEARCH_SECONDS

    def __call__(self) -> bool:
        return self._now() > self._end


class KeySearch:
    """A search for a key in the partitions of a topic. The methods block."""

    def __init__(
        self,
        cluster: CommandClient,
        settings: ConsoleSettings,
        topic: str,
        key: bytes,
        is_out_of_time: Callable[[], bool],
    ) -> None:
        """Look up the topic. Raises CommandError if it does not exist."""
        self._cluster = cluster
        self._settings = settings
        self._topic = topic
        self._key = key
        self._is_out_of_time = is_out_of_time
        (self._metadata,) = cluster.topics([topic])

    def find(
        self, partition: int, offset: int, max_messages: int, max_bytes: int, end: int | None = None
    ) -> FetchedMessages:
        """Return messages with the key from an offset on, and where to continue. See `fetch_messages`."""
        directory = local_directory(self._settings.log_dirs, self._topic, partition, self._metadata.topic_id)
        own = None if directory is None else LocalLog(directory, self._key, self._is_out_of_time)

        def skip(fetched: FetchResult, offset: int, max_bytes: int) -> tuple[int, int]:
            # Only the leader's files are authoritative, up to its high watermark.
            if own is None or fetched.leader != self._settings.node_id:
                return offset, 0
            return own.skip(offset, fetched.bounds.high_watermark, max_bytes)

        return fetch_messages(
            self._cluster,
            self._topic,
            partition,
            offset,
            max_messages,
            wanted=self._is_wanted,
            end=end,
            max_bytes=max_bytes,
            is_out_of_time=self._is_out_of_time,
            skip=skip,
        )

    def _is_wanted(self, message: Message) -> bool:
        return message.record.key == self._key and message.batch.status is not BatchStatus.CONTROL


def parse_key(text: str, form: str) -> bytes | None:
    """Return the bytes of a typed key; None if the text is empty. Raises UsageError."""
    if form not in FORMATS:
        raise UsageError(f"form is {form[:20]!r}: expected {' or '.join(FORMATS)}")
    if not text:
        return None
    try:
        return encode(text, form)
    except FormatMismatch as mismatch:
        raise UsageError(f"the key is {mismatch}") from mismatch

"""The page of the search for a key in all partitions of a topic.

A record can be in any partition: producers choose partitions with functions of their own, and the default
partitioner chooses another partition after the number of partitions has grown. So the search reads every
partition. It starts with the partition that the default partitioner chooses now, where most matches are, and
continues in ascending order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kwire.cli.records.partitioner import partition_for_key
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import describe_api_error
from kwire.client.errors import Disconnected, UnknownPartition
from kwire.console.fetching import FETCH_BYTES, BatchStatus, UnreadableBatch, find_bounds
from kwire.console.idle_priority import run_at_idle_priority
from kwire.console.key_search import SEARCHED_BYTES, Deadline, KeySearch, parse_key
from kwire.console.messages import PAGE_SIZE, row_of
from kwire.console.page import Page, PageRequest, PageResult
from kwire.console.topics import offsets
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.primitives import TopicPartition

MAX_PARTITIONS: Final = 100
"""Maximum number of partitions that one page searches."""


class SearchPosition(NamedTuple):
    """How far the search has come."""

    partition: int
    offset: int | None = None
    """The offset to continue at; None for the log start."""
    end: int | None = None
    """The high watermark when the search in this partition began; None if it has not begun.

    The search in the partition ends here. So it also ends in a partition to which producers write faster than
    the pages read.
    """


class SearchProblem(NamedTuple):
    """A part of a partition that the search could not read."""

    partition: int
    sentence: str


def find_key(request: PageRequest) -> PageResult:
    """Return the page of the messages with a key, up to the limits of one page, and where to continue.

    The fields `partition`, `from` and `to` are the position to continue at, and `first` is the partition with
    which the search began.
    """
    key_text, form = request.text("key"), request.text("form") or "text"
    key = parse_key(key_text, form)
    if key is None:
        raise UsageError("the key is missing")
    (topic,) = request.cluster.topics([request.topic])
    partitions = sorted(one.partition_index for one in topic.partitions)
    first, begin = _position(request, key, partitions)
    order = [first, *(index for index in partitions if index != first)]
    left = order[order.index(begin.partition) :]
    at_once = left[:MAX_PARTITIONS]
    topic.partitions = [one for one in topic.partitions if one.partition_index in at_once]
    starts, ends = offsets(request.cluster, [topic])
    search = _TopicSearch(
        request.cluster,
        request.topic,
        KeySearch(request.cluster, request.settings, request.topic, key, is_out_of_time := Deadline()),
        is_out_of_time,
    )
    position = run_at_idle_priority(lambda: search.run(at_once, begin, starts, ends))
    if position is None and len(left) > len(at_once):
        position = SearchPosition(left[len(at_once)])
    return Page(
        "key.html",
        {
            "topic": request.topic,
            "key": key_text,
            "form": form,
            "rows": search.rows,
            "problems": search.problems,
            "first": first,
            "next": position,
            "searched": len(order) if position is None else order.index(position.partition),
            "partitions": len(order),
            "is_complete": position is None and len(left) == len(order) and not request.text("from"),
            "BatchStatus": BatchStatus,
        },
    )


def _position(request: PageRequest, key: bytes, partitions: Sequence[int]) -> tuple[int, SearchPosition]:
    """Return the partition with which the search begins, and the position at which it continues."""
    first = request.number("first")
    if first is None:
        first = partition_for_key(key, len(partitions))
    partition = request.number("partition")
    if partition is None:
        partition = first
    for index in (first, partition):
        if index not in partitions:
            raise UnknownPartition(request.topic, index, len(partitions))
    return first, SearchPosition(partition, request.number("from"), request.number("to"))


class _TopicSearch:
    """The search of one page. It blocks, and collects the matches as template rows."""

    def __init__(
        self, cluster: CommandClient, topic: str, search: KeySearch, is_out_of_time: Deadline
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._search = search
        self._is_out_of_time = is_out_of_time
        self._left_bytes = SEARCHED_BYTES
        self.rows: list[dict[str, Any]] = []
        self.problems: list[SearchProblem] = []

    def run(
        self,
        partitions: Sequence[int],
        position: SearchPosition,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> SearchPosition | None:
        """Search partitions, the first of them from `position` on.

        `starts` and `ends` are the log start offsets and high watermarks of the partitions whose leaders
        responded. Returns the position to continue at; None after the last partition. A partition that cannot
        be read is a problem, not an error.
        """
        for index in partitions:
            at = position if index == position.partition else SearchPosition(index)
            if index != position.partition and self._is_over():
                return at
            one = self._topic, index
            if one not in starts or one not in ends:
                self._report(index, "its leader does not respond")
                continue
            offset = max(starts[one], at.offset or 0)
            end = ends[one] if at.end is None else min(at.end, ends[one])
            offset = self._search_partition(index, offset, end)
            if offset < end:
                return SearchPosition(index, offset, end)
        return None

    def _search_partition(self, partition: int, offset: int, end: int) -> int:
        """Search from an offset to `end`, and return the offset to continue at."""
        while offset < end:
            try:
                read = self._search.find(partition, offset, PAGE_SIZE - len(self.rows), self._left_bytes, end)
            except UnreadableBatch as error:
                self._report(partition, str(error))
                self._left_bytes -= FETCH_BYTES
                offset = error.next_offset
            except ApiError as error:
                if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    raise  # the other partitions would be denied, too
                log_start = self._log_start(partition, error)
                if log_start <= offset:
                    self._report(partition, describe_api_error(error))
                    return end
                offset = log_start
            except (CommandError, UnknownPartition, Disconnected, WireError) as error:
                self._report(partition, str(error))
                return end
            else:
                self._left_bytes -= read.read_bytes
                self.rows += [
                    {**row_of(self._topic, message), "partition": partition} for message in read.messages
                ]
                if read.next_offset == offset:
                    return end  # no batches are left before the end, for example after compaction
                offset = read.next_offset
            if self._is_over():
                break
        return offset

    def _log_start(self, partition: int, error: ApiError) -> int:
        """Return the log start offset if the broker has deleted records during the search; otherwise -1."""
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            return -1
        return find_bounds(self._cluster, self._topic, partition).log_start

    def _is_over(self) -> bool:
        return self._left_bytes <= 0 or len(self.rows) >= PAGE_SIZE or self._is_out_of_time()

    def _report(self, partition: int, sentence: str) -> None:
        self.problems.append(SearchProblem(partition, sentence))

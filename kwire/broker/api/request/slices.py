"""The handling of large requests in slices, one slice per turn of the event loop.

A request of 8 MiB can name 280,000 partitions and takes seconds. Apache Kafka handles such a request in one
of several threads. kwire has one event loop, and serves the other connections between the slices. Requests of
up to `LARGE_REQUEST_BYTES` are handled at once, because slices would only delay them. Produce has a
higher limit, because most of its bytes are records.

A Fetch or ListOffsets of any size may have to wait for reads that workers do. It continues after them.

If the client disconnects, a request that only reads is dropped. Other requests still take effect, as in
Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from kwire.broker.api.request.context import Delayed, RequestContext
from kwire.broker.api.request.unexpected_error import unexpected_error
from kwire.broker.storage.log.worker_reads import WorkerReads
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, WireError
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.host.host import Host

LARGE_REQUEST_BYTES: Final = 32 << 10
"""The size in bytes above which a request is large."""
LARGE_PRODUCE_BYTES: Final = 1 << 20
"""The size in bytes above which a Produce is large. Most producers send at most this much in a request."""
SLICE_PARTITIONS: Final = 256
"""The number of partitions in a slice, which take about 2 ms."""

READS: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_CONFIGS,
    }
)
"""The APIs whose requests are dropped if the client disconnects."""

ItemT = TypeVar("ItemT")
ResponseT = TypeVar("ResponseT", bound=Message | Delayed)
Steps = Generator[WorkerReads | None, None, Message | Delayed]
"""The handling of a request. It returns the response or `DELAYED`.

It yields None after every slice, or the reads that workers have to do before the next step.
"""


class InSlices(Delayed):
    """The result of a handler whose work is the `steps`, which the dispatcher runs in several turns."""

    __slots__ = ("steps",)

    def __init__(self, steps: Steps) -> None:
        self.steps = steps


def slices_of(items: Sequence[ItemT]) -> Iterator[Sequence[ItemT]]:
    """Return the items in slices of `SLICE_PARTITIONS`."""
    for start in range(0, len(items), SLICE_PARTITIONS):
        yield items[start : start + SLICE_PARTITIONS]


def handle_in_slices(
    context: RequestContext,
    steps: Generator[WorkerReads | None, None, ResponseT],
    *,
    is_large: bool = False,
) -> ResponseT | Delayed:
    """Run all steps now and return the response.

    If the request or its response is large, or if it waits for workers, the dispatcher runs the remaining
    steps. `is_large` is True if the response to a small request is large.
    """
    if is_large or context.size_bytes > LARGE_REQUEST_BYTES:
        return InSlices(steps)
    while True:
        try:
            reads = next(steps)
        except StopIteration as end:
            response: ResponseT = end.value
            return response
        if reads is not None:
            return InSlices(_after_reads(reads, steps))


def _after_reads(reads: WorkerReads, steps: Steps) -> Steps:
    yield reads
    return (yield from steps)


def complete_in_slices(host: Host, context: RequestContext, steps: Steps) -> None:
    """Run the steps and send the response that they return. A closed connection ends the steps of a read.

    Each step runs in a turn of its own, or after the reads that it waits for. The first step runs at once. An
    ApiError becomes the response. A WireError closes the connection. If the steps return `DELAYED`, the time
    from then on is remote time in the request metrics.
    """
    work = _respond(host, context, steps)

    def next_step() -> None:
        if context.completed or (context.channel.closed and context.header.api_key in READS):
            work.close()
            return
        reads = next(work, _ENDED)
        if reads is None:
            host.call_soon(next_step)
        elif reads is not _ENDED:
            reads.run(host, next_step)

    next_step()


def complete_delayed(host: Host, context: RequestContext, response: Message) -> None:
    """Send the response to a delayed request. If the request was large, encode the response in slices."""
    if context.size_bytes > LARGE_REQUEST_BYTES:
        complete_in_slices(host, context, respond_with(response))
    else:
        context.complete(response)


def respond_with(response: Message) -> Steps:
    """Return the response in the next turn. The steps of a request whose response only has to be encoded."""
    yield None
    return response


_ENDED: Final = WorkerReads()


def _respond(host: Host, context: RequestContext, steps: Steps) -> Generator[WorkerReads | None, None, None]:
    try:
        reply = yield from _reply(host, context, steps)
    except Exception as error:  # a WireError, or no error response is possible
        host.logger("kwire.dispatch").warning(
            "Closing connection to %s: request %s: %s", context.peer_host, context.header, error
        )
        context.close_connection()
        return
    if not isinstance(reply, Delayed):
        yield from context.complete_in_slices(reply)
    elif not context.completed:
        context.was_delayed()


def _reply(host: Host, context: RequestContext, steps: Steps) -> Steps:
    try:
        return (yield from steps)
    except ApiError as error:
        return context.error_response(error)
    except WireError:
        raise
    except Exception as error:  # without a response, the request would never complete
        return unexpected_error(host, context, error, None)

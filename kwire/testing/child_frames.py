"""The messages between the process of a test and its child process: pickled calls and results.

A frame is its size in eight bytes and a pickle. The two processes run the same code as the same user.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from kwire.wire.named_tuple import NamedTuple

T = TypeVar("T")
SIZE_BYTES = 8


class Call(NamedTuple):
    """A call of a method of an object in the child process."""

    handle: int
    """The number of the object. The child process itself is object 0."""
    method: str
    args: tuple[Any, ...]
    log_level: int | None
    """The lowest level of log records that the caller wants. None if it takes no log records."""
    released: list[int]
    """Objects that are not used anymore."""


class Result(NamedTuple):
    """The result of a call, or its error."""

    value: Any
    error: tuple[type[BaseException], tuple[Any, ...], dict[str, Any]] | None
    log_records: list[dict[str, Any]]


class _CallPickler(pickle.Pickler):
    """A pickler that sends instances of subclasses of str and other simple types as instances of these types.

    A test may pass a member of its own enum as the name of a topic. The child process must not import the
    module of the test.
    """

    def reducer_override(self, value: Any) -> Any:
        """Reduce instances of subclasses. Instances of the types themselves do not pass here."""
        if isinstance(value, str):
            return str, (str.__str__(value),)
        if isinstance(value, bytes):
            return bytes, (bytes(memoryview(value)),)
        if isinstance(value, int):
            return int, (int.__index__(value),)
        if isinstance(value, float):
            return float, (float.__float__(value),)
        return NotImplemented


def encode_call(call: Call) -> bytes:
    """Return a call as a frame.

    It contains no references to classes of kwire: a test that restores `sys.modules` can make this process
    import them again, and pickle then refuses instances of the first class.
    """
    return _encode(_CallPickler, tuple(call))


def encode_result(result: Result) -> bytes:
    """Return a result as a frame."""
    return _encode(pickle.Pickler, tuple(result))


def _encode(pickler: type[pickle.Pickler], message: tuple[Any, ...]) -> bytes:
    out = io.BytesIO()
    out.write(bytes(SIZE_BYTES))
    pickler(out, pickle.HIGHEST_PROTOCOL).dump(message)
    frame = out.getbuffer()
    frame[:SIZE_BYTES] = (len(frame) - SIZE_BYTES).to_bytes(SIZE_BYTES)
    return bytes(frame)


def receive(read: Callable[[int], bytes]) -> bytes:
    """Read a pickle. `read` returns at most as many bytes as its argument. Raises EOFError at the end."""
    return _receive_bytes(read, int.from_bytes(_receive_bytes(read, SIZE_BYTES)))


def _receive_bytes(read: Callable[[int], bytes], size: int) -> bytes:
    parts = []
    while size:
        part = read(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def drain(queue: deque[T]) -> list[T]:
    """Remove and return all elements of a queue. Several threads may do this at the same time."""
    taken = []
    try:
        while True:
            taken.append(queue.popleft())
    except IndexError:
        return taken


def split_error(error: BaseException) -> tuple[type[BaseException], tuple[Any, ...], dict[str, Any]]:
    """Return the parts of an exception, which can be sent even if the class has an own constructor."""
    return type(error), error.args, error.__dict__


def join_error(parts: tuple[type[BaseException], tuple[Any, ...], dict[str, Any]]) -> BaseException:
    """Return an exception that is equal to the one that was split."""
    kind, args, state = parts
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error

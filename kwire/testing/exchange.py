"""A request and its response, as data and as readable text.

    15:23:14.952 Produce 12 from billing: {acks: -1, timeout_ms: 30000, topic_data: [{name: 'orders',
    partition_data: [{index: 0, records: [0: 'customer 7' = 'first order']}]}]}
        after 1.2 ms: {responses: [{name: 'orders', partition_responses: [{index: 0, base_offset: 17}]}]}

The text omits fields with default values, except numbers whose zero is meaningful, such as offsets. Topic ids
appear as topic names, and passwords as `[hidden]`. Request and response are decoded on first access.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from kwire.host.system_time import libc_time_ns, localtime, strftime
from kwire.testing.lookup_table import LookupTable
from kwire.testing.results import TopicPartition
from kwire.wire.batch import CorruptBatch, Record, batches, records
from kwire.wire.errors import ErrorCode, WireError
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural
from kwire.wire.primitives import ZERO_UUID, Buffer, Uuid, uuid_to_text
from kwire.wire.registry import API_VERSIONS, RequestHeader, decode_request, decode_response
from kwire.wire.schema import Field, Message, fields_of

if TYPE_CHECKING:
    from kwire.testing.names import ApiName

TopicNames = Mapping[Uuid, str]
"""Topic names by topic id."""

CLIENT_ID: Final = "kwire.testing"
"""The client id of the test's own requests, which are neither recorded nor affected by faults."""
MAX_RECORDS_SHOWN: Final = 10
"""The maximum number of records that the text shows of each partition."""
MAX_VALUE_CHARACTERS: Final = 200
"""The maximum number of characters that the text shows of a key or value."""
MAX_MESSAGE_CHARACTERS: Final = 1_000
"""The maximum number of characters that the text shows of a request or response."""
HIDDEN: Final = "[hidden]"
SECRET_FIELDS: Final = {"auth_bytes", "hmac", "salted_password"}
SECRET_KEY_SUFFIXES: Final = (
    "sasl.jaas.config",
    "password",
    "secret",
    "secret.key",
    "keystore.key",
    "passphrase",
)
"""Suffixes of the names of configs that contain secrets."""
OMITTED_AT_ZERO: Final = {"error_code", "throttle_time_ms", "session_id"}
"""Fields whose value 0 is omitted from the text."""
TOPIC_NAME_FIELDS: Final = "topic", "topic_name", "name"
PARTITION_INDEX_FIELDS: Final = "partition", "index", "partition_index", "partition_id"


class Result(NamedTuple):
    """The result of a request: the arguments of `Exchange.complete`."""

    duration_ms: float
    response: bytes | None
    response_bytes: int
    outcome: str
    responded_at_s: float = 0.0


class Exchange:
    """A client's request, with its response when there is one."""

    def __init__(self, at_s: float, header: RequestHeader, body: memoryview, names: TopicNames) -> None:
        """Create an exchange for a request. `body` is the request without its header.

        The broker received the request at `at_s`, in seconds since 1970.
        """
        self.received_at_s = at_s
        """The time in seconds since 1970 when the broker received the request."""
        self.api = cast("ApiName", API_VERSIONS[header.api_key].name)
        """The API's name in Kafka's documentation, such as Produce."""
        self.version = header.api_version
        """The version of the API."""
        self.client_id = header.client_id or ""
        """The client id; empty if the request has none."""
        self.fault = ""
        """A description of the injected fault; empty if there is none."""
        self.header = header
        self.body = body
        self.connection = 0
        """The number of the client's connection, or 0 if it is not known."""
        self.fetched_partitions: frozenset[tuple[str, int]] | None = None
        """The partitions of a Fetch, including partitions that only its fetch session names."""
        self._names = names
        self._result: Result | None = None

    def complete(
        self, duration_ms: float, response: bytes | None, response_bytes: int, outcome: str = ""
    ) -> None:
        """Set the response and the outcome, which is empty if a response was sent.

        `response` is the response frame including its size prefix, or None if there is no response or if it
        is too long to keep. `response_bytes` is its size in both cases.
        """
        now_s = libc_time_ns() / 1_000_000_000
        self._result = Result(duration_ms, response, response_bytes, outcome, now_s)

    @property
    def topic_names(self) -> TopicNames:
        """The names of topics that requests and responses name by id."""
        return self._names

    def result(self) -> Result | None:
        """Return the result, or None while the request is in progress."""
        return self._result

    @property
    def outcome(self) -> str | None:
        """Empty if a response was sent, else the reason why not. None while the request is in progress."""
        result = self.result()
        return None if result is None else result.outcome

    @property
    def responded_at_s(self) -> float | None:
        """The time in seconds since 1970 when the response was complete. None before."""
        result = self.result()
        return None if result is None else result.responded_at_s

    @property
    def duration_ms(self) -> float:
        """The time until the response was complete."""
        result = self.result()
        return 0.0 if result is None else result.duration_ms

    @property
    def response_bytes(self) -> int:
        """The size of the response with its size prefix, also if the response is too long to keep."""
        result = self.result()
        return 0 if result is None else result.response_bytes

    @property
    def size_bytes(self) -> int:
        """The size of the request and the response, as far as this exchange keeps them in memory."""
        return len(self.body) + len((self._result and self._result.response) or b"")

    @cached_property
    def request_message(self) -> Message:
        """The request as a message class of `kwire.wire`.

        Raises WireError if the request cannot be decoded.
        """
        message: Message = self.decode()
        return message

    def decode(self) -> Any:
        """Decode the request again, into a message that the caller may change."""
        return decode_request(self.header, self.body, 0)

    @property
    def response_message(self) -> Message | None:
        """The response as a message class of `kwire.wire`, or None if no response is kept."""
        result = self.result()
        return None if result is None or result.response is None else self._decoded_response

    @cached_property
    def _decoded_response(self) -> Message:
        assert self._result is not None
        assert self._result.response is not None
        response_class = API_VERSIONS[self.header.api_key].response_class
        response: Message
        _, response = decode_response(response_class, self.version, memoryview(self._result.response)[4:])
        return response

    @property
    def request(self) -> Mapping[str, Any]:
        """The fields of the request, with the protocol's names in snake_case.

        Record batches are decoded to lists of records. Secrets are replaced by `[hidden]`. Raises WireError
        if the request cannot be decoded.
        """
        return message_fields(self.request_message, self.version, self.topic_names)

    @property
    def response(self) -> Mapping[str, Any] | None:
        """The fields of the response, in the same form as those of the request.

        None if there is no response (yet), or if the response was too long to keep.
        """
        message = self.response_message
        return None if message is None else message_fields(message, self.version, self.topic_names)

    @cached_property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that the request names, or that its fetch session has.

        If the request names only a topic, the partition is -1. Empty if the request cannot be decoded.
        """
        if self.fetched_partitions is not None:
            return frozenset(TopicPartition(*one) for one in self.fetched_partitions)
        try:
            return frozenset(partitions_of(self.request_message, self.topic_names))
        except WireError:
            return frozenset()

    def __str__(self) -> str:
        at = strftime("%H:%M:%S", localtime(self.received_at_s)) + f".{self.received_at_s % 1:.3f}"[2:]
        try:
            request = self._format(self.request_message)
        except WireError as error:
            request = f"invalid request: {error}"
        first = f"{at} {self.api} {self.version} from {self.client_id or '(no client id)'}: {request}"
        return f"{first}\n    {self._format_outcome()}"

    def _format_outcome(self) -> str:
        fault = f", injected fault: {self.fault}" if self.fault else ""
        result = self.result()
        if result is None:
            return f"no response yet{fault}"
        after = f"after {result.duration_ms:.1f} ms{fault}: "
        if result.outcome:
            return after + result.outcome
        message = self.response_message
        if message is None:
            return f"{after}{plural(result.response_bytes, 'byte')}"
        return after + self._format(message)

    def _format(self, message: Message) -> str:
        return truncated(format_message(message, self.version, self.topic_names), MAX_MESSAGE_CHARACTERS)


def truncated(text: str, max_characters: int) -> str:
    """Return a text, without its end if it is too long."""
    return text if len(text) <= max_characters else f"{text[:max_characters]}... ({len(text)} in all)"


def partitions_of(message: Message, names: TopicNames) -> Iterator[TopicPartition]:
    """Yield the partitions that a message names at any depth. A topic without partitions yields number -1."""
    if "Topic" in type(message).__name__:
        name = _topic_name_of(message, names)
        if name:
            numbers = list(_partition_indexes(message))
            yield from (TopicPartition(name, number) for number in numbers or [-1])
    for one in fields_of(type(message)):
        value = getattr(message, one.name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Message):
                yield from partitions_of(inner, names)


def may_name_topics(message: type[Message]) -> bool:
    """Return whether messages of this class can name topics."""
    fields = fields_of(message)
    if "Topic" in message.__name__ and any(one.name in (*TOPIC_NAME_FIELDS, "topic_id") for one in fields):
        return True
    return any(one.message is not None and may_name_topics(one.message) for one in fields)


def _topic_name_of(message: Message, names: TopicNames) -> str:
    for name in TOPIC_NAME_FIELDS:
        value = getattr(message, name, None)
        if isinstance(value, str) and value:
            return value
    topic_id = getattr(message, "topic_id", ZERO_UUID)
    return (names.get(topic_id) or "") if topic_id != ZERO_UUID else ""


def _partition_indexes(topic: Message) -> Iterator[int]:
    for one in fields_of(type(topic)):
        if one.is_list and "partition" in one.name:
            for inner in getattr(topic, one.name) or ():
                if isinstance(inner, int):
                    yield inner
                else:
                    yield from (
                        getattr(inner, name) for name in PARTITION_INDEX_FIELDS if hasattr(inner, name)
                    )


def _is_secret(message: Message, field: Field) -> bool:
    """Return whether a field contains a password or an equivalent secret."""
    if field.name in SECRET_FIELDS:
        return True
    return field.name == "value" and str(getattr(message, "name", "")).endswith(SECRET_KEY_SUFFIXES)


def message_fields(message: Message, version: int, names: TopicNames) -> dict[str, Any]:
    """Return the fields of a message, as those of `Exchange.request`."""

    def plain(field: Field, value: Any) -> Any:
        if value and _is_secret(message, field):
            return HIDDEN
        if isinstance(value, list):
            return [plain(field, one) for one in value]
        if isinstance(value, Message):
            return message_fields(value, version, names)
        if field.element == "Uuid":
            return names.get(value) or uuid_to_text(value)
        if field.element == "Records":
            return None if value is None else _records(value)
        return _error_code(value) if field.name == "error_code" else value

    found = {one.name: plain(one, getattr(message, one.name)) for one in _versioned_fields(message, version)}
    return LookupTable(found).named(f"field of {type(message).__name__} in version {version} with name")


def format_message(message: Message, version: int, names: TopicNames) -> str:
    """Format a message on one line, with the omissions and replacements that the module describes."""

    def text(field: Field, value: Any) -> str:
        if _is_secret(message, field):
            return HIDDEN
        if isinstance(value, list):
            return f"[{', '.join(text(field, one) for one in value)}]"
        if isinstance(value, Message):
            return format_message(value, version, names)
        if field.element == "Uuid":
            return names.get(value) or uuid_to_text(value)
        if field.element == "Records":
            return _format_records(value)
        if field.name == "error_code":
            code = _error_code(value)
            return code.name if isinstance(code, ErrorCode) else str(code)
        return format_value(value) if isinstance(value, (bytes, memoryview, str)) else str(value)

    shown = [
        f"{one.name}: {text(one, getattr(message, one.name))}"
        for one in _versioned_fields(message, version)
        if not _is_default(one, getattr(message, one.name))
    ]
    return f"{{{', '.join(shown)}}}"


def _versioned_fields(message: Message, version: int) -> list[Field]:
    return [one for one in fields_of(type(message)) if version in one.versions]


def _is_default(field: Field, value: Any) -> bool:
    if isinstance(value, Message):
        return bool(value == type(value)())
    if value == 0 and type(value) is int:
        return field.default == 0 and field.name in OMITTED_AT_ZERO
    return value is None or bool(value == field.default)


def _error_code(value: int) -> ErrorCode | int:
    try:
        return ErrorCode(value)
    except ValueError:
        return value


def _records(data: Buffer) -> list[Record]:
    """Return the records of complete batches up to the first invalid batch, without control records."""
    found: list[Record] = []
    try:
        for position, header in batches(data, allow_partial=True):
            if not header.is_control:
                found += records(data, position, header)
    except CorruptBatch:
        pass  # clients may send invalid batches; the error code in the response shows it
    return found


def _format_records(data: Any) -> str:
    if data is None or not len(data):
        return "[]"
    found = _records(data)
    if not found:
        return f"<{plural(len(data), 'byte')}>"
    shown = [
        f"{one.offset}: {format_value(one.key)} = {format_value(one.value)}"
        for one in found[:MAX_RECORDS_SHOWN]
    ]
    more = f", and {len(found) - MAX_RECORDS_SHOWN} more" if len(found) > MAX_RECORDS_SHOWN else ""
    return f"[{', '.join(shown)}{more}]"


def format_value(value: bytes | memoryview | str | None, max_characters: int = MAX_VALUE_CHARACTERS) -> str:
    """Format bytes as text if they are UTF-8, truncated to `max_characters`."""
    if value is None:
        return "null"
    if not isinstance(value, str):
        value = bytes(value)
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return repr(value[:max_characters])
    return repr(value if len(value) <= max_characters else value[:max_characters] + "...")

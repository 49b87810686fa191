"""Valid frames of every supported API and version, mutations of frames, and a node that receives them.

The frames are generated from the message declarations, so a new API is fuzzed as soon as it is supported.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from kwire.broker.api.request.supported_apis import SUPPORTED_APIS, HandledBy, ListenerRole, apis_for
from kwire.testing.virtual_node import VirtualNode, take_ready_bytes
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import HEADER_BYTES, build, read_header, records, update_crc
from kwire.wire.compression import Codec
from kwire.wire.errors import WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.primitives import ZERO_UUID, Uuid
from kwire.wire.registry import API_VERSIONS, decode_request_header, decode_response, encode_request
from kwire.wire.schema import Field, Message, fields_of

NOW_MS = 1_700_000_000_000
VARIANTS = 4
TOPICS = ("orders", "clicks")
CONTROL_TOPIC = "sound"
"""The topic that must keep working. No frame names it."""

PROPERTIES = {
    "log.dirs": "/data",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    # MemoryDisk has no sparse files: an index of the default size would take ten megabytes.
    "log.index.size.max.bytes": "16384",
}
CONTROL_TOPIC_CONFIGS = {
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "cleanup.policy": "delete",
}

SERVED_VERSIONS = [
    (key, version) for key, served in SUPPORTED_APIS.items() for version in served.accepted_versions
]
BROKER_APIS = {
    key for key, supported in apis_for(ListenerRole.BROKER).items() if not supported.needs_client_metrics
}
"""The APIs that a broker without client metrics subscriptions advertises."""


class ValidFrame(NamedTuple):
    """A frame without its size prefix, and the positions of its record batches."""

    frame: bytes
    batches: tuple[int, ...] = ()


# --- valid requests

INT_LIMITS = {
    "Int8": 7,
    "Int16": 15,
    "UInt16": 16,
    "Int32": 31,
    "UInt32": 32,
    "Int64": 63,
}
STRINGS: dict[str, Sequence[str | None]] = {
    "name": TOPICS,
    "topic": TOPICS,
    "topic_name": TOPICS,
    "topic_names": TOPICS,
    "group_id": ("g", "g", "h", ""),
    "key": ("g", "h"),
    "coordinator_keys": ("g", "h"),
    "groups": ("g", "h"),
    "member_id": ("", "somebody"),
    "protocol_type": ("consumer",),
    "protocol_name": ("range",),
    "resource_name": (*TOPICS, "1", "g"),
    "transactional_id": (None, None, None, "t"),
    "group_instance_id": (None, None, "fixed"),
    "configuration_keys": ("retention.ms", "cleanup.policy", "no.such.key"),
    "client_software_name": ("kwire",),
    "client_software_version": ("1.0",),
    "cluster_id": (None,),
    "value": ("1000", "compact", "compact,delete", "producer", "", None),
}
CONFIG_NAMES = ("retention.ms", "cleanup.policy", "compression.type", "segment.bytes", "no.such.key")
INTS: dict[str, Sequence[int]] = {
    "acks": (-1, 1, 0),
    "broker_ids": (1,),
    "brokers": (1,),
    "config_operation": (0, 1, 2, 3),
    "count": (2, 3, 4),
    "key_type": (0, 0, 1, 2),
    "max_bytes": (1 << 20, 1, 0),
    "max_wait_ms": (0, 10, 500),
    "min_bytes": (0, 1, 1 << 30),
    "num_partitions": (1, 3, -1),
    "partition_max_bytes": (1 << 20, 1),
    "replica_id": (-1, -1, 0, 1),
    "replication_factor": (1, 1, -1, 2),
    "resource_type": (2, 2, 4, 8, 32),
    "session_epoch": (-1, 0, 1),
    "session_timeout_ms": (10_000, 6_000),
    "timestamp": (-1, -2, -3, -4, -5, NOW_MS, 0),
}


def valid_frame(key: int, version: int, variant: int, topic_ids: Sequence[Uuid]) -> ValidFrame:
    """Return one of the valid frames of an API and version, always the same one.

    The first `VARIANTS` are frames that a client might send. Later ones contain some unusual values.
    """
    rng = random.Random(f"{key} {version} {variant}")
    generator = _RequestGenerator(version, rng, topic_ids, wild=variant >= VARIANTS)
    request = generator.message(API_VERSIONS[key].request_class)
    frame = encode_request(request, version, 7, rng.choice(("fuzz", None)))[4:]
    return ValidFrame(frame, tuple(sorted({frame.index(batch) for batch in generator.batches})))


class _RequestGenerator:
    """A generator of one request."""

    def __init__(self, version: int, rng: random.Random, topic_ids: Sequence[Uuid], *, wild: bool) -> None:
        self.version = version
        self.rng = rng
        self.topic_ids = topic_ids
        self.wild = wild
        self.batches: list[bytes] = []

    def message(self, message_class: type[Message]) -> Message:
        """Return a message with a value in each field of this version."""
        version, rng = self.version, self.rng
        values: dict[str, Any] = {}
        for field in fields_of(message_class):
            if version not in field.versions:
                continue
            if (
                version in field.nullable
                and rng.random() < 0.15
                and (self.wild or field.element != "Records")
            ):
                values[field.name] = None
            elif field.is_list:
                size = rng.choice((0, 1, 2, 3, 9) if self.wild else (0, 1, 1, 1, 2))
                values[field.name] = [self.value(message_class, field) for _ in range(size)]
            else:
                values[field.name] = self.value(message_class, field)
        return message_class(**values)

    def value(self, message_class: type[Message], field: Field) -> Any:
        if field.message is not None:
            return self.message(field.message)
        if self.wild and self.rng.random() < 0.2:
            if field.element in INT_LIMITS:
                return wild_integer(field.element, self.rng)
            if field.element == "Str":
                return self.rng.choice(WILD_STRINGS)
        if field.element == "Records":
            self.batches.append(random_batch(self.rng))
            return memoryview(self.batches[-1])
        return likely_value(message_class, field, self.version, self.rng, self.topic_ids)


def wild_integer(element: str, rng: random.Random) -> int:
    """Return an integer of this type, often one at a limit of its range."""
    highest = (1 << INT_LIMITS[element]) - 1
    lowest = 0 if element.startswith("U") else -highest - 1
    edges = (lowest, lowest + 1, max(lowest, -2), 2, 100, highest - 1, highest)
    return rng.choice(edges) if rng.random() < 0.7 else rng.randint(lowest, highest)


WILD_STRINGS = (
    "",
    ".",
    "..",
    "a/b",
    "\0",
    "\u00e9\U0001f600",
    "x" * 249,
    "x" * 250,
    "x" * 5000,
    "__consumer_offsets",
)


def likely_value(
    message_class: type[Message],
    field: Field,
    version: int,
    rng: random.Random,
    topic_ids: Sequence[Uuid],
) -> Any:
    """Return a value that a client might send."""
    element, name = field.element, field.name
    if element == "Bytes":
        return rng.choice((b"", b"\0\0\0\0\0\1\0\6orders\xff\xff\xff\xff", rng.randbytes(40)))
    if element == "Uuid":
        return rng.choice((*topic_ids, *topic_ids, ZERO_UUID, Uuid(rng.randbytes(16))))
    if element == "Bool":
        return rng.random() < 0.3
    if element == "Str":
        if name == "name" and "Config" in message_class.__name__:
            return rng.choice(CONFIG_NAMES)
        found = rng.choice(STRINGS.get(name, ("", "text", "x" * 300)))
        return found if found is not None or version in field.nullable else ""
    if element == "Float64":
        return rng.choice((0.0, 1.5, float("inf")))
    if name in INTS:
        return rng.choice(INTS[name])
    bits = INT_LIMITS[element]
    lowest = 0 if element.startswith("U") else -1
    if "timeout" in name or name.endswith("_ms"):
        return rng.choice((0, 100, 30_000))
    return rng.choice((0, 0, 0, 1, 1, lowest, lowest, 5, (1 << bits) - 1))


def random_batch(rng: random.Random) -> bytes:
    """Return a random batch, sometimes of an idempotent producer or a transaction."""
    contents = [
        (NOW_MS + number, rng.choice((None, b"key")), rng.randbytes(rng.randrange(30)), [("h", b"v")])
        for number in range(rng.randint(1, 4))
    ]
    producer_id = rng.choice((-1, -1, 7, 8))
    return bytes(
        build(
            contents,
            codec=rng.choice(tuple(Codec)),
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=-1 if producer_id < 0 else rng.choice((0, 0, 3)),
            transactional=producer_id == 8,
        )
    )


# --- mutations

INVALID_LENGTHS = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\x00\x00",
    b"\x7f\xff",
    b"\xff\xff",
    b"\x80\x00",
    b"\xff\xfe",
    b"\x00\x00\x00\x00",
    b"\x00\x01\x00\x00",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x10",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
)
MUTATION_KINDS = ("overwrite", "insert", "delete", "repeat", "add", "truncate", "splice")
BODY_OFFSET = 4
"""The position after the API key and version, which are rarely changed."""


class Mutation(NamedTuple):
    """One change of a frame, with numbers that are valid for any frame."""

    kind: str
    at: int
    data: bytes
    amount: int


def mutate(original: ValidFrame, changes: Sequence[Mutation], *, reseal: bool) -> ValidFrame:
    """Return the mutated frame. With `reseal`, its batches have a correct CRC, so that they are decoded."""
    frame = bytearray(original.frame)
    for change in changes:
        start = 0 if change.amount % 16 == 15 else BODY_OFFSET
        at = start + change.at % max(1, len(frame) - start)
        size = 1 + change.amount % 24
        if change.kind == "overwrite":
            frame[at : at + len(change.data)] = change.data
        elif change.kind == "insert":
            frame[at:at] = change.data
        elif change.kind == "delete":
            del frame[at : at + size]
        elif change.kind == "repeat":
            frame[at:at] = frame[at : at + size] * (1 + change.amount % 5)
        elif change.kind == "add" and at < len(frame):
            frame[at] = (frame[at] + change.amount) & 0xFF
        elif change.kind == "truncate":
            del frame[at:]
        elif change.kind == "splice":
            other = change.at // 7 % max(1, len(frame))
            frame[at:] = frame[other:]
    if reseal:
        for at in original.batches:
            if at + HEADER_BYTES <= len(frame):
                size = min(read_header(frame, at).size_bytes, len(frame) - at)
                if size >= HEADER_BYTES:
                    update_crc(frame, at, size)
    return ValidFrame(bytes(frame), original.batches)


# --- a node


class BrokenNode(AssertionError):
    """A violation of what the node guarantees."""


class _ErrorLog(logging.Handler):
    """A log handler that records failures that returned UNKNOWN_SERVER_ERROR."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: deque[logging.LogRecord] = deque(maxlen=10)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def no_errors_in_the_log() -> Iterator[None]:
    """Raise BrokenNode if kwire logs an error."""
    error_log = _ErrorLog()
    logger = logging.getLogger("kwire")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(error_log)
    try:
        yield
    finally:
        logger.removeHandler(error_log)
        logger.propagate = propagate
    for failure in error_log.records:
        raise BrokenNode(logging.Formatter().format(failure))


def with_correlation_ids(frames: Sequence[bytes]) -> list[bytes]:
    """Replace the correlation ids, to distinguish the responses: Produce with acks=0 has none."""
    return [
        frame[:4] + number.to_bytes(4, "big") + frame[8:] if len(frame) >= 8 else frame
        for number, frame in enumerate(frames)
    ]


def listener_role(frame: bytes) -> ListenerRole:
    """Return the role of the listener that serves the API of a frame."""
    supported = SUPPORTED_APIS.get(int.from_bytes(frame[:2], "big"))
    if supported is not None and supported.handled_by is HandledBy.CONTROLLER_ONLY:
        return ListenerRole.CONTROLLER
    return ListenerRole.BROKER


class FuzzHarness:
    """A node on virtual time and a disk in memory, which receives any frames."""

    def __init__(self) -> None:
        self.virtual_node = VirtualNode(PROPERTIES, now_ms=NOW_MS)
        self.host, self.disk, self.node = (
            self.virtual_node.host,
            self.virtual_node.disk,
            self.virtual_node.node,
        )
        self.node.has_telemetry_receiver = True
        self._control_client = self.virtual_node.connect()
        self._offset = 0
        configs = [
            CreatableTopicConfig(name=name, value=value) for name, value in CONTROL_TOPIC_CONFIGS.items()
        ]
        topics = [
            CreatableTopic(name=CONTROL_TOPIC, num_partitions=1, replication_factor=1, configs=configs),
            *(CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in TOPICS),
        ]
        made = self.call_control(7, CreateTopicsRequest(topics=topics, timeout_ms=1)).topics
        self.topic_ids = tuple(topic.topic_id for topic in made if topic.name in TOPICS)
        self.call_control(4, FindCoordinatorRequest(coordinator_keys=["g"]))
        self.check_control_topic()

    def call_control(self, version: int, request: Message) -> Any:
        """Send a valid request on the control connection and return the response."""
        self._control_client.send(version, request)
        answer = self._control_client.receive(version, type(request))
        if answer is None:
            raise BrokenNode(f"no answer to {request}")
        return answer

    def send(self, frames: Sequence[bytes], *, advance_ms: int = 0) -> None:
        """Send frames over one connection, let time pass, and close it. Raise if the node misbehaves.

        WireError ends the connection, as in the socket server. A client must be able to decode each response.
        """
        client = self.virtual_node.connect(role=listener_role(frames[0]) if frames else ListenerRole.BROKER)
        channel = client.channel
        numbered = with_correlation_ids(frames)
        with no_errors_in_the_log():
            for number, frame in enumerate(numbered):
                try:
                    client.submit_frame(b"size" + frame)
                except WireError:
                    self.virtual_node.turn()
                    check_replies(take_ready_bytes(channel), numbered[:number])
                    break
                self.virtual_node.turn()
                if channel.ending:
                    break
            else:
                self.host.advance(advance_ms)
                check_replies(take_ready_bytes(channel), numbered)
            self.node.channel_closed(channel)
            self.virtual_node.turn()

    def check_control_topic(self) -> None:
        """Check that another connection is still served."""
        answer = self.call_control(
            3, ApiVersionsRequest(client_software_name="well", client_software_version="1")
        )
        if answer.error_code or {one.api_key for one in answer.api_keys} != BROKER_APIS:
            raise BrokenNode(f"ApiVersions answers {answer}")
        value = b"%d" % self._offset
        data = PartitionProduceData(
            index=0, records=memoryview(build([(self.host.now_ms(), None, value, [])]))
        )
        topic = TopicProduceData(name=CONTROL_TOPIC, partition_data=[data])
        produced = self.call_control(9, ProduceRequest(acks=-1, timeout_ms=1, topic_data=[topic]))
        appended = produced.responses[0].partition_responses[0]
        if (appended.error_code, appended.base_offset) != (0, self._offset):
            raise BrokenNode(f"Produce answers {appended}")
        wanted = FetchPartition(partition=0, fetch_offset=self._offset, partition_max_bytes=1 << 20)
        fetch = FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=CONTROL_TOPIC, partitions=[wanted])]
        )
        fetched = self.call_control(12, fetch).responses[0].partitions[0]
        read = list(records(fetched.records, 0, read_header(fetched.records))) if fetched.records else []
        if [(record.offset, record.value) for record in read] != [(self._offset, value)]:
            raise BrokenNode(f"Fetch answers {fetched}")
        self._offset += 1


def check_replies(reply: bytes, sent_frames: Sequence[bytes]) -> None:
    """Check that each response belongs to a request, in their order, and can be decoded."""
    waiting = deque(decode_request_header(memoryview(frame))[0] for frame in sent_frames)
    while reply:
        size = int.from_bytes(reply[:4], "big", signed=True)
        frame, reply = reply[4 : 4 + size], reply[4 + size :]
        if len(frame) != size:
            raise BrokenNode(f"a reply of {size} bytes has {len(frame)}")
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        while waiting and waiting[0].correlation_id != correlation_id:
            header = waiting.popleft()
            if header.api_key != ApiKey.PRODUCE:
                raise BrokenNode(f"no reply to {header}")
        if not waiting:
            raise BrokenNode(f"a reply to no request: {frame[:100]!r}")
        header = waiting.popleft()
        version = header.api_version
        if (
            header.api_key == ApiKey.API_VERSIONS
            and not 0 <= version <= SUPPORTED_APIS[header.api_key].max_version
        ):
            version = 0  # KIP-511
        try:
            decode_response(API_VERSIONS[header.api_key].response_class, version, frame)
        except WireError as error:
            raise BrokenNode(f"the reply to {header} cannot be read: {error}") from error

"""Valid frames of every API and version that is served, what can be done to them, and a node to send them to.

The frames are made from the declarations, so that an API is fuzzed as soon as it is served.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from kwire.broker.api.request.context import Channel
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
SOUND = "sound"
"""The topic that must go on working; no frame names it."""

PROPERTIES = {
    "log.dirs": "/data",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    # A disk in memory has no holes: an index of the default size is ten megabytes there.
    "log.index.size.max.bytes": "16384",
}
SOUND_CONFIGS = {"max.message.bytes": "1048588", "min.insync.replicas": "1", "cleanup.policy": "delete"}

SERVED_VERSIONS = [
    (key, version)
    for key, served in SUPPORTED_APIS.items()
    for version in range(max(served.min_version, served.rejected_below), served.max_version + 1)
]
OF_BROKERS = apis_for(ListenerRole.BROKER).keys()


class Recorded(NamedTuple):
    """A frame without its size, and where in it record batches begin."""

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


def recorded(key: int, version: int, variant: int, topic_ids: Sequence[Uuid]) -> Recorded:
    """One of the valid frames of an API and version: always the same.

    The first `VARIANTS` are such as a client might send, those after them have wilder values here and there.
    """
    rng = random.Random(f"{key} {version} {variant}")
    making = _Making(version, rng, topic_ids, wild=variant >= VARIANTS)
    request = making.message(API_VERSIONS[key].request_class)
    frame = encode_request(request, version, 7, rng.choice(("fuzz", None)))[4:]
    return Recorded(frame, tuple(sorted({frame.index(batch) for batch in making.batches})))


class _Making:
    """A request in the making."""

    def __init__(self, version: int, rng: random.Random, topic_ids: Sequence[Uuid], *, wild: bool) -> None:
        self.version = version
        self.rng = rng
        self.topic_ids = topic_ids
        self.wild = wild
        self.batches: list[bytes] = []

    def message(self, message_class: type[Message]) -> Message:
        """A message with something in every field that this version has."""
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
            self.batches.append(a_batch(self.rng))
            return memoryview(self.batches[-1])
        return likely(message_class, field, self.version, self.rng, self.topic_ids)


def wild_integer(element: str, rng: random.Random) -> int:
    """An integer of this type: one at an edge, or any."""
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


def likely(
    message_class: type[Message],
    field: Field,
    version: int,
    rng: random.Random,
    topic_ids: Sequence[Uuid],
) -> Any:
    """A value that a client might send."""
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


def a_batch(rng: random.Random) -> bytes:
    """A batch of some kind; some are an idempotent producer's, some a transaction's."""
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


# --- changes

LIES = (
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
KINDS = ("overwrite", "insert", "delete", "repeat", "add", "truncate", "splice")
BODY_AT = 4
"""Where the frame goes on after the API's key and version, which are rarely changed."""


class Change(NamedTuple):
    """One change of a frame. Its numbers mean something for any frame."""

    kind: str
    at: int
    data: bytes
    amount: int


def changed(original: Recorded, changes: Sequence[Change], *, reseal: bool) -> Recorded:
    """The frame after these changes; with `reseal` its batches have a right CRC, so that they are read."""
    frame = bytearray(original.frame)
    for change in changes:
        start = 0 if change.amount % 16 == 15 else BODY_AT
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
    return Recorded(bytes(frame), original.batches)


# --- a node


class Broken(AssertionError):
    """The node did something that it must not do."""


class _Listener(logging.Handler):
    """Hears of failures that were answered with UNKNOWN_SERVER_ERROR."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: deque[logging.LogRecord] = deque(maxlen=10)

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record)


class FuzzHarness:
    """A node on virtual time and a disk in memory, that is sent whatever one likes."""

    def __init__(self) -> None:
        self.around = VirtualNode(PROPERTIES, now_ms=NOW_MS)
        self.host, self.disk, self.node = self.around.host, self.around.disk, self.around.node
        self.node.has_telemetry_receiver = True
        self._well = self.around.connect()
        self._offset = 0
        self._listener = _Listener()
        configs = [CreatableTopicConfig(name=name, value=value) for name, value in SOUND_CONFIGS.items()]
        topics = [
            CreatableTopic(name=SOUND, num_partitions=1, replication_factor=1, configs=configs),
            *(CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in TOPICS),
        ]
        made = self.ask(7, CreateTopicsRequest(topics=topics, timeout_ms=1)).topics
        self.topic_ids = tuple(topic.topic_id for topic in made if topic.name in TOPICS)
        self.ask(4, FindCoordinatorRequest(coordinator_keys=["g"]))
        self.check_sound()

    def ask(self, version: int, request: Message) -> Any:
        """What a client that behaves is answered."""
        self._well.send(version, request)
        answer = self._well.receive(version, type(request))
        if answer is None:
            raise Broken(f"no answer to {request}")
        return answer

    def send(self, frames: Sequence[bytes], *, advance_ms: int = 0) -> None:
        """Send frames over one connection, let time pass, and close it. Broken for what is our fault.

        WireError ends the connection, as the shell does; every answer must be one that a client can read.
        """
        logger = logging.getLogger("kwire")
        propagate, logger.propagate = logger.propagate, False
        logger.addHandler(self._listener)
        self._listener.heard.clear()
        key = int.from_bytes(frames[0][:2], "big") if frames else 0
        if key in SUPPORTED_APIS and SUPPORTED_APIS[key].handled_by is HandledBy.CONTROLLER_ONLY:
            client = self.around.connect(listener="CONTROLLER", role=ListenerRole.CONTROLLER)
        else:
            client = self.around.connect()
        channel = client.channel
        asked: list[bytes] = []
        try:
            for number, sent in enumerate(frames):
                # Numbered, so that replies can be told apart: Produce with acks=0 has none.
                frame = sent[:4] + number.to_bytes(4, "big") + sent[8:] if len(sent) >= 8 else sent
                asked.append(frame)
                try:
                    client.submit_frame(b"size" + frame)
                except WireError:
                    self.around.turn()
                    check_replies(channel, asked[:-1])
                    break
                self.around.turn()
                if channel.ending:
                    break
            else:
                self.host.advance(advance_ms)
                check_replies(channel, asked)
        finally:
            logger.removeHandler(self._listener)
            logger.propagate = propagate
        self.node.channel_closed(channel)
        self.around.turn()
        for heard in self._listener.heard:
            raise Broken(logging.Formatter().format(heard))

    def check_sound(self) -> None:
        """Another connection is served as ever."""
        answer = self.ask(3, ApiVersionsRequest(client_software_name="well", client_software_version="1"))
        if answer.error_code or {one.api_key for one in answer.api_keys} != OF_BROKERS:
            raise Broken(f"ApiVersions answers {answer}")
        value = b"%d" % self._offset
        data = PartitionProduceData(
            index=0, records=memoryview(build([(self.host.now_ms(), None, value, [])]))
        )
        topic = TopicProduceData(name=SOUND, partition_data=[data])
        produced = self.ask(9, ProduceRequest(acks=-1, timeout_ms=1, topic_data=[topic]))
        placed = produced.responses[0].partition_responses[0]
        if (placed.error_code, placed.base_offset) != (0, self._offset):
            raise Broken(f"Produce answers {placed}")
        wanted = FetchPartition(partition=0, fetch_offset=self._offset, partition_max_bytes=1 << 20)
        fetch = FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=SOUND, partitions=[wanted])]
        )
        fetched = self.ask(12, fetch).responses[0].partitions[0]
        read = list(records(fetched.records, 0, read_header(fetched.records))) if fetched.records else []
        if [(record.offset, record.value) for record in read] != [(self._offset, value)]:
            raise Broken(f"Fetch answers {fetched}")
        self._offset += 1


def check_replies(channel: Channel, asked: Sequence[bytes]) -> None:
    """Every reply is one to a request that was sent, in their order, and can be read."""
    reply = take_ready_bytes(channel)
    waiting = deque(decode_request_header(memoryview(frame))[0] for frame in asked)
    while reply:
        size = int.from_bytes(reply[:4], "big", signed=True)
        frame, reply = reply[4 : 4 + size], reply[4 + size :]
        if len(frame) != size:
            raise Broken(f"a reply of {size} bytes has {len(frame)}")
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        while waiting and waiting[0].correlation_id != correlation_id:
            header = waiting.popleft()
            if header.api_key != ApiKey.PRODUCE:
                raise Broken(f"no reply to {header}")
        if not waiting:
            raise Broken(f"a reply to no request: {frame[:100]!r}")
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
            raise Broken(f"the reply to {header} cannot be read: {error}") from error

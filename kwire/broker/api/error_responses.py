"""The response of each API to an error of the whole request: its handler failed, or its reply cannot be made.

Most APIs have no place for one error, so everything that the request names gets it: each topic, partition,
group or resource. `NAMED` says where that stands in the request and in the response; where the response has a
place at its top, that has the error too. What Apache Kafka's own classes answer is kept in
`tests/handlers/data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import DEFAULT_MESSAGES, ApiError, ErrorCode, WireError
from kwire.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kwire.wire.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from kwire.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from kwire.wire.messages.fetch import FetchRequest, FetchResponse
from kwire.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kwire.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kwire.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse
from kwire.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kwire.wire.messages.produce import ProduceRequest, ProduceResponse
from kwire.wire.registry import API_VERSIONS
from kwire.wire.schema import Message, fields_of


class Each(NamedTuple):
    """Every entry of a list in the request has its own in a list of the response."""

    asked: str
    answered: str
    named_by: tuple[str, ...]
    """The fields that tell which one it is. An entry that is a plain value goes into the first of them."""
    inner: Each | None = None
    """What is in each entry in its turn, and then has the error in its place."""
    fixed: Mapping[str, object] = {}
    """What else the response says where Kafka does not leave it at its default."""


def _topics(asked: str = "topics", answered: str = "topics", partitions: str = "partitions") -> Each:
    """By far the most: partitions by their index, in topics by their name."""
    return Each(asked, answered, ("name",), Each(partitions, "partitions", ("partition_index",)))


RESOURCE: Final = ("resource_type", "resource_name")
NAMED: Final[dict[int, Each]] = {
    ApiKey.PRODUCE: Each(
        "topic_data",
        "responses",
        ("name", "topic_id"),
        Each("partition_data", "partition_responses", ("index",), fixed={"base_offset": -1}),
    ),
    ApiKey.FETCH: Each(
        "topics",
        "responses",
        ("topic", "topic_id"),
        Each(
            "partitions",
            "partitions",
            ("partition_index=partition",),
            fixed={"high_watermark": -1, "aborted_transactions": [], "records": b""},
        ),
    ),
    ApiKey.LIST_OFFSETS: _topics(),
    ApiKey.METADATA: Each("topics", "topics", ("name", "topic_id")),
    ApiKey.OFFSET_COMMIT: Each(
        "topics",
        "topics",
        ("name", "topic_id"),
        Each("partitions", "partitions", ("partition_index",)),
    ),
    ApiKey.DESCRIBE_GROUPS: Each("groups", "groups", ("group_id",)),
    ApiKey.CREATE_TOPICS: Each("topics", "topics", ("name",)),
    ApiKey.DELETE_RECORDS: Each(
        "topics",
        "topics",
        ("name",),
        Each("partitions", "partitions", ("partition_index",), fixed={"low_watermark": -1}),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Each(
        "topics", "topics", ("topic",), Each("partitions", "partitions", ("partition",))
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Each(
        "v3_and_below_topics",
        "results_by_topic_v3_and_below",
        ("name",),
        Each("partitions", "results_by_partition", ("partition_index",)),
    ),
    ApiKey.WRITE_TXN_MARKERS: Each(
        "markers", "markers", ("producer_id",), _topics(partitions="partition_indexes")
    ),
    ApiKey.TXN_OFFSET_COMMIT: _topics(),
    ApiKey.DESCRIBE_CONFIGS: Each("resources", "results", RESOURCE),
    ApiKey.ALTER_CONFIGS: Each("resources", "responses", RESOURCE),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Each(
        "topics",
        "results",
        ("topic_name=name",),
        Each("partitions", "partitions", ("partition_index",)),
    ),
    ApiKey.CREATE_PARTITIONS: Each("topics", "results", ("name",)),
    ApiKey.DELETE_GROUPS: Each("groups_names", "results", ("group_id",)),
    ApiKey.ELECT_LEADERS: Each(
        "topic_partitions",
        "replica_election_results",
        ("topic",),
        Each("partitions", "partition_result", ("partition_id",)),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Each("resources", "responses", RESOURCE),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _topics(answered="responses"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _topics(partitions="partition_indexes"),
    ApiKey.DESCRIBE_PRODUCERS: _topics(partitions="partition_indexes"),
    ApiKey.DESCRIBE_TRANSACTIONS: Each("transactional_ids", "transaction_states", ("transactional_id",)),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Each("group_ids", "groups", ("group_id",)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Each("topics", "topics", ("name",)),
}
"""By API key. An API that is not here has its error at the top alone."""

ALWAYS_SAID: Final = {ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_QUORUM}
"""These have Kafka's own words where an error has none."""

ELECT_LEADERS_WITHOUT_TOP: Final = ApiKey.ELECT_LEADERS, 0
FIRST_FETCH_WITH_IDS: Final = 13
FIRST_ADD_PARTITIONS_IN_BATCHES: Final = 4
FIRST_DELETE_TOPICS_WITH_IDS: Final = 6
FIRST_FIND_COORDINATOR_IN_BATCHES: Final = 4
FIRST_JOIN_WITHOUT_PROTOCOL: Final = 7
FIRST_OFFSET_FETCH_WITH_ERROR: Final = 2
FIRST_OFFSET_FETCH_OF_GROUPS: Final = 8


def error_response(api_key: int, version: int, request: Any, error: ApiError) -> Message:
    """The response with `error` where a client looks for it. WireError where there can be none."""
    message = error.message
    if message is None and api_key in ALWAYS_SAID:
        message = DEFAULT_MESSAGES.get(error.code)
    special = SPECIAL.get(api_key)
    if special is not None:
        return special(request, version, error.code, message)
    response: Message = API_VERSIONS[api_key].response_class()
    if (api_key, version) != ELECT_LEADERS_WITHOUT_TOP:
        _tell(response, error.code, message)
    each = NAMED.get(api_key)
    if each is not None:
        _fill(response, each, getattr(request, each.asked), error.code, message)
    return response


def _tell(place: Message, code: ErrorCode, message: str | None) -> None:
    """Put the error into a message, as far as that has room for it."""
    fields = place.declared_fields
    for name, value in (("error_code", code), ("partition_error_code", code), ("error_message", message)):
        if name in fields:
            setattr(place, name, value)


def _fill(
    response: Message, each: Each, asked: Iterable[Any] | None, code: ErrorCode, message: str | None
) -> None:
    (entry_class,) = (one.message for one in fields_of(type(response)) if one.name == each.answered)
    assert entry_class is not None
    entries = getattr(response, each.answered)
    for one in asked or ():
        entry = entry_class(**each.fixed)
        for name in each.named_by:
            target, _, source = name.partition("=")
            setattr(entry, target, getattr(one, source or target) if isinstance(one, Message) else one)
        if each.inner is None:
            _tell(entry, code, message)
        else:
            _fill(entry, each.inner, getattr(one, each.inner.asked), code, message)
        entries.append(entry)


def _produce(request: ProduceRequest, version: int, code: ErrorCode, message: str | None) -> Message:
    if not request.acks:
        raise WireError("a Produce request failed that asks for no answer")
    response = ProduceResponse()
    _fill(response, NAMED[ApiKey.PRODUCE], request.topic_data, code, message)
    return response


def _fetch(request: FetchRequest, version: int, code: ErrorCode, message: str | None) -> Message:
    response = FetchResponse(error_code=code, session_id=request.session_id)
    if version < FIRST_FETCH_WITH_IDS:
        _fill(response, NAMED[ApiKey.FETCH], request.topics, code, message)
    return response


def _metadata(request: MetadataRequest, version: int, code: ErrorCode, message: str | None) -> Message:
    response = MetadataResponse(error_code=code)
    _fill(response, NAMED[ApiKey.METADATA], request.topics, code, message)
    for topic in response.topics:
        topic.name = topic.name or ""
    return response


def _offset_fetch(request: OffsetFetchRequest, version: int, code: ErrorCode, message: str | None) -> Message:
    response = OffsetFetchResponse()
    if version >= FIRST_OFFSET_FETCH_OF_GROUPS:
        _fill(response, Each("groups", "groups", ("group_id",)), request.groups, code, message)
    elif version >= FIRST_OFFSET_FETCH_WITH_ERROR:
        response.error_code = code
    else:
        partition = Each(
            "partition_indexes",
            "partitions",
            ("partition_index",),
            fixed={"committed_offset": -1, "metadata": ""},
        )
        _fill(response, Each("topics", "topics", ("name",), partition), request.topics, code, message)
    return response


def _find_coordinator(
    request: FindCoordinatorRequest, version: int, code: ErrorCode, message: str | None
) -> Message:
    if version < FIRST_FIND_COORDINATOR_IN_BATCHES:
        return FindCoordinatorResponse(error_code=code, error_message=message, node_id=-1, port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=message)
            for key in request.coordinator_keys
        ]
    )


def _join_group(request: JoinGroupRequest, version: int, code: ErrorCode, message: str | None) -> Message:
    protocol_name = None if version >= FIRST_JOIN_WITHOUT_PROTOCOL else ""
    return JoinGroupResponse(error_code=code, generation_id=-1, protocol_name=protocol_name)


def _delete_topics(
    request: DeleteTopicsRequest, version: int, code: ErrorCode, message: str | None
) -> Message:
    if version >= FIRST_DELETE_TOPICS_WITH_IDS:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, DeletableTopicResult().topic_id) for name in request.topic_names]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=name, topic_id=topic_id, error_code=code) for name, topic_id in asked
        ]
    )


def _init_producer_id(
    request: InitProducerIdRequest, version: int, code: ErrorCode, message: str | None
) -> Message:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def _add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, version: int, code: ErrorCode, message: str | None
) -> Message:
    response = AddPartitionsToTxnResponse()
    if version >= FIRST_ADD_PARTITIONS_IN_BATCHES:
        response.error_code = code
    else:
        each = NAMED[ApiKey.ADD_PARTITIONS_TO_TXN]
        _fill(response, each, request.v3_and_below_topics, code, message)
    return response


def _alter_replica_log_dirs(
    request: AlterReplicaLogDirsRequest, version: int, code: ErrorCode, message: str | None
) -> Message:
    response = AlterReplicaLogDirsResponse()
    for directory in request.dirs:
        _fill(response, NAMED[ApiKey.ALTER_REPLICA_LOG_DIRS], directory.topics, code, message)
    return response


SPECIAL: Final[dict[int, Callable[[Any, int, ErrorCode, str | None], Message]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions_to_txn,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
}
"""What hangs on the version, or is none of the request's own lists."""

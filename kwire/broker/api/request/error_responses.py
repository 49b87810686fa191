"""Error responses for a whole request, for a handler that fails or a response that cannot be encoded.

Most responses have no field for a single error. So each item of the request (each topic, partition, group or
resource) gets the error. `ITEM_ERRORS` has the fields with these items. A top-level error field of the
response is set as well. `tests/broker/api/data` has the error responses of Apache Kafka's own classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kwire.broker.security.principal import ANONYMOUS
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import DEFAULT_MESSAGES, ApiError, ErrorCode, WireError
from kwire.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsResult
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.registry import API_VERSIONS
from kwire.wire.schema import Message, fields_of


class ItemErrors(NamedTuple):
    """A list in the request and a list in the response: each request item gets one response item."""

    request_field: str
    response_field: str
    key_fields: tuple[str, ...]
    """The fields that identify an item. Their values are copied from the request item.

    `a=b` means that field `a` in the response has the value of field `b` in the request. A request item that
    is a plain value becomes the value of the field.
    """
    inner: ItemErrors | None = None
    """The items nested in each item, or None. If there are nested items, these get the error instead."""
    other_fields: Mapping[str, object] = {}
    """Other fields of a response item for which Kafka uses a value other than the default."""


def _topics(
    request_field: str = "topics", response_field: str = "topics", partitions: str = "partitions"
) -> ItemErrors:
    """Return the `ItemErrors` for topics by name with partitions by index, which is the most common case."""
    return ItemErrors(
        request_field, response_field, ("name",), ItemErrors(partitions, "partitions", ("partition_index",))
    )


RESOURCE: Final = ("resource_type", "resource_name")
ITEM_ERRORS: Final[dict[int, ItemErrors]] = {
    ApiKey.PRODUCE: ItemErrors(
        "topic_data",
        "responses",
        ("name", "topic_id"),
        ItemErrors("partition_data", "partition_responses", ("index",), other_fields={"base_offset": -1}),
    ),
    ApiKey.FETCH: ItemErrors(
        "topics",
        "responses",
        ("topic", "topic_id"),
        ItemErrors(
            "partitions",
            "partitions",
            ("partition_index=partition",),
            other_fields={"high_watermark": -1, "aborted_transactions": [], "records": b""},
        ),
    ),
    ApiKey.LIST_OFFSETS: _topics(),
    ApiKey.METADATA: ItemErrors("topics", "topics", ("name", "topic_id")),
    ApiKey.OFFSET_COMMIT: ItemErrors(
        "topics",
        "topics",
        ("name", "topic_id"),
        ItemErrors("partitions", "partitions", ("partition_index",)),
    ),
    ApiKey.DESCRIBE_GROUPS: ItemErrors("groups", "groups", ("group_id",)),
    ApiKey.CREATE_TOPICS: ItemErrors("topics", "topics", ("name",)),
    ApiKey.DELETE_RECORDS: ItemErrors(
        "topics",
        "topics",
        ("name",),
        ItemErrors("partitions", "partitions", ("partition_index",), other_fields={"low_watermark": -1}),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ItemErrors(
        "topics", "topics", ("topic",), ItemErrors("partitions", "partitions", ("partition",))
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: ItemErrors(
        "v3_and_below_topics",
        "results_by_topic_v3_and_below",
        ("name",),
        ItemErrors("partitions", "results_by_partition", ("partition_index",)),
    ),
    ApiKey.WRITE_TXN_MARKERS: ItemErrors(
        "markers", "markers", ("producer_id",), _topics(partitions="partition_indexes")
    ),
    ApiKey.TXN_OFFSET_COMMIT: _topics(),
    ApiKey.CREATE_ACLS: ItemErrors("creations", "results", ()),
    ApiKey.DELETE_ACLS: ItemErrors("filters", "filter_results", ()),
    ApiKey.DESCRIBE_CONFIGS: ItemErrors("resources", "results", RESOURCE),
    ApiKey.ALTER_CONFIGS: ItemErrors("resources", "responses", RESOURCE),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ItemErrors(
        "topics",
        "results",
        ("topic_name=name",),
        ItemErrors("partitions", "partitions", ("partition_index",)),
    ),
    ApiKey.CREATE_PARTITIONS: ItemErrors("topics", "results", ("name",)),
    ApiKey.DELETE_GROUPS: ItemErrors("groups_names", "results", ("group_id",)),
    ApiKey.ELECT_LEADERS: ItemErrors(
        "topic_partitions",
        "replica_election_results",
        ("topic",),
        ItemErrors("partitions", "partition_result", ("partition_id",)),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ItemErrors("resources", "responses", RESOURCE),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _topics(response_field="responses"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _topics(partitions="partition_indexes"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ItemErrors("users", "results", ()),
    ApiKey.DESCRIBE_PRODUCERS: _topics(partitions="partition_indexes"),
    ApiKey.DESCRIBE_TRANSACTIONS: ItemErrors(
        "transactional_ids", "transaction_states", ("transactional_id",)
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ItemErrors("group_ids", "groups", ("group_id",)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ItemErrors("topics", "topics", ("name",)),
}
"""By API key, the items that get an error. Except for `SPECIAL`, other APIs have only a top-level error."""

WITH_DEFAULT_MESSAGE: Final = {
    ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.CONTROLLER_REGISTRATION,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
}
"""The APIs in which an error without a message is sent with Kafka's default message."""

ELECT_LEADERS_WITHOUT_TOP: Final = ApiKey.ELECT_LEADERS, 0
FIRST_FETCH_WITH_IDS: Final = 13
FIRST_ADD_PARTITIONS_IN_BATCHES: Final = 4
FIRST_DELETE_TOPICS_WITH_IDS: Final = 6
FIRST_FIND_COORDINATOR_IN_BATCHES: Final = 4
FIRST_JOIN_WITHOUT_PROTOCOL: Final = 7
FIRST_TOKEN_WITH_REQUESTER: Final = 3
FIRST_OFFSET_FETCH_WITH_ERROR: Final = 2
FIRST_OFFSET_FETCH_OF_GROUPS: Final = 8


def error_response(api_key: int, version: int, request: Any, error: ApiError) -> Message:
    """Return a response with `error` in the fields that clients check.

    Raises WireError for a Produce with acks=0, which gets no response.
    """
    message = error.message
    if message is None and api_key in WITH_DEFAULT_MESSAGE:
        message = DEFAULT_MESSAGES.get(error.code)
    response: Message = API_VERSIONS[api_key].response_class()
    special = SPECIAL.get(api_key)
    if special is not None:
        special(response, request, version, error.code, message)
        return response
    if (api_key, version) != ELECT_LEADERS_WITHOUT_TOP:
        _set_error(response, error.code, message)
    items = ITEM_ERRORS.get(api_key)
    if items is not None:
        _fill(response, items, getattr(request, items.request_field), error.code, message)
    return response


def _set_error(message_or_item: Message, code: ErrorCode, message: str | None) -> None:
    """Set those error fields that the message or item has."""
    fields = message_or_item.declared_fields
    for name, value in (("error_code", code), ("partition_error_code", code), ("error_message", message)):
        if name in fields:
            setattr(message_or_item, name, value)


def _fill(
    response: Message,
    items: ItemErrors,
    requested: Iterable[Any] | None,
    code: ErrorCode,
    message: str | None,
) -> None:
    (entry_class,) = (one.message for one in fields_of(type(response)) if one.name == items.response_field)
    assert entry_class is not None
    entries = getattr(response, items.response_field)
    for one in requested or ():
        entry = entry_class(**items.other_fields)
        for name in items.key_fields:
            target, _, source = name.partition("=")
            setattr(entry, target, getattr(one, source or target) if isinstance(one, Message) else one)
        if items.inner is None:
            _set_error(entry, code, message)
        else:
            _fill(entry, items.inner, getattr(one, items.inner.request_field), code, message)
        entries.append(entry)


def _produce(response: Any, request: Any, version: int, code: ErrorCode, message: str | None) -> None:
    if not request.acks:
        raise WireError("a Produce request with acks=0 failed, and gets no response")
    _fill(response, ITEM_ERRORS[ApiKey.PRODUCE], request.topic_data, code, message)


def _fetch(response: Any, request: Any, version: int, code: ErrorCode, message: str | None) -> None:
    response.error_code, response.session_id = code, request.session_id
    if version < FIRST_FETCH_WITH_IDS:
        _fill(response, ITEM_ERRORS[ApiKey.FETCH], request.topics, code, message)


def _metadata(response: Any, request: Any, version: int, code: ErrorCode, message: str | None) -> None:
    response.error_code = code
    _fill(response, ITEM_ERRORS[ApiKey.METADATA], request.topics, code, message)
    for topic in response.topics:
        topic.name = topic.name or ""


def _offset_fetch(response: Any, request: Any, version: int, code: ErrorCode, message: str | None) -> None:
    if version >= FIRST_OFFSET_FETCH_OF_GROUPS:
        _fill(response, ItemErrors("groups", "groups", ("group_id",)), request.groups, code, message)
    elif version >= FIRST_OFFSET_FETCH_WITH_ERROR:
        response.error_code = code
    else:
        nothing = {"committed_offset": -1, "metadata": ""}
        partition = ItemErrors("partition_indexes", "partitions", ("partition_index",), other_fields=nothing)
        _fill(response, ItemErrors("topics", "topics", ("name",), partition), request.topics, code, message)


def _find_coordinator(
    response: Any, request: Any, version: int, code: ErrorCode, message: str | None
) -> None:
    if version < FIRST_FIND_COORDINATOR_IN_BATCHES:
        response.error_code, response.error_message = code, message
        response.node_id = response.port = -1
    else:
        items = ItemErrors(
            "coordinator_keys", "coordinators", ("key",), other_fields={"node_id": -1, "port": -1}
        )
        _fill(response, items, request.coordinator_keys, code, message)


def _join_group(response: Any, request: Any, version: int, code: ErrorCode, message: str | None) -> None:
    response.error_code, response.generation_id = code, -1
    response.protocol_name = None if version >= FIRST_JOIN_WITHOUT_PROTOCOL else ""


def _delete_topics(response: Any, request: Any, version: int, code: ErrorCode, message: str | None) -> None:
    if version >= FIRST_DELETE_TOPICS_WITH_IDS:
        _fill(response, ItemErrors("topics", "responses", ("name", "topic_id")), request.topics, code, None)
    else:
        _fill(response, ItemErrors("topic_names", "responses", ("name",)), request.topic_names, code, None)


def _init_producer_id(
    response: Any, request: Any, version: int, code: ErrorCode, message: str | None
) -> None:
    response.error_code = code
    response.producer_id = response.producer_epoch = -1


def _add_partitions_to_txn(
    response: Any, request: Any, version: int, code: ErrorCode, message: str | None
) -> None:
    if version >= FIRST_ADD_PARTITIONS_IN_BATCHES:
        response.error_code = code
    else:
        items = ITEM_ERRORS[ApiKey.ADD_PARTITIONS_TO_TXN]
        _fill(response, items, request.v3_and_below_topics, code, message)


def _alter_replica_log_dirs(
    response: Any, request: Any, version: int, code: ErrorCode, message: str | None
) -> None:
    for directory in request.dirs:
        _fill(response, ITEM_ERRORS[ApiKey.ALTER_REPLICA_LOG_DIRS], directory.topics, code, message)


def _create_delegation_token(
    response: Any, request: Any, version: int, code: ErrorCode, message: str | None
) -> None:
    response.error_code = code
    response.principal_type, response.principal_name = ANONYMOUS[:2]
    response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = -1
    if version >= FIRST_TOKEN_WITH_REQUESTER:
        response.token_requester_principal_type, response.token_requester_principal_name = ANONYMOUS[:2]


def _describe_client_quotas(
    response: Any, request: Any, version: int, code: ErrorCode, message: str | None
) -> None:
    response.error_code, response.error_message, response.entries = code, message, None


def _alter_user_scram_credentials(
    response: Any, request: Any, version: int, code: ErrorCode, message: str | None
) -> None:
    for name in sorted({one.name for one in (*request.deletions, *request.upsertions)}):
        result = AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message)
        response.results.append(result)


SPECIAL: Final[dict[int, Callable[[Any, Any, int, ErrorCode, str | None], None]]] = {
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
    ApiKey.CREATE_DELEGATION_TOKEN: _create_delegation_token,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _describe_client_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_user_scram_credentials,
}
"""Functions that fill error responses that depend on the version or do not list the request's items."""

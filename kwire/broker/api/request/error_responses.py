"""Error responses for a whole request, and results for the items of a request.

Most responses have no field for a single error. So each item of the request (each topic, partition, group or
resource) gets the error. `ITEM_ERRORS` has the fields with these items. A top-level error field of the
response is set as well. `tests/broker/api/data` has the error responses of Apache Kafka's own classes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from copy import copy
from itertools import islice, repeat
from typing import Any, Final, TypeVar

from kwire.broker.controller.commands import Fault
from kwire.broker.security.principal import ANONYMOUS
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import DEFAULT_MESSAGES, ApiError, ErrorCode, WireError
from kwire.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsResult
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.registry import API_VERSIONS
from kwire.wire.schema import Message, fields_of

MessageT = TypeVar("MessageT", bound=Message)


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


def _topics(*key_fields: str, response_field: str = "topics", partitions: str = "partitions") -> ItemErrors:
    """Return the `ItemErrors` for topics, usually by name, with partitions by index."""
    inner = ItemErrors(partitions, "partitions", ("partition_index",))
    return ItemErrors("topics", response_field, key_fields or ("name",), inner)


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
    ApiKey.OFFSET_COMMIT: _topics("name", "topic_id"),
    ApiKey.DELETE_TOPICS: ItemErrors("topics", "responses", ("name", "topic_id")),
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
    ApiKey.ALTER_CLIENT_QUOTAS: ItemErrors("entries", "entries", ("entity",)),
    ApiKey.CREATE_ACLS: ItemErrors("creations", "results", ()),
    ApiKey.DELETE_ACLS: ItemErrors("filters", "filter_results", ()),
    ApiKey.DESCRIBE_CONFIGS: ItemErrors("resources", "results", RESOURCE),
    ApiKey.ALTER_CONFIGS: ItemErrors("resources", "responses", RESOURCE),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _topics("topic_name=name", response_field="results"),
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

ITEM_RESULTS: Final[dict[int, ItemErrors]] = {
    ApiKey.OFFSET_DELETE: _topics(),
    ApiKey.DESCRIBE_QUORUM: _topics("topic_name"),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: ItemErrors("directories", "directories", ("id",), _topics("topic_id")),
}
"""By API key, items with results that an error response to the complete request does not contain."""

WITH_DEFAULT_MESSAGE: Final = {
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.CONTROLLER_REGISTRATION,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
}
"""The APIs in which an error without a message is sent with Kafka's default message."""

SLICE_ITEMS: Final = 256
"""The number of results in a slice of a large response."""
NO_FAULT: Final = Fault(ErrorCode.NONE)
"""The result of an item that succeeded."""

ELECT_LEADERS_WITHOUT_TOP: Final = ApiKey.ELECT_LEADERS, 0
FIRST_FETCH_WITH_IDS: Final = 13
FIRST_ADD_PARTITIONS_IN_BATCHES: Final = 4
TOPIC_NAMES_TO_DELETE: Final = ItemErrors("topic_names", "responses", ("name",))
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
    fault = Fault(error.code, message)
    response: Message = API_VERSIONS[api_key].response_class()
    special = SPECIAL.get(api_key)
    if special is not None:
        special(response, request, version, fault)
        return response
    if (api_key, version) != ELECT_LEADERS_WITHOUT_TOP:
        _set_error(response, fault)
    items = ITEM_ERRORS.get(api_key)
    if items is not None:
        _fill(response, items, getattr(request, items.request_field), repeat(fault))
    return response


def with_results(
    api_key: int, response: MessageT, request: Message, faults: Iterable[Fault | None]
) -> MessageT:
    """Add one result for each item of the request to the response, and return the response.

    `faults` are the errors of the items in the order of the request; None for an item that succeeded.
    """
    items = items_of(api_key)
    _fill(response, items, getattr(request, items.request_field), iter(faults))
    return response


def items_of(api_key: int, version: int = FIRST_DELETE_TOPICS_WITH_IDS) -> ItemErrors:
    """Return the items of a request that names several resources. DeleteTopics first had a list of names."""
    if api_key == ApiKey.DELETE_TOPICS and version < FIRST_DELETE_TOPICS_WITH_IDS:
        return TOPIC_NAMES_TO_DELETE
    return ITEM_RESULTS.get(api_key) or ITEM_ERRORS[api_key]


class ItemResults:
    """Results that are known before a request is handled. The response to the other items gets them."""

    def __init__(self, api_key: int, version: int) -> None:
        self.items = items_of(api_key, version)
        self._results: dict[int, tuple[Any, Fault]] = {}
        """The items with their results, by their positions in the request in ascending order."""

    def __len__(self) -> int:
        return len(self._results)

    def add(self, position: int, item: object, fault: Fault) -> None:
        self._results[position] = item, fault

    def rest_of(self, request: MessageT) -> MessageT:
        """Return a copy of the request without the items that have results."""
        rest, field = copy(request), self.items.request_field
        items = enumerate(getattr(request, field))
        setattr(rest, field, [item for position, item in items if position not in self._results])
        return rest

    def add_to(self, response: Message) -> None:
        """Add the results to the response to the other items, unless the complete request has failed."""
        for _ in self.add_to_in_slices(response):
            pass

    def add_to_in_slices(self, response: Message) -> Generator[None, None, None]:
        """Do the work of `add_to` for a large request in slices."""
        if getattr(response, "error_code", ErrorCode.NONE):
            return
        field = self.items.response_field
        entry_class = _entry_class(response, field)
        others, entries = iter(getattr(response, field)), list[Any]()
        for number, (position, (item, fault)) in enumerate(self._results.items(), 1):
            entries += islice(others, max(0, position - len(entries)))
            entries.append(_entry(entry_class, self.items, item, repeat(fault)))
            if not number % SLICE_ITEMS:
                yield
        setattr(response, field, [*entries, *others])


def _set_error(message_or_item: Message, fault: Fault) -> None:
    """Set those error fields that the message or item has."""
    code, message = fault
    fields = message_or_item.declared_fields
    for name, value in (("error_code", code), ("partition_error_code", code), ("error_message", message)):
        if name in fields:
            setattr(message_or_item, name, value)


def _fill(
    response: Message, items: ItemErrors, requested: Iterable[Any] | None, faults: Iterator[Fault | None]
) -> None:
    """Add an entry for each requested item. Each innermost item takes the next fault."""
    entry_class = _entry_class(response, items.response_field)
    entries = getattr(response, items.response_field)
    entries += [_entry(entry_class, items, one, faults) for one in requested or ()]


def _entry_class(response: Message, field: str) -> type[Message]:
    (entry_class,) = (one.message for one in fields_of(type(response)) if one.name == field)
    assert entry_class is not None
    return entry_class


def _entry(
    entry_class: type[Message], items: ItemErrors, requested: Any, faults: Iterator[Fault | None]
) -> Message:
    """Return the entry for one item in the response."""
    entry = entry_class(**items.other_fields)
    for name in items.key_fields:
        target, _, source = name.partition("=")
        value = getattr(requested, source or target) if isinstance(requested, Message) else requested
        setattr(entry, target, value)
    if items.inner is None:
        _set_error(entry, next(faults) or NO_FAULT)
    else:
        _fill(entry, items.inner, getattr(requested, items.inner.request_field), faults)
    return entry


def _produce(response: Any, request: Any, version: int, fault: Fault) -> None:
    if not request.acks:
        raise WireError("a Produce request with acks=0 failed, and gets no response")
    if fault.code == ErrorCode.UNKNOWN_SERVER_ERROR:
        fault = Fault(fault.code)
    _fill(response, ITEM_ERRORS[ApiKey.PRODUCE], request.topic_data, repeat(fault))


def _fetch(response: Any, request: Any, version: int, fault: Fault) -> None:
    response.error_code, response.session_id = fault.code, request.session_id
    if version < FIRST_FETCH_WITH_IDS:
        _fill(response, ITEM_ERRORS[ApiKey.FETCH], request.topics, repeat(fault))


def _metadata(response: Any, request: Any, version: int, fault: Fault) -> None:
    response.error_code = fault.code
    _fill(response, ITEM_ERRORS[ApiKey.METADATA], request.topics, repeat(fault))
    for topic in response.topics:
        topic.name = topic.name or ""


def _offset_fetch(response: Any, request: Any, version: int, fault: Fault) -> None:
    if version >= FIRST_OFFSET_FETCH_OF_GROUPS:
        _fill(response, ItemErrors("groups", "groups", ("group_id",)), request.groups, repeat(fault))
    elif version >= FIRST_OFFSET_FETCH_WITH_ERROR:
        response.error_code = fault.code
    else:
        nothing = {"committed_offset": -1, "metadata": ""}
        partition = ItemErrors("partition_indexes", "partitions", ("partition_index",), other_fields=nothing)
        _fill(response, ItemErrors("topics", "topics", ("name",), partition), request.topics, repeat(fault))


def _find_coordinator(response: Any, request: Any, version: int, fault: Fault) -> None:
    if version < FIRST_FIND_COORDINATOR_IN_BATCHES:
        response.error_code, response.error_message = fault
        response.node_id = response.port = -1
    else:
        items = ItemErrors(
            "coordinator_keys", "coordinators", ("key",), other_fields={"node_id": -1, "port": -1}
        )
        _fill(response, items, request.coordinator_keys, repeat(fault))


def _join_group(response: Any, request: Any, version: int, fault: Fault) -> None:
    response.error_code, response.generation_id = fault.code, -1
    response.protocol_name = None if version >= FIRST_JOIN_WITHOUT_PROTOCOL else ""


def _delete_topics(response: Any, request: Any, version: int, fault: Fault) -> None:
    items = items_of(ApiKey.DELETE_TOPICS, version)
    _fill(response, items, getattr(request, items.request_field), repeat(Fault(fault.code)))


def _init_producer_id(response: Any, request: Any, version: int, fault: Fault) -> None:
    response.error_code = fault.code
    response.producer_id = response.producer_epoch = -1


def _add_partitions_to_txn(response: Any, request: Any, version: int, fault: Fault) -> None:
    if version >= FIRST_ADD_PARTITIONS_IN_BATCHES:
        response.error_code = fault.code
    else:
        items = ITEM_ERRORS[ApiKey.ADD_PARTITIONS_TO_TXN]
        _fill(response, items, request.v3_and_below_topics, repeat(fault))


def _alter_replica_log_dirs(response: Any, request: Any, version: int, fault: Fault) -> None:
    for directory in request.dirs:
        _fill(response, ITEM_ERRORS[ApiKey.ALTER_REPLICA_LOG_DIRS], directory.topics, repeat(fault))


def _create_delegation_token(response: Any, request: Any, version: int, fault: Fault) -> None:
    response.error_code = fault.code
    response.principal_type, response.principal_name = ANONYMOUS[:2]
    response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = -1
    if version >= FIRST_TOKEN_WITH_REQUESTER:
        response.token_requester_principal_type, response.token_requester_principal_name = ANONYMOUS[:2]


def _describe_client_quotas(response: Any, request: Any, version: int, fault: Fault) -> None:
    (response.error_code, response.error_message), response.entries = fault, None


def _alter_user_scram_credentials(response: Any, request: Any, version: int, fault: Fault) -> None:
    for name in sorted({one.name for one in (*request.deletions, *request.upsertions)}):
        result = AlterUserScramCredentialsResult(user=name)
        _set_error(result, fault)
        response.results.append(result)


SPECIAL: Final[dict[int, Callable[[Any, Any, int, Fault], None]]] = {
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

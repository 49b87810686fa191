"""The authorization of requests: what each API needs is compared with the rules of the authorizer.

The gate takes denied items out of a request before its handler is called. Their errors are added to the
response (`ItemResults`). Handlers ask the gate about everything that `needs` leaves to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from copy import copy
from sys import maxsize
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kwire.broker.api.request.error_responses import WITH_DEFAULT_MESSAGE, ItemResults, items_of
from kwire.broker.api.request.needs import ByHandler, ItemNeed, References
from kwire.broker.api.request.requester import Requester
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS
from kwire.broker.controller.commands import Fault
from kwire.broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    MetadataImage,
)
from kwire.broker.metadata.topic_names import topic_name_fault
from kwire.broker.security.authorizer import ANY_NAME, CLUSTER_NAME, Operation, ResourceType
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.broker.storage.log.validator import is_transactional
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.audit_log import AuditLog
    from kwire.broker.security.standard_authorizer import StandardAuthorizer

DENIED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The error for each resource type."""

CONFIG_TYPES: Final = {
    RESOURCE_TOPIC: ResourceType.TOPIC,
    RESOURCE_GROUP: ResourceType.GROUP,
    RESOURCE_BROKER: ResourceType.CLUSTER,
    RESOURCE_BROKER_LOGGER: ResourceType.CLUSTER,
    RESOURCE_CLIENT_METRICS: ResourceType.CLUSTER,
}
"""The resources of ACLs by the resource types of configurations."""

_REPEATED_FIRST: Final = {
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
}
"""The APIs in which an item that occurs several times is an error, whether it is allowed or denied."""

_FIRST_WITHOUT_NAMES: Final[dict[int, int]] = {ApiKey.PRODUCE: 13, ApiKey.OFFSET_COMMIT: 10}
"""By API key, the first version in which items have a topic id in place of a name. No topic has id 0."""

_WITH_DEFAULT_MESSAGE: Final = WITH_DEFAULT_MESSAGE | {
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DESCRIBE_PRODUCERS,
}
"""The APIs that send Kafka's default message with the error of an item."""


def _only_need(api_key: int) -> tuple[str, str, Operation, ResourceType, References] | None:
    """Return the field of the items, the field of an item's name, what each item needs, and how it counts.

    Return None for an API that needs something else too, or for which other checks come before rights.
    """
    needs = [need for need in SUPPORTED_APIS[api_key].needs if not isinstance(need, ByHandler)]
    if len(needs) != 1 or not isinstance(needs[0], ItemNeed) or api_key in _REPEATED_FIRST:
        return None
    (need,) = needs
    assert isinstance(need, ItemNeed)
    if need.resource_type is None or need.or_on_cluster is not None or api_key == ApiKey.DESCRIBE_PRODUCERS:
        return None
    items = items_of(api_key)
    name_field = items.key_fields[0].rpartition("=")[2]
    return items.request_field, name_field, need.operation, need.resource_type, need.references


_ONLY_NEEDS: Final = {
    api_key: found for api_key in SUPPORTED_APIS if (found := _only_need(api_key)) is not None
}
_WITHOUT_NEED: Final = WITH_DEFAULT_MESSAGE | {
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
}
"""The APIs whose error does not say which operation on the cluster is denied, as in Apache Kafka."""


NameT = TypeVar("NameT", str, str | None)

SLICE_ITEMS: Final = 64
"""The number of items in a slice of a large request, which take about 5 ms if all of them are denied."""


class Gate:
    """Authorizes the requests of one node. Without an authorizer, every request is allowed."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self.authorizer: StandardAuthorizer | None = None
        """The authorizer with the current ACLs, for new requests. After a change, no request is repeated."""
        self.audit_log: AuditLog | None = None

    def authorizer_of(self, context: Requester) -> StandardAuthorizer | None:
        """Return the authorizer for all decisions about a request: the current one at the first decision.

        A request that takes several turns of the event loop, or that waits, sees one version of the ACLs.
        """
        authorizer = context.authorizer
        if authorizer is None:
            authorizer = context.authorizer = self.authorizer
        return authorizer

    def allows(
        self,
        context: Requester,
        operation: Operation,
        resource_type: ResourceType = ResourceType.CLUSTER,
        name: str = CLUSTER_NAME,
        *,
        is_asked: bool = True,
        references: int | Callable[[str], int] = 1,
    ) -> bool:
        """Return whether the client may perform an operation on a resource.

        `is_asked` is False if the client did not ask for this operation, which is not an incident then.
        `references` is the number of times that the request names the resource, or returns it for the
        resource's name if it is needed; 0 if the audit log must not have the check.
        """
        if self.authorizer is None:
            return True
        authorizer = context.authorizer
        if authorizer is None:
            authorizer = context.authorizer = self.authorizer
        is_allowed = authorizer.allows(context.principal, context.peer_host, operation, resource_type, name)
        audit_log = self.audit_log
        if audit_log is None or not references or (is_allowed and audit_log.count_allowed(1)):
            return is_allowed
        audit_log.record(
            *(authorizer, context, operation, resource_type, name),
            is_allowed=is_allowed,
            is_asked=is_asked,
            references=references if isinstance(references, int) else references(name),
        )
        return is_allowed

    def allows_any(self, context: Requester, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the client may perform an operation on at least one resource of a type."""
        authorizer = self.authorizer_of(context)
        if authorizer is None:
            return True
        client = context.principal, context.peer_host
        if self.audit_log is not None:
            # As in Apache Kafka, the audit log only has the check that comes first.
            self.audit_log.record(
                *(authorizer, context, operation, resource_type, ANY_NAME),
                is_allowed=authorizer.allows(*client, operation, resource_type, ANY_NAME),
                is_asked=False,
                references=0,
            )
        return authorizer.allows_any(*client, operation, resource_type)

    def report_denied(self, context: Requester, operation: Operation) -> None:
        """Report a denied operation on the cluster that is not an incident in the audit log."""
        authorizer = self.authorizer_of(context)
        if authorizer is not None and self.audit_log is not None:
            self.audit_log.report_denied(authorizer, context, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def require(
        self,
        context: Requester,
        operation: Operation,
        resource_type: ResourceType = ResourceType.CLUSTER,
        name: str = CLUSTER_NAME,
    ) -> None:
        """Raise ApiError unless the client may perform an operation on a resource."""
        if not self.allows(context, operation, resource_type, name):
            says_what = resource_type is ResourceType.CLUSTER and context.header.api_key not in _WITHOUT_NEED
            message = f"The request needs {operation.name} permission." if says_what else None
            raise ApiError(DENIED[resource_type], message)

    def admit(self, context: Requester, request: Any) -> tuple[Any, ItemResults | None]:
        """Return the allowed part of a request, and the errors of its denied items, if there are any.

        Raises ApiError if the complete request is denied.
        """
        only_need = _ONLY_NEEDS.get(context.header.api_key)
        if only_need is not None and self._allows_all(context, request, *only_need):
            return request, None
        steps = self.admit_in_slices(context, request)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                admitted: tuple[Any, ItemResults | None] = end.value
                return admitted

    def admit_in_slices(
        self, context: Requester, request: Any
    ) -> Generator[None, None, tuple[Any, ItemResults | None]]:
        """Do the work of `admit` for a large request in slices. Each denied item may take a log line."""
        results: ItemResults | None = None
        for need in SUPPORTED_APIS[context.header.api_key].needs:
            if isinstance(need, ByHandler):
                continue
            if need.or_on_cluster is not None and self.allows(context, need.or_on_cluster, is_asked=False):
                continue
            if isinstance(need, ItemNeed):
                results = yield from self._denied(context, request, need)
                continue
            names = getattr(request, need.field) if need.field else CLUSTER_NAME
            if names is None or isinstance(names, str):
                if names is not None:
                    self.require(context, need.operation, need.resource_type, names)
                continue
            is_denied = False
            for number, name in enumerate(dict.fromkeys(names), 1):
                is_denied |= not self.allows(context, need.operation, need.resource_type, name)
                if not number % SLICE_ITEMS:
                    yield
            if is_denied:
                raise ApiError(DENIED[need.resource_type])
        return (request, None) if not results else (results.rest_of(request), results)

    def _allows_all(
        self,
        context: Requester,
        request: Any,
        field: str,
        name_field: str,
        operation: Operation,
        resource_type: ResourceType,
        references: References,
    ) -> bool:
        """Return whether all items are known and allowed, which is the usual case."""
        authorizer = self.authorizer_of(context)
        if authorizer is None:
            return True
        principal, peer_host = context.principal, context.peer_host
        items = getattr(request, field)
        names: list[str] = []
        for item in items:
            name = item if isinstance(item, str) else getattr(item, name_field)
            if not name:
                topic_id = getattr(item, "topic_id", ZERO_UUID)
                name = None if topic_id == ZERO_UUID else self._image().name_of(topic_id)
            if name is None or not authorizer.allows(principal, peer_host, operation, resource_type, name):
                return False
            names.append(name)
        is_each = len(names) == 1 or references is References.EACH
        audit_log = self.audit_log
        if audit_log is None or audit_log.count_allowed(len(names) if is_each else len(set(names))):
            return True
        if not self._fails(context, request):
            counted = _counted(zip(names, items, strict=True), references)
            audit_log.record_allowed(authorizer, context, operation, resource_type, counted)
        return True

    def _fails(self, context: Requester, request: Any) -> bool:
        steps = self._fails_in_transaction(context, request)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                fails: bool = end.value
                return fails

    def _fails_in_transaction(self, context: Requester, request: Any) -> Generator[None, None, bool]:
        """Return whether a Produce fails because of its transactional id.

        Then the audit log has no topics, because Apache Kafka checks the transactional id first. Here the
        handler does that, and topics are authorized nevertheless.
        """
        if context.header.api_key != ApiKey.PRODUCE:
            return False
        authorizer = self.authorizer_of(context)
        if authorizer is None:
            return False
        name, client = request.transactional_id, (context.principal, context.peer_host)
        if name is not None and authorizer.allows(
            *client, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name
        ):
            return False
        all_data = (data for topic in request.topic_data for data in topic.partition_data)
        for number, data in enumerate(all_data, 1):
            if is_transactional(data.records):
                return True
            if not number % SLICE_ITEMS:
                yield
        return False

    def _name_of(self, item: Any, name_field: str) -> str | None:
        """Return the name of an item, which may have the id of a topic; None for an unknown id."""
        topic_id = getattr(item, "topic_id", ZERO_UUID)
        if topic_id != ZERO_UUID:
            return self._image().name_of(topic_id)
        name: str | None = getattr(item, name_field) if isinstance(item, Message) else item
        return name

    def _denied(self, context: Requester, request: Any, need: ItemNeed) -> Generator[None, None, ItemResults]:
        api_key = context.header.api_key
        results = ItemResults(api_key, context.api_version)
        name_field = results.items.key_fields[-1 if need.resource_type is None else 0].rpartition("=")[2]
        items = getattr(request, results.items.request_field)
        times = Counter(map(_identity, items)) if api_key in _REPEATED_FIRST else None
        names: list[str | None] = []
        # The image may change between slices, and the name of an id is looked up once.
        for position, item in enumerate(items, 1):
            names.append(self._name_of(item, name_field))
            if not position % SLICE_ITEMS:
                yield
        counts: dict[str | None, int] | None = None
        if need.references is not References.EACH:
            counts = dict(_counted(zip(names, items, strict=True), need.references))
            if (yield from self._fails_in_transaction(context, request)):
                counts = dict.fromkeys(counts, 0)
        decided: dict[str, bool] = {}
        for position, item in enumerate(items):
            if position and not position % SLICE_ITEMS:
                yield
            name = getattr(item, name_field) if isinstance(item, Message) else item
            if (times is not None and times[_identity(item)] > 1) or _is_invalid(api_key, item, name):
                continue
            has_ids = context.api_version >= _FIRST_WITHOUT_NAMES.get(api_key, maxsize)
            by_id = has_ids or getattr(item, "topic_id", ZERO_UUID) != ZERO_UUID
            if by_id:
                name = names[position] or None
                if name is None:
                    # The handler could already know a topic that is being created.
                    results.add(position, item, _fault(api_key, ErrorCode.UNKNOWN_TOPIC_ID))
                    continue
            operation, resource_type, name = _need_of_item(need, item, name)
            if counts is None:
                is_allowed = self.allows(context, operation, resource_type, name)
            elif name in decided:
                is_allowed = decided[name]
            else:
                is_allowed = decided[name] = self.allows(
                    context, operation, resource_type, name, references=counts[name]
                )
            if api_key == ApiKey.CREATE_TOPICS and not is_allowed:
                # Apache Kafka checks this for each topic, and the handler does for allowed ones.
                self.allows(context, Operation.DESCRIBE_CONFIGS, resource_type, name, is_asked=False)
            if api_key == ApiKey.DELETE_TOPICS:
                may_know = self.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
                if by_id:
                    item = copy(item)  # the request may be forwarded again
                    item.name = name if may_know and not is_allowed else None
                elif not may_know:
                    is_allowed = False
                elif not is_allowed and name not in self._image().topics:
                    # Not by the handler, which could already know a topic that is being created.
                    results.add(position, item, _fault(api_key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                    continue
            if not is_allowed:
                results.add(position, item, _fault(api_key, DENIED[resource_type]))
        return results


def _counted(named: Iterable[tuple[NameT, Any]], references: References) -> list[tuple[NameT, int]]:
    """Return each check of items by their names with its number of references."""
    if references is References.EACH:
        return [(name, 1) for name, _ in named]
    counts: dict[NameT, int] = {}
    for name, item in named:
        count = len(item.partition_data) if references is References.PARTITIONS else 1
        counts[name] = count if references is References.NAMES else counts.get(name, 0) + count
    return list(counts.items())


def _need_of_item(need: ItemNeed, item: Any, name: str) -> tuple[Operation, ResourceType, str]:
    """Return the operation that an item needs, and the resource."""
    if need.resource_type is not None:
        return need.operation, need.resource_type, name
    resource_type = CONFIG_TYPES[item.resource_type]
    if resource_type is not ResourceType.CLUSTER:
        return need.operation, resource_type, name
    is_logger = item.resource_type == RESOURCE_BROKER_LOGGER
    # Only controllers ask here about loggers: a broker changes its own loggers, and authorizes that itself.
    changes_logger = is_logger and need.operation is Operation.ALTER_CONFIGS
    return Operation.CLUSTER_ACTION if changes_logger else need.operation, resource_type, CLUSTER_NAME


def _is_invalid(api_key: int, item: Any, name: str | None) -> bool:
    """Return whether the handler returns an error for an item, whatever the client's rights are."""
    if api_key == ApiKey.CREATE_TOPICS:
        return name == METADATA_TOPIC
    if api_key == ApiKey.DELETE_TOPICS:
        return (name is None) == (getattr(item, "topic_id", ZERO_UUID) == ZERO_UUID)
    if api_key == ApiKey.DESCRIBE_PRODUCERS:
        return name is None or topic_name_fault(name) is not None
    resource_type = getattr(item, "resource_type", RESOURCE_TOPIC)
    if api_key == ApiKey.ALTER_CONFIGS and resource_type == RESOURCE_BROKER_LOGGER:
        return True
    return resource_type not in CONFIG_TYPES


def _fault(api_key: int, code: ErrorCode) -> Fault:
    if api_key == ApiKey.CREATE_TOPICS:
        return Fault(code, "Authorization failed.")
    return Fault(code, DEFAULT_MESSAGES[code] if api_key in _WITH_DEFAULT_MESSAGE else None)


def _identity(item: Any) -> object:
    """Return what identifies an item of a request: a topic by name or id, or a configuration resource."""
    if isinstance(item, str):
        return item
    if hasattr(item, "resource_type"):
        return item.resource_type, item.resource_name
    return item.name, getattr(item, "topic_id", ZERO_UUID)

"""From a frame to the handler of its API, and from what went wrong to an answer.

`SERVED` is the truth about what this broker offers: ApiVersions is made from it, and a request outside of it
closes its connection, as Apache Kafka does. Handlers are imported when their API is first called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from kwire.broker.api.context import Channel, Parked, RequestContext
from kwire.broker.api.repeated import LONGEST_REPEATED_BYTES, Repeated
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.registry import decode_request, decode_request_header
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

logger = logging.getLogger("kwire.dispatch")

Handler = Callable[["Node", RequestContext, object], Message | Parked]


class Served(NamedTuple):
    """An API that this broker offers: which versions it advertises, and the module of its handler."""

    min_version: int
    max_version: int
    module: str
    refused_below: int = 0
    """Versions below this one are advertised, but not accepted."""


SERVED: dict[int, Served] = {
    # KAFKA-18659: librdkafka before 2.8 stops compressing where Produce 0 is not advertised.
    ApiKey.PRODUCE: Served(0, 13, "records.produce", refused_below=3),
    ApiKey.FETCH: Served(4, 18, "records.fetch"),
    ApiKey.LIST_OFFSETS: Served(1, 11, "records.list_offsets"),
    ApiKey.METADATA: Served(0, 13, "topics.metadata"),
    ApiKey.OFFSET_COMMIT: Served(2, 10, "groups.offset_commit"),
    ApiKey.OFFSET_FETCH: Served(1, 10, "groups.offset_fetch"),
    ApiKey.FIND_COORDINATOR: Served(0, 6, "groups.find_coordinator"),
    ApiKey.JOIN_GROUP: Served(0, 9, "groups.join_group"),
    ApiKey.HEARTBEAT: Served(0, 4, "groups.heartbeat"),
    ApiKey.LEAVE_GROUP: Served(0, 5, "groups.leave_group"),
    ApiKey.SYNC_GROUP: Served(0, 5, "groups.sync_group"),
    ApiKey.DESCRIBE_GROUPS: Served(0, 6, "groups.describe_groups"),
    ApiKey.LIST_GROUPS: Served(0, 5, "groups.list_groups"),
    ApiKey.API_VERSIONS: Served(0, 4, "cluster.api_versions"),
    ApiKey.CREATE_TOPICS: Served(2, 7, "topics.create_topics"),
    ApiKey.DELETE_TOPICS: Served(1, 6, "topics.delete_topics"),
    ApiKey.DELETE_RECORDS: Served(0, 2, "records.delete_records"),
    ApiKey.INIT_PRODUCER_ID: Served(0, 5, "transactions.init_producer_id"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(2, 4, "records.offset_for_leader_epoch"),
    ApiKey.ADD_PARTITIONS_TO_TXN: Served(0, 5, "transactions.add_partitions_to_txn"),
    ApiKey.ADD_OFFSETS_TO_TXN: Served(0, 4, "transactions.add_offsets_to_txn"),
    ApiKey.END_TXN: Served(0, 5, "transactions.end_txn"),
    ApiKey.WRITE_TXN_MARKERS: Served(1, 2, "transactions.write_txn_markers"),
    ApiKey.TXN_OFFSET_COMMIT: Served(0, 5, "transactions.txn_offset_commit"),
    ApiKey.DESCRIBE_CONFIGS: Served(1, 4, "configs.describe_configs"),
    ApiKey.ALTER_CONFIGS: Served(0, 2, "configs.alter_configs"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Served(1, 2, "cluster.alter_replica_log_dirs"),
    ApiKey.DESCRIBE_LOG_DIRS: Served(1, 5, "cluster.describe_log_dirs"),
    ApiKey.CREATE_PARTITIONS: Served(0, 3, "topics.create_partitions"),
    ApiKey.DELETE_GROUPS: Served(0, 2, "groups.delete_groups"),
    ApiKey.ELECT_LEADERS: Served(0, 2, "cluster.elect_leaders"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(0, 1, "configs.incremental_alter_configs"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Served(0, 1, "cluster.alter_partition_reassignments"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Served(0, 0, "cluster.list_partition_reassignments"),
    ApiKey.OFFSET_DELETE: Served(0, 0, "groups.offset_delete"),
    ApiKey.DESCRIBE_QUORUM: Served(0, 2, "cluster.describe_quorum"),
    ApiKey.UPDATE_FEATURES: Served(0, 2, "cluster.update_features"),
    ApiKey.DESCRIBE_CLUSTER: Served(0, 2, "cluster.describe_cluster"),
    ApiKey.DESCRIBE_PRODUCERS: Served(0, 0, "transactions.describe_producers"),
    ApiKey.UNREGISTER_BROKER: Served(0, 0, "cluster.unregister_broker"),
    ApiKey.DESCRIBE_TRANSACTIONS: Served(0, 0, "transactions.describe_transactions"),
    ApiKey.LIST_TRANSACTIONS: Served(0, 2, "transactions.list_transactions"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Served(0, 1, "groups.consumer_group_heartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Served(0, 1, "groups.consumer_group_describe"),
    ApiKey.LIST_CONFIG_RESOURCES: Served(0, 1, "configs.list_config_resources"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Served(0, 0, "topics.describe_topic_partitions"),
}


class Dispatcher:
    """Sends each frame of a node's connections to the handler of its API."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._handlers: dict[int, Handler] = {}

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        """Whether a frame has to wait until what its connection has asked before is answered.

        Apache Kafka takes a connection's requests one at a time, so that each sees what those before it did.
        Not so behind a long poll, which ends with it; nor Produce behind Produce: they are written in their
        order, and nobody looks between them.
        """
        slots = channel.slots
        if not slots or channel.interrupt is not None:
            return False
        if int.from_bytes(frame[:2], "big") == ApiKey.PRODUCE:
            # Whatever is no Produce had nothing behind it, so it can only be the last.
            return not slots[-1].completed and slots[-1].header.api_key != ApiKey.PRODUCE
        return not all(context.completed for context in slots)

    def dispatch(self, channel: Channel, frame: memoryview, now_ms: int) -> None:
        """Handle one frame (without its size). WireError means that the connection must be closed."""
        repeated = channel.repeated
        # What waits is answered first, and an answer behind a long poll ends that.
        if repeated is not None and not channel.slots:
            answer = repeated.answer(frame, now_ms)
            if answer:
                channel.open_slot(repeated.header, now_ms, len(frame)).complete_encoded([answer])
                return
            if answer is not None:
                # It holds on to what its coordinator knew, who may be gone. The next one is remembered again.
                channel.repeated = None
        header, position = decode_request_header(frame)
        served = SERVED.get(header.api_key)
        if served is None:
            raise WireError(f"API {header.api_key} is not served")
        version = header.api_version
        if not max(served.min_version, served.refused_below) <= version <= served.max_version:
            if header.api_key != ApiKey.API_VERSIONS:
                raise WireError(
                    f"{served.module} version {version} is not served "
                    f"({served.min_version} to {served.max_version} are)"
                )
            from kwire.broker.api.cluster.api_versions import complete_unsupported

            complete_unsupported(channel.open_slot(header, now_ms, len(frame)))
            return
        request = decode_request(header, frame, position)
        handler = self._handlers.get(header.api_key)
        if handler is None:
            handler = import_module("kwire.broker.api." + served.module).handle
            self._handlers[header.api_key] = handler
        interrupt = channel.interrupt
        context = channel.open_slot(header, now_ms, len(frame))
        context.request = request
        try:
            reply = handler(self._node, context, request)
        except ApiError as error:
            reply = context.error_response(error)
        except WireError:
            raise
        except Exception:
            # Ours, not the client's: it is logged with its request, and the broker lives on.
            logger.exception("request failed: %s from %s: %.2000r", header, channel.peer_host, request)
            reply = context.error_response(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        if not isinstance(reply, Parked):
            context.complete(reply)
        if context.again is not None and context.reply is not None and len(frame) <= LONGEST_REPEATED_BYTES:
            (piece,) = context.reply
            assert isinstance(piece, bytearray)
            channel.repeated = Repeated(header, frame, piece, context.again)
        if interrupt is not None:
            # This reply waits behind a long poll of the same connection: end that poll now.
            interrupt()

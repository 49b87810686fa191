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


PRODUCE_KEY = 0
API_VERSIONS_KEY = 18

SERVED: dict[int, Served] = {
    # KAFKA-18659: librdkafka before 2.8 stops compressing where Produce 0 is not advertised.
    0: Served(0, 13, "produce", refused_below=3),
    1: Served(4, 18, "fetch"),
    2: Served(1, 11, "list_offsets"),
    3: Served(0, 13, "metadata"),
    8: Served(2, 10, "offset_commit"),
    9: Served(1, 10, "offset_fetch"),
    10: Served(0, 6, "find_coordinator"),
    11: Served(0, 9, "join_group"),
    12: Served(0, 4, "heartbeat"),
    13: Served(0, 5, "leave_group"),
    14: Served(0, 5, "sync_group"),
    15: Served(0, 6, "describe_groups"),
    16: Served(0, 5, "list_groups"),
    18: Served(0, 4, "api_versions"),
    19: Served(2, 7, "create_topics"),
    20: Served(1, 6, "delete_topics"),
    21: Served(0, 2, "delete_records"),
    22: Served(0, 5, "init_producer_id"),
    23: Served(2, 4, "offset_for_leader_epoch"),
    24: Served(0, 5, "add_partitions_to_txn"),
    25: Served(0, 4, "add_offsets_to_txn"),
    26: Served(0, 5, "end_txn"),
    27: Served(1, 2, "write_txn_markers"),
    28: Served(0, 5, "txn_offset_commit"),
    32: Served(1, 4, "describe_configs"),
    33: Served(0, 2, "alter_configs"),
    34: Served(1, 2, "alter_replica_log_dirs"),
    35: Served(1, 5, "describe_log_dirs"),
    37: Served(0, 3, "create_partitions"),
    42: Served(0, 2, "delete_groups"),
    43: Served(0, 2, "elect_leaders"),
    44: Served(0, 1, "incremental_alter_configs"),
    45: Served(0, 1, "alter_partition_reassignments"),
    46: Served(0, 0, "list_partition_reassignments"),
    47: Served(0, 0, "offset_delete"),
    55: Served(0, 2, "describe_quorum"),
    57: Served(0, 2, "update_features"),
    60: Served(0, 2, "describe_cluster"),
    61: Served(0, 0, "describe_producers"),
    64: Served(0, 0, "unregister_broker"),
    65: Served(0, 0, "describe_transactions"),
    66: Served(0, 2, "list_transactions"),
    68: Served(0, 1, "consumer_group_heartbeat"),
    69: Served(0, 1, "consumer_group_describe"),
    74: Served(0, 1, "list_config_resources"),
    75: Served(0, 0, "describe_topic_partitions"),
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
        if int.from_bytes(frame[:2], "big") == PRODUCE_KEY:
            # Whatever is no Produce had nothing behind it, so it can only be the last.
            return not slots[-1].completed and slots[-1].header.api_key != PRODUCE_KEY
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
            if header.api_key != API_VERSIONS_KEY:
                raise WireError(
                    f"{served.module} version {version} is not served "
                    f"({served.min_version} to {served.max_version} are)"
                )
            from kwire.broker.api.api_versions import complete_unsupported

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

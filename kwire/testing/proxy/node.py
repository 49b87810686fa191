"""A node that forwards each request to a broker of another cluster, and the response to the client."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from kwire.broker.api.request.context import Channel
from kwire.broker.net.connection import Connection
from kwire.broker.net.peer_connection import PeerConnections
from kwire.broker.net.socket_server import SocketServer
from kwire.host.peer_log_limit import PeerLogLimit
from kwire.testing.proxy.api_versions import MIN_SASL_HANDSHAKE, offered_versions, unsupported_version
from kwire.testing.proxy.brokers import Brokers
from kwire.testing.proxy.responses import convert_response
from kwire.testing.proxy.topic_names import TopicNames
from kwire.testing.proxy.upstream import Upstream, UpstreamLink
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import WireError
from kwire.wire.primitives import Buffer, Region, Uuid, read_unsigned_varint
from kwire.wire.registry import (
    API_VERSIONS,
    RequestHeader,
    decode_request_header,
    encode_response,
)

if TYPE_CHECKING:
    from kwire.broker.net.loop import Loop
    from kwire.broker.net.socket_settings import SocketSettings
    from kwire.testing.recorder import Recorder


class ProxyNode:
    """A `ServedNode` without a log: it has one connection to a broker for each connection of a client."""

    def __init__(
        self, loop: Loop, server: SocketSettings, upstream: SocketSettings, recorder: Recorder
    ) -> None:
        """Create the node and its server, without listeners.

        The settings are for the connections of clients, and for the connections to the cluster.
        """
        self.server = SocketServer(loop, self, server)
        self.brokers = Brokers(self.server)
        self.connections = PeerConnections(loop, upstream)
        self.connections.connection_class = UpstreamLink
        self.topics = TopicNames(recorder.topic_names, self._look_up_topics)
        """The names of topics, for the interceptor."""
        self._upstreams: dict[int, Upstream] = {}
        """The connections to brokers by channel id."""
        self._held: list[Upstream] = []
        """Connections to brokers that wait for their clients to receive responses."""
        self._log_limit = PeerLogLimit()

    # --- ServedNode

    def channel_opened(self, channel: Channel) -> None:
        """Connect to the broker of the listener."""
        self._upstreams[channel.id] = Upstream(self, channel, self.brokers.upstream(channel.listener))

    def channel_closed(self, channel: Channel) -> None:
        """Close the connection to the broker."""
        upstream = self._upstreams.pop(channel.id, None)
        if upstream is not None:
            upstream.close()

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        """Return False: the broker keeps the order of the requests of a connection."""
        return False

    def handle_frame(self, channel: Channel, frame: memoryview) -> None:
        """Forward a request. Raises WireError if the proxy cannot decode the response to it."""
        header, position = decode_request_header(frame)
        now_ms = self.server.loop.now_ms()
        offered = offered_versions(header.api_key)
        if offered is not None and header.api_version not in offered:
            if header.api_key != ApiKey.API_VERSIONS:
                raise WireError(_explain_version(header))
            context = channel.open_slot(header, now_ms, len(frame))
            response = unsupported_version()
            context.complete_encoded(encode_response(ApiKey.API_VERSIONS, 0, header.correlation_id, response))
            return
        has_response = header.api_key != ApiKey.PRODUCE or _acks(header, frame, position) != 0
        context = channel.open_slot(header, now_ms, len(frame))
        self._upstreams[channel.id].forward(context, frame, has_response=has_response)

    def end_turn(self, send_responses: Callable[[], None] | None = None) -> None:
        """Continue to receive responses for clients that have received earlier ones."""
        if self._held:
            if send_responses is not None:
                send_responses()  # after this, no event may come for a client that has received everything
            for upstream in self._held:
                upstream.release_hold_if_drained()
            self._held = [upstream for upstream in self._held if upstream.is_held]

    def begin_shutdown(self) -> None:
        """Close the connections to brokers."""
        for upstream in self._upstreams.values():
            upstream.close()

    # --- Upstreams

    def convert(self, header: RequestHeader, frame: memoryview) -> list[Buffer | Region]:
        """Return the response to send to the client. Raises WireError if it cannot be decoded."""
        return convert_response(header, frame, self.brokers.local_port, self.topics)

    def connection_of(self, channel: Channel) -> Connection | None:
        """Return the client's connection, unless it is closed."""
        return self.server.connections.get(channel.id)

    def held(self, upstream: Upstream) -> None:
        """Call `release_hold_if_drained` at the end of turns."""
        self._held.append(upstream)

    def lost(self, upstream: Upstream, reason: str, *, is_expected: bool) -> None:
        """Log that a connection to a broker could not be opened, or was lost."""
        logger = self.server.logger
        if is_expected:
            logger.info("Broker at %s closed the connection of a client: %s", upstream.to, reason)
        elif self._log_limit.should_log(
            str(upstream.to), upstream.channel.listener, "upstream", self.server.loop.monotonic_ms()
        ):
            logger.warning(
                "Closing the connection of a client, because the connection to the broker at %s failed: %s. "
                "Further such failures are not logged for a minute",
                *(upstream.to, reason),
            )

    def _look_up_topics(
        self, channel: Channel, topic_ids: Collection[Uuid], done: Callable[[Any], None]
    ) -> None:
        self._upstreams[channel.id].look_up_topics(topic_ids, done)


def _explain_version(header: RequestHeader) -> str:
    if header.api_key == ApiKey.SASL_HANDSHAKE:
        return (
            f"SaslHandshake {header.api_version} cannot pass a proxy: use a client that sends version "
            f"{MIN_SASL_HANDSHAKE}, as Kafka's clients do since 1.0"
        )
    api = API_VERSIONS.get(header.api_key)
    if api is None:
        return f"{header} cannot pass a proxy, because kwire cannot decode the addresses in the response"
    return (
        f"{header} cannot pass a proxy, because kwire cannot decode the response: use versions "
        f"{api.min_version} to {api.max_version}, as ApiVersions offers"
    )


def _acks(header: RequestHeader, frame: memoryview, position: int) -> int:
    """Return the acks of a Produce request, the field after the transactional id."""
    if header.header_version >= 2:
        size, position = read_unsigned_varint(frame, position, len(frame))
        position += max(0, size - 1)
    else:
        position += 2 + max(0, int.from_bytes(frame[position : position + 2], "big", signed=True))
    return int.from_bytes(frame[position : position + 2], "big", signed=True)

"""A broker's configuration: the values of all Kafka keys, with typed attributes for the keys that kwire uses.

A key is supported if `BrokerConfig` has an attribute for the key, or if a supported topic key takes its
default from the key. All other keys are parsed, validated, stored and described as in Kafka, and a warning
names them if they are set. If a key is set in several places, the first one in this list wins (KIP-226):
dynamic per-broker, dynamic cluster-wide, static, Kafka's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from posixpath import normpath
from typing import Final, cast

from kwire.broker.config.broker_keys import BROKER_KEYS, LISTENER_PREFIX
from kwire.broker.config.definition import REQUIRED, ConfigError, Value
from kwire.broker.config.dynamic import (
    EffectiveSettings,
    check_change,
    check_settings,
    check_values,
    clamp_assignment_intervals,
    merge_layers,
    remove_invalid,
    without_providers,
)
from kwire.broker.config.jaas import LoginContext
from kwire.broker.config.listeners import (
    META_ADDRESS,
    ListenerEndpoint,
    check_protocol,
    parse_counts,
    parse_listeners,
    parse_protocol_map,
)
from kwire.broker.config.roles import BROKER, CONTROLLER, check_roles
from kwire.broker.config.sasl import (
    SASL_PROTOCOLS,
    JaasFile,
    ListenerSasl,
    login_context,
    peer_mechanism,
    read_listener_sasl,
    unprefixed_jaas_keys,
)
from kwire.broker.config.tls import NodeCertificates
from kwire.broker.config.topic_keys import BROKER_SYNONYMS
from kwire.host.loggers import NodeLogger, node_name
from kwire.wire.named_tuple import NamedTuple

ASSIGNORS: Final = {
    "uniform": "uniform",
    "range": "range",
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""The names of the assignors of consumer groups, by name and by Kafka's class name."""

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The only supported replica selector, by Kafka's class name. KIP-392."""


class ListenerSecurity(NamedTuple):
    """The security protocol of an active listener, and its SASL settings."""

    protocol: str
    sasl: ListenerSasl | None


class BrokerConfig:
    """The configuration of one broker. Attributes are Kafka's keys, with underscores for dots."""

    add_partitions_to_txn_retry_backoff_max_ms: int
    add_partitions_to_txn_retry_backoff_ms: int
    auto_create_topics_enable: bool
    auto_leader_rebalance_enable: bool
    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    broker_rack: str | None
    controlled_shutdown_enable: bool
    controller_socket_timeout_ms: int
    cordoned_log_dirs: list[str]
    connection_failed_authentication_delay_ms: int
    connections_max_idle_ms: int
    default_replication_factor: int
    delegation_token_expiry_check_interval_ms: int
    delegation_token_expiry_time_ms: int
    delegation_token_max_lifetime_ms: int
    delegation_token_secret_key: str | None
    delete_topic_enable: bool
    fetch_max_bytes: int
    group_consumer_assignment_interval_ms: int
    group_consumer_assignors: list[str]
    group_consumer_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_consumer_regex_refresh_interval_ms: int
    group_consumer_session_timeout_ms: int
    group_coordinator_rebalance_protocols: list[str]
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    initial_broker_registration_timeout_ms: int
    leader_imbalance_check_interval_seconds: int
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_threads: int
    log_dir_failure_timeout_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_retention_check_interval_ms: int
    metadata_max_idle_interval_ms: int
    max_connection_creation_rate: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    metadata_log_dir: str | None
    metadata_log_segment_bytes: int
    metadata_log_segment_ms: int
    min_insync_replicas: int
    node_id: int
    num_partitions: int
    num_replica_fetchers: int
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    producer_id_expiration_check_interval_ms: int
    producer_id_expiration_ms: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    quota_window_num: int
    quota_window_size_seconds: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_lag_time_max_ms: int
    replica_selector_class: str | None
    request_timeout_ms: int
    replica_socket_timeout_ms: int
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    share_coordinator_state_topic_min_isr: int
    share_coordinator_state_topic_num_partitions: int
    share_coordinator_state_topic_replication_factor: int
    share_coordinator_state_topic_segment_bytes: int
    socket_connection_setup_timeout_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int
    telemetry_max_bytes: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    unclean_leader_election_interval_ms: int
    transactional_id_expiration_ms: int

    log_dirs: list[str]
    """The normalized paths in log.dirs, or else in log.dir."""
    controller_listener_names: list[str]
    process_roles: list[str]
    inter_broker_listener_name: str

    def __init__(self, static_settings: Mapping[str, str], jaas_file: JaasFile | None = None) -> None:
        """Read the static settings. Raises ConfigError for an invalid configuration."""
        self._jaas_file = jaas_file
        self.static_settings = dict(static_settings)
        """The static settings, as text."""
        for one, other in (("node.id", "broker.id"), ("broker.id", "node.id")):
            if one in self.static_settings and other not in self.static_settings:
                BROKER_KEYS[one].parse(
                    self.static_settings[one]
                )  # so that an error names the key that was set
                self.static_settings[other] = self.static_settings[one]
        self.cluster_wide: dict[str, str] = {}
        """The dynamic cluster-wide settings."""
        self.per_broker: dict[str, str] = {}
        """The dynamic settings of this broker."""
        for name, key in BROKER_KEYS.items():
            if key.default == REQUIRED and name not in self.static_settings:
                raise ConfigError(f'Missing required configuration "{name}" which has no default value.')
        self._stored: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        self._state = EffectiveSettings(self.static_settings)
        self._set_attributes()
        self.node_name = node_name(self.node_id)
        self.logger = NodeLogger("kwire.config", self.node_name)
        self._active_listeners: dict[str, ListenerSecurity] = {}
        """The security of each listener, as configured when the listener was added.

        A removed listener keeps its entry until it is added again.
        """
        self.tls: NodeCertificates | None = None
        """The certificates of listeners with TLS. The code that starts the node loads them."""
        self._listeners = self._check_listeners()
        self._advertised = self._read_advertised()
        self._check_consistency()

    # --- values

    @property
    def is_broker(self) -> bool:
        """Whether the node is a broker."""
        return BROKER in self.process_roles

    @property
    def is_controller(self) -> bool:
        """Whether the node is a controller."""
        return CONTROLLER in self.process_roles

    def value(self, name: str) -> Value:
        """Return the value of a Kafka key. Raises KeyError for an unknown key."""
        return self._state.values[name]

    def names(self) -> list[str]:
        """Return all keys to describe: Kafka's visible keys, and all other keys that are set."""
        shown = [name for name, key in BROKER_KEYS.items() if not key.internal]
        all_set = dict.fromkeys([*self.static_settings, *self.cluster_wide, *self.per_broker])
        return shown + [name for name in all_set if name not in BROKER_KEYS or BROKER_KEYS[name].internal]

    def listener_endpoints(self) -> list[ListenerEndpoint]:
        """Return the broker listeners in the static configuration."""
        controllers = self.controller_listener_names
        return [listener for listener in self._listeners if listener.name not in controllers]

    def running_listeners(self) -> list[ListenerEndpoint]:
        """Return the broker listeners in the effective configuration that the broker can serve.

        The addresses are the configured ones. If an address changes, an open listener keeps its old address
        until it is removed and added again, or the broker restarts.
        """
        return [one for one in self._state.listeners.broker_endpoints() if one.name in self._active_listeners]

    def controller_endpoints(self) -> list[ListenerEndpoint]:
        """Return the controller listeners in the static configuration."""
        return [listener for listener in self._listeners if listener.name in self.controller_listener_names]

    def advertised_endpoints(self) -> list[ListenerEndpoint]:
        """Return the advertised addresses as configured. Port 0 stands for the port that was bound."""
        return self._advertised

    def _read_advertised(self) -> list[ListenerEndpoint]:
        entries = cast("list[str] | None", self._state.values["advertised.listeners"])
        if not entries:
            return self.listener_endpoints()
        return [
            listener
            for listener in parse_listeners("advertised.listeners", entries)
            if listener.name not in self.controller_listener_names
        ]

    def protocol(self, listener: str) -> str:
        """Return the security protocol of a listener. Raises KeyError if no protocol is configured."""
        active = self._active_listeners.get(listener)
        return self._protocols[listener] if active is None else active.protocol

    def listener_sasl(self, listener: str) -> ListenerSasl | None:
        """Return the SASL settings of a listener; None if it is not active or does not use SASL."""
        active = self._active_listeners.get(listener)
        return None if active is None else active.sasl

    @property
    def effective(self) -> EffectiveSettings:
        """The effective settings."""
        return self._state

    def peer_listeners(self) -> list[str]:
        """Return the listeners of other nodes to which this node connects."""
        return [*self.controller_listener_names[:1], *([self.inter_broker_listener_name] * self.is_broker)]

    def peer_login(self, listener: str) -> tuple[str, LoginContext] | None:
        """Return the mechanism and login with which this node connects to other nodes on a listener.

        Returns None if the listener does not use SASL. Raises ConfigError if the login is not configured.
        """
        mechanism = peer_mechanism(self._state, listener)
        if mechanism is None:
            return None
        return mechanism, login_context(self._state, listener, mechanism, self._jaas_file)

    def connection_limits_per_host(self) -> dict[str, int]:
        """Return the connection limits by host, which override max.connections.per.ip."""
        return parse_counts("max.connections.per.ip.overrides", self.max_connections_per_ip_overrides)

    def connection_limits_per_listener(self) -> dict[str, int]:
        """Return the connection limits by listener, for listeners with their own limits (KIP-402)."""
        return self._numbers_per_listener("max.connections")

    def connection_rates_per_listener(self) -> dict[str, int]:
        """Return the limits of new connections per second, for listeners with their own limits (KIP-612)."""
        return self._numbers_per_listener("max.connection.creation.rate")

    def _numbers_per_listener(self, key: str) -> dict[str, int]:
        return {
            listener.name: self._state.listener_number(key, listener.name)
            for listener in self._state.listeners.endpoints
            if f"{LISTENER_PREFIX}{listener.name.lower()}.{key}" in self._state.settings
        }

    # --- changes (KIP-226)

    def update(self, cluster_wide: Mapping[str, str], per_broker: Mapping[str, str]) -> None:
        """Apply the dynamic settings from the metadata log.

        An invalid setting is ignored. If the other settings contradict each other, or need a restart, the
        previous settings stay in effect. Both cases are logged and raise no error, because a stored setting
        must not prevent a start.
        """
        known_cluster_wide, known_per_broker = self._stored
        self._stored = dict(cluster_wide), dict(per_broker)
        # As Kafka does, apply the cluster-wide settings first: they may be valid without the others.
        if cluster_wide != known_cluster_wide:
            self.cluster_wide = remove_invalid(cluster_wide, self.logger, per_broker=False)
            self._apply("cluster")
        if per_broker != known_per_broker:
            self.per_broker = remove_invalid(per_broker, self.logger, per_broker=True)
            self._apply("broker")
        if self.tls is not None:
            self.tls.reload(self._state)

    def check_update(self, settings: Mapping[str, str], *, per_broker: bool) -> None:
        """Raise ConfigError if `settings` cannot replace the dynamic settings of this broker.

        Without `per_broker`, `settings` are to replace the cluster-wide dynamic settings.
        """
        settings = without_providers(settings)
        check_settings(settings, per_broker=per_broker)
        layers = (self.cluster_wide, settings) if per_broker else (settings, self.per_broker)
        state = EffectiveSettings(merge_layers(self.static_settings, *layers))
        check_values(state)
        check_change(self._state, state, self.static_settings)
        for listener in state.listeners.broker_endpoints():
            if listener.name not in self._active_names():
                self._listener_security(listener.name, state)
        if self.tls is not None:
            self.tls.check(state)

    def _apply(self, where: str) -> None:
        try:
            state = EffectiveSettings(
                clamp_assignment_intervals(
                    merge_layers(self.static_settings, self.cluster_wide, self.per_broker), self.logger
                )
            )
            check_values(state)
            check_change(self._state, state, self.static_settings)
        except ConfigError as error:
            self.logger.error(
                "Ignoring all changed dynamic configs of the %s, correct them with kafka-configs: %s",
                *(where, error),
            )
            return
        before = self._active_names()
        self._state = state
        self._set_attributes()
        for name in (listener.name for listener in state.listeners.endpoints):
            if name in before:
                continue
            self._active_listeners.pop(name, None)
            try:
                security = self._listener_security(name, state)
                if self.tls is not None:
                    self.tls.add(name, state)
                self._active_listeners[name] = security
            except ConfigError as error:
                # Apache Kafka may have stored the listener, so its settings are kept.
                self.logger.error("Cannot add listener %s, correct its configs: %s", name, error)

    def _active_names(self) -> set[str]:
        """Return the names of the active listeners."""
        return {one.name for one in self._state.listeners.endpoints if one.name in self._active_listeners}

    def _listener_security(self, listener: str, state: EffectiveSettings) -> ListenerSecurity:
        """Return the security of a listener to add. Raises ConfigError if the listener cannot be served."""
        protocols = state.listeners.protocols
        check_protocol(listener, protocols)
        uses_sasl = protocols[listener] in SASL_PROTOCOLS
        return ListenerSecurity(
            protocols[listener], read_listener_sasl(state, listener, self._jaas_file) if uses_sasl else None
        )

    def _set_attributes(self) -> None:
        for name in ATTRIBUTE_KEYS:
            setattr(self, name.replace(".", "_"), self._state.values[name])
        self.log_dirs = self._log_directories()
        # The directories are validated as written in log.dirs, and later compared with normalized paths.
        self.cordoned_log_dirs = [normpath(entry) for entry in self.cordoned_log_dirs]
        self.controller_listener_names = [
            name.upper() for name in cast("list[str]", self._state.values["controller.listener.names"] or [])
        ]
        self.process_roles = cast("list[str]", self._state.values["process.roles"])
        listener = cast("str | None", self._state.values["inter.broker.listener.name"])
        protocol = cast(str, self._state.values["security.inter.broker.protocol"])
        self.inter_broker_listener_name = (listener or protocol).upper()

    def _log_directories(self) -> list[str]:
        """Return the normalized paths of log.dirs, or else of log.dir, without duplicates."""
        named = self._state.values["log.dirs"]
        entries = cast("list[str]", self._state.values["log.dir"] if named is None else named)
        if not entries or not all(entries):
            raise ConfigError(
                f"log.dirs is {','.join(entries)!r}: name at least one directory, and no empty one"
            )
        return list(dict.fromkeys(normpath(entry) for entry in entries))

    # --- validation

    def _check_listeners(self) -> list[ListenerEndpoint]:
        listeners = parse_listeners("listeners", cast("list[str]", self._state.values["listeners"]))
        protocols = parse_protocol_map(
            "listener.security.protocol.map", cast(str, self._state.values["listener.security.protocol.map"])
        )
        for name in self.controller_listener_names:
            # KIP-595: an unmapped controller listener is PLAINTEXT, unless the map is set.
            if "listener.security.protocol.map" not in self.static_settings:
                protocols.setdefault(name, "PLAINTEXT")
        self._protocols = protocols
        for listener in listeners:
            check_protocol(listener.name, protocols)
        return listeners

    def _check_early_listeners(self) -> None:
        """Check the names in early.start.listeners. Upper and lower case differ, as in Apache Kafka.

        The names have no other effect. Broker listeners open when the broker is unfenced, which is after it
        has loaded the ACLs. Controller listeners always open early: otherwise a quorum with several voters
        could not elect a leader, and so could not load the ACLs.
        """
        names = [listener.name for listener in self._listeners]
        for name in cast("list[str] | None", self._state.values["early.start.listeners"]) or ():
            if name not in names:
                raise ConfigError(
                    f"early.start.listeners has {name}, which is not in listeners: {', '.join(names)}"
                )

    def _check_consistency(self) -> None:
        if self._state.values["broker.id"] != self.node_id:
            raise ConfigError(
                f"node.id is {self.node_id}, and broker.id is {self._state.values['broker.id']}: "
                "set both to the same value, or only node.id"
            )
        check_roles(self._state, self.node_id)
        for name in self.controller_listener_names if self.is_controller else ():
            if name not in (names := [listener.name for listener in self._listeners]):
                raise ConfigError(
                    f"controller.listener.names has {name}, which is not in listeners: {', '.join(names)}"
                )
        self._check_early_listeners()
        if self.is_broker:
            self._check_broker_listeners()
        check_values(self._state)
        self._check_sasl()
        if self.replica_selector_class not in (None, RACK_AWARE_SELECTOR):
            raise ConfigError(
                f"replica.selector.class is {self.replica_selector_class}, which is not supported: "
                f"use {RACK_AWARE_SELECTOR}"
            )
        if not self.group_consumer_assignors:
            raise ConfigError("group.consumer.assignors is empty: name uniform, range, or both")
        for name in self.group_consumer_assignors:
            if name not in ASSIGNORS:
                raise ConfigError(
                    f"group.consumer.assignors has {name}, which is not supported: use uniform or range"
                )

    def _check_sasl(self) -> None:
        state = self._state
        for key in unprefixed_jaas_keys(state, [listener.name for listener in self._listeners]):
            self.logger.warning(
                "Server config %s should be prefixed with SASL mechanism name, ignoring config", key
            )
        self._active_listeners = {
            listener.name: self._listener_security(listener.name, state) for listener in self._listeners
        }
        for name in self.peer_listeners():
            self.peer_login(name)

    def _check_broker_listeners(self) -> None:
        brokers = self.listener_endpoints()
        if not brokers:
            raise ConfigError(
                "listeners has only controller listeners: add a listener that is not in "
                "controller.listener.names, for clients and brokers"
            )
        names = {listener.name for listener in brokers}
        advertised = self.advertised_endpoints()
        for listener in advertised:
            if listener.host == META_ADDRESS:
                raise ConfigError(
                    f"advertised.listeners cannot use the nonroutable meta-address {META_ADDRESS}. "
                    f"Use a routable IP address."
                )
            if listener.name not in names:
                raise ConfigError(
                    f"advertised.listeners has {listener.name}, which is not in listeners: "
                    f"{', '.join(sorted(names))}"
                )
        if self.inter_broker_listener_name not in {listener.name for listener in advertised}:
            raise ConfigError(
                f"the inter-broker listener is {self.inter_broker_listener_name}, which is not in "
                "advertised.listeners: set inter.broker.listener.name to one of "
                f"{', '.join(listener.name for listener in advertised)}"
            )


_COMPUTED_ATTRIBUTES: Final = frozenset(
    {"log_dirs", "controller_listener_names", "process_roles", "inter_broker_listener_name"}
)


def _attribute_keys() -> tuple[str, ...]:
    by_attribute = {name.replace(".", "_"): name for name in BROKER_KEYS}
    attributes = [name for name in BrokerConfig.__annotations__ if name not in _COMPUTED_ATTRIBUTES]
    return tuple(by_attribute[attribute] for attribute in attributes)


ATTRIBUTE_KEYS: Final = _attribute_keys()
"""The keys whose values are attributes."""

_WITHOUT_EFFECT: Final = frozenset({"log.local.retention.bytes", "log.local.retention.ms"})
"""Defaults of topic keys that have no effect without tiered storage."""

SUPPORTED_KEYS: Final = (
    frozenset(ATTRIBUTE_KEYS)
    | ({source.name for sources in BROKER_SYNONYMS.values() for source in sources} - _WITHOUT_EFFECT)
    | {
        "advertised.listeners",
        "authorizer.class.name",
        "broker.id",
        "internal.metadata.delete.delay.millis",
        "internal.metadata.log.segment.bytes",
        "metadata.log.max.record.bytes.between.snapshots",
        "metadata.log.max.snapshot.interval.ms",
        "metadata.max.retention.bytes",
        "metadata.max.retention.ms",
        "config.providers",
        "connections.max.reauth.ms",
        "controller.listener.names",
        "controller.quorum.auto.join.enable",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.election.backoff.max.ms",
        "controller.quorum.election.timeout.ms",
        "controller.quorum.fetch.max.bytes",
        "controller.quorum.fetch.snapshot.max.bytes",
        "controller.quorum.fetch.timeout.ms",
        "controller.quorum.request.timeout.ms",
        "controller.quorum.retry.backoff.ms",
        "controller.quorum.voters",
        "early.start.listeners",
        "metadata.max.idle.interval.ms",
        *(
            f"group.consumer.{bound}.{name}.ms"
            for bound in ("max", "min")
            for name in ("assignment.interval", "heartbeat.interval", "session.timeout")
        ),
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        *(name for name in BROKER_KEYS if name.startswith("ssl.")),
        "listeners",
        "log.dir",
        "log.dirs",
        "process.roles",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "sasl.mechanism.controller.protocol",
        "sasl.mechanism.inter.broker.protocol",
        "sasl.server.max.receive.size",
        "security.inter.broker.protocol",
    }
)
"""The keys that have an effect."""

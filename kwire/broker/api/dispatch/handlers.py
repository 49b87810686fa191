"""Tables with the names of the handler functions. A handler is imported when its API is first called.

This shortens the start, because most APIs are never called on a node. Only dispatch imports this module;
handlers use `request.supported_apis`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from kwire.wire.api_keys import ApiKey

HANDLERS: Final[dict[int, str]] = {
    ApiKey.PRODUCE: "..records.produce.handle",
    ApiKey.FETCH: "..records.fetch.handle",
    ApiKey.LIST_OFFSETS: "..records.list_offsets.handle",
    ApiKey.METADATA: "..topics.metadata.metadata",
    ApiKey.OFFSET_COMMIT: "..groups.offsets.offset_commit",
    ApiKey.OFFSET_FETCH: "..groups.offsets.offset_fetch",
    ApiKey.FIND_COORDINATOR: "..groups.find_coordinator.find_coordinator",
    ApiKey.JOIN_GROUP: "..groups.membership.join_group",
    ApiKey.HEARTBEAT: "..groups.membership.heartbeat",
    ApiKey.LEAVE_GROUP: "..groups.membership.leave_group",
    ApiKey.SYNC_GROUP: "..groups.membership.sync_group",
    ApiKey.DESCRIBE_GROUPS: "..groups.administration.describe_groups",
    ApiKey.LIST_GROUPS: "..groups.administration.list_groups",
    ApiKey.SASL_HANDSHAKE: "..security.handshake.sasl_handshake",
    ApiKey.API_VERSIONS: "..cluster.api_versions.api_versions",
    ApiKey.CREATE_TOPICS: "..topics.changes.create_topics",
    ApiKey.DELETE_TOPICS: "..topics.changes.delete_topics",
    ApiKey.DELETE_RECORDS: "..records.delete_records.handle",
    ApiKey.INIT_PRODUCER_ID: "..transactions.producers.init_producer_id",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "..records.offset_for_leader_epoch.handle",
    ApiKey.ADD_PARTITIONS_TO_TXN: "..transactions.producers.add_partitions_to_txn",
    ApiKey.ADD_OFFSETS_TO_TXN: "..transactions.producers.add_offsets_to_txn",
    ApiKey.END_TXN: "..transactions.producers.end_txn",
    ApiKey.WRITE_TXN_MARKERS: "..transactions.markers.write_txn_markers",
    ApiKey.TXN_OFFSET_COMMIT: "..transactions.offsets.txn_offset_commit",
    ApiKey.DESCRIBE_ACLS: "..security.acls.describe_acls",
    ApiKey.CREATE_ACLS: "..security.acls.create_acls",
    ApiKey.DELETE_ACLS: "..security.acls.delete_acls",
    ApiKey.DESCRIBE_CONFIGS: "..configs.describe.describe_configs",
    ApiKey.ALTER_CONFIGS: "..configs.alter.alter_configs_on_controller",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "..cluster.log_dirs.alter_replica_log_dirs",
    ApiKey.DESCRIBE_LOG_DIRS: "..cluster.log_dirs.describe_log_dirs",
    ApiKey.SASL_AUTHENTICATE: "..security.handshake.sasl_authenticate",
    ApiKey.CREATE_PARTITIONS: "..topics.changes.create_partitions",
    ApiKey.CREATE_DELEGATION_TOKEN: "..security.delegation_tokens.create_delegation_token",
    ApiKey.RENEW_DELEGATION_TOKEN: "..security.delegation_tokens.change_expiry",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "..security.delegation_tokens.change_expiry",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "..security.delegation_tokens.describe_delegation_token",
    ApiKey.DELETE_GROUPS: "..groups.administration.delete_groups",
    ApiKey.ELECT_LEADERS: "..cluster.leaders.elect_leaders",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "..configs.alter.alter_configs_on_controller",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "..cluster.leaders.alter_partition_reassignments",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "..cluster.leaders.list_partition_reassignments",
    ApiKey.OFFSET_DELETE: "..groups.offsets.offset_delete",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "..cluster.quotas.describe_client_quotas",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "..security.scram.describe_user_scram_credentials",
    ApiKey.ALTER_CLIENT_QUOTAS: "..cluster.quotas.alter_client_quotas",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "..security.scram.alter_user_scram_credentials",
    ApiKey.VOTE: "..quorum.raft_requests.handle",
    ApiKey.BEGIN_QUORUM_EPOCH: "..quorum.raft_requests.handle",
    ApiKey.END_QUORUM_EPOCH: "..quorum.raft_requests.handle",
    ApiKey.DESCRIBE_QUORUM: "..quorum.describe.describe_quorum",
    ApiKey.ALTER_PARTITION: "..nodes.replicas.alter_partition",
    ApiKey.UPDATE_FEATURES: "..cluster.administration.update_features",
    ApiKey.ENVELOPE: "..nodes.envelope.envelope",
    ApiKey.DESCRIBE_CLUSTER: "..cluster.describe.describe_cluster",
    ApiKey.FETCH_SNAPSHOT: "..quorum.fetch_snapshot.fetch_snapshot",
    ApiKey.DESCRIBE_PRODUCERS: "..transactions.describe.describe_producers",
    ApiKey.BROKER_REGISTRATION: "..nodes.registration.broker_registration",
    ApiKey.BROKER_HEARTBEAT: "..nodes.registration.broker_heartbeat",
    ApiKey.UNREGISTER_BROKER: "..cluster.administration.unregister_broker",
    ApiKey.DESCRIBE_TRANSACTIONS: "..transactions.describe.describe_transactions",
    ApiKey.LIST_TRANSACTIONS: "..transactions.describe.list_transactions",
    ApiKey.ALLOCATE_PRODUCER_IDS: "..nodes.registration.allocate_producer_ids",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "..groups.membership.consumer_group_heartbeat",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "..groups.administration.consumer_group_describe",
    ApiKey.CONTROLLER_REGISTRATION: "..nodes.registration.controller_registration",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "..telemetry.push.get_telemetry_subscriptions",
    ApiKey.PUSH_TELEMETRY: "..telemetry.push.push_telemetry",
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: "..nodes.replicas.assign_replicas_to_dirs",
    ApiKey.LIST_CONFIG_RESOURCES: "..configs.describe.list_config_resources",
    ApiKey.ADD_RAFT_VOTER: "..quorum.raft_requests.handle",
    ApiKey.REMOVE_RAFT_VOTER: "..quorum.raft_requests.handle",
    ApiKey.UPDATE_RAFT_VOTER: "..quorum.raft_requests.handle",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "..topics.describe.describe_topic_partitions",
}
"""The handler of each API, except on controller listeners if `CONTROLLER_HANDLERS` has another one."""

BEFORE_FORWARDING: Final[dict[int, str]] = {
    ApiKey.CREATE_ACLS: "..security.acls.check_acl_changes",
    ApiKey.DELETE_ACLS: "..security.acls.check_acl_changes",
    ApiKey.ALTER_CONFIGS: "..configs.alter.alter_configs",
    ApiKey.CREATE_DELEGATION_TOKEN: "..security.delegation_tokens.check_create_delegation_token",
    ApiKey.RENEW_DELEGATION_TOKEN: "..security.delegation_tokens.check_change_expiry",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "..security.delegation_tokens.check_change_expiry",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "..configs.alter.alter_configs",
    ApiKey.UNREGISTER_BROKER: "..cluster.administration.check_not_this_broker",
}
"""Functions that check a request on a broker and then forward it to the active controller."""

CONTROLLER_HANDLERS: Final[dict[int, str]] = {
    ApiKey.FETCH: "..quorum.fetch.fetch",
    ApiKey.CREATE_DELEGATION_TOKEN: "..security.delegation_tokens.create_delegation_token_directly",
    ApiKey.RENEW_DELEGATION_TOKEN: "..security.delegation_tokens.change_expiry_directly",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "..security.delegation_tokens.change_expiry_directly",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "..security.unsupported_on_controller.describe_unsupported",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "..security.unsupported_on_controller.describe_unsupported",
}
"""The handlers on controller listeners that differ from those in `HANDLERS`."""


def import_handler(name: str) -> Callable[..., Any]:
    """Import and return a handler. `name` is a value from a table of this module."""
    module, _, function = name.rpartition(".")
    handler: Callable[..., Any] = getattr(import_module(module, __package__), function)
    return handler

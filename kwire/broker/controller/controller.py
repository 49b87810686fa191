"""The controller: a pure function from a command and an image to records and a response.

It has no state and does no I/O. `broker.controller.runtime` appends the records to the metadata log, replays
them into the next image, and sends the response once they are committed.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any, Final

from kwire.broker.controller import (
    acls,
    broker_registration,
    client_quotas,
    configs,
    delegation_tokens,
    elect_leaders,
    features,
    log_directories,
    partition_reassignments,
    topics,
)
from kwire.broker.controller.alter_partition import alter_partition
from kwire.broker.controller.broker_heartbeat import broker_heartbeat
from kwire.broker.controller.commands import (
    AllocateProducerIds,
    AlterClientQuotas,
    AlterPartition,
    AlterPartitionReassignments,
    AlterScramCredentials,
    AssignReplicasToDirs,
    BrokerHeartbeat,
    Command,
    ConfigRules,
    ControllerResult,
    CreateAcls,
    CreatePartitions,
    CreateToken,
    CreateTopics,
    DeleteAcls,
    DeleteTopics,
    ElectLeaders,
    ExpireToken,
    FenceBroker,
    IncrementalAlterConfigs,
    LegacyAlterConfigs,
    ProducerIdBlock,
    RegisterBroker,
    RegisterController,
    RemoveExpiredTokens,
    RenewToken,
    RunPeriodicElection,
    UnregisterBroker,
    UpdateFeatures,
)
from kwire.broker.controller.heartbeat_manager import BrokerHeartbeatManager
from kwire.broker.metadata.features import registered_features
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.security.delegation_tokens import NO_TOKENS, DelegationTokenSettings, TokenHmacs
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.records.metadata import ProducerIdsRecord

PRODUCER_ID_BLOCK_SIZE: Final = 1000
MAX_PRODUCER_ID: Final = 2**63 - 1


class Controller:
    """The dispatcher of controller commands, with the settings of its node."""

    def __init__(
        self,
        node_id: int,
        rules: ConfigRules,
        defaults: topics.TopicDefaults,
        voter_ids: Collection[int] = (),
        token_settings: DelegationTokenSettings = NO_TOKENS,
        token_hmacs: TokenHmacs | None = None,
    ) -> None:
        """Take the settings. `voter_ids` are the ids in controller.quorum.voters."""
        self.node_id = node_id
        self._quorum = features.QuorumFeatures(node_id, registered_features(), voter_ids)
        self._rules = rules
        self.defaults = defaults
        self._token_settings = token_settings
        self._acls = acls.AclCreator()
        self._token_hmacs = TokenHmacs(token_settings.secret) if token_hmacs is None else token_hmacs

    def handle(
        self,
        command: Command,
        image: MetadataImage,
        rng: random.Random,
        heartbeats: BrokerHeartbeatManager,
    ) -> ControllerResult[Any]:
        """Return the records and the response of `command`, decided on top of `image`.

        Reads `heartbeats` and does not change it. Raises ApiError if the complete command fails.
        """
        unclean_enabled = self.defaults.unclean_leader_election
        match command:
            case CreateTopics():
                return topics.create_topics(command, image, self._rules, self.defaults, rng)
            case DeleteTopics():
                return topics.delete_topics(command, image)
            case CreatePartitions():
                return topics.create_partitions(command, image, rng)
            case IncrementalAlterConfigs():
                return configs.incremental_alter_configs(command, image, self._rules)
            case LegacyAlterConfigs():
                return configs.legacy_alter_configs(command, image, self._rules)
            case AllocateProducerIds():
                return allocate_producer_ids(command, image)
            case RegisterController():
                return broker_registration.register_controller(command, image)
            case RegisterBroker():
                return broker_registration.register_broker(
                    command, image, heartbeats, unclean_enabled=unclean_enabled
                )
            case BrokerHeartbeat():
                return broker_heartbeat(command, image, heartbeats, unclean_enabled=unclean_enabled)
            case AlterPartition():
                return alter_partition(command, image, unclean_enabled=unclean_enabled)
            case AssignReplicasToDirs():
                return log_directories.assign_replicas_to_dirs(
                    command, image, unclean_enabled=unclean_enabled
                )
            case FenceBroker():
                return broker_registration.fence_broker(command, image, unclean_enabled=unclean_enabled)
            case RunPeriodicElection():
                return elect_leaders.run_periodic_election(command, image, unclean_enabled=unclean_enabled)
            case ElectLeaders():
                return elect_leaders.elect_leaders(command, image)
            case AlterPartitionReassignments():
                return partition_reassignments.alter_partition_reassignments(
                    command, image, unclean_enabled=unclean_enabled
                )
            case UpdateFeatures():
                least = self.defaults.min_insync_replicas
                return features.update_features(command, image, self._quorum, least)
            case UnregisterBroker():
                return broker_registration.unregister_broker(command, image, unclean_enabled=unclean_enabled)
            case AlterScramCredentials():
                # This import loads OpenSSL, which most nodes never need.
                from kwire.broker.controller.alter_scram_credentials import alter_scram_credentials

                return alter_scram_credentials(command, image)
            case AlterClientQuotas():
                return client_quotas.alter_client_quotas(command, image)
            case CreateAcls():
                return self._acls.create(command, image, rng)
            case DeleteAcls():
                return acls.delete_acls(command, image)
            case CreateToken():
                return delegation_tokens.create_token(command, image, self._token_settings, rng)
            case RenewToken():
                return delegation_tokens.renew_token(command, image, self._token_settings, self._token_hmacs)
            case ExpireToken():
                return delegation_tokens.expire_token(command, image, self._token_settings, self._token_hmacs)
            case RemoveExpiredTokens():
                return delegation_tokens.remove_expired_tokens(command, image)


def allocate_producer_ids(
    command: AllocateProducerIds, image: MetadataImage
) -> ControllerResult[ProducerIdBlock]:
    """Reserve the next block of producer ids for a broker. KIP-730.

    Raises ApiError STALE_BROKER_EPOCH for an outdated epoch, or UNKNOWN_SERVER_ERROR if no ids are left.
    """
    broker_registration.check_broker_epoch(image, command.broker_id, command.broker_epoch)
    first = image.next_producer_id
    if first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "There are no producer ids left")
    record = ProducerIdsRecord(
        broker_id=command.broker_id,
        broker_epoch=command.broker_epoch,
        next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
    )
    return ControllerResult([StoredRecord(record)], ProducerIdBlock(first, PRODUCER_ID_BLOCK_SIZE))

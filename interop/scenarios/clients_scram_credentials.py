"""SCRAM credentials that Python clients create, describe and delete (KIP-554)."""

from __future__ import annotations

from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaAdminClient

from interop.brokers import Broker
from interop.scenario import scenario
from interop.tools import until

SECONDS = 30.0
MECHANISMS = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)


def error_names(futures: Any) -> dict[str, str]:
    """Return the error name for each user, or "done" if there is no error."""
    return {
        name: "done" if (error := future.exception(SECONDS)) is None else str(error.args[0].name())
        for name, future in sorted(futures.items())
    }


def alter(admin: AdminClient, *alterations: UserScramCredentialAlteration) -> Any:
    return admin.alter_user_scram_credentials(list(alterations))


def credential_infos(admin: AdminClient, name: str) -> list[Any]:
    found: Any = admin.describe_user_scram_credentials([name])
    infos = found[name].result(SECONDS).scram_credential_infos
    return sorted((info.mechanism.name, info.iterations) for info in infos)


def has_credentials(admin: AdminClient, name: str, count: int) -> bool:
    """Return whether the broker has these credentials. It learns of them a moment after the controller."""
    try:
        return len(credential_infos(admin, name)) == count
    except KafkaException as error:
        if error.args[0].code() != KafkaError.RESOURCE_NOT_FOUND:
            raise
        return False


@scenario(seconds=120)
def confluent_kafka(broker: Broker) -> Any:
    """Create, describe and delete credentials of both mechanisms."""
    admin, name = AdminClient({"bootstrap.servers": broker.bootstrap}), "confluents-user"
    seen: list[Any] = []

    for number, mechanism in enumerate(MECHANISMS, start=1):
        right, wrong = ScramCredentialInfo(mechanism, 5000 + number), ScramCredentialInfo(mechanism, 1)
        given = (
            UserScramCredentialUpsertion(name, right, b"a password"),
            UserScramCredentialUpsertion("nobody", wrong, b"x"),
        )
        seen.append(error_names(alter(admin, *given)))
        until(partial(has_credentials, admin, name, number))
        seen.append(credential_infos(admin, name))
    all_users: Any = admin.describe_user_scram_credentials()
    seen.append(name in all_users.result(SECONDS))
    seen.append(error_names(admin.describe_user_scram_credentials([name, "nobody"])))
    for mechanism in MECHANISMS:
        deletions = [UserScramCredentialDeletion(user, mechanism) for user in (name, "nobody")]
        seen.append(error_names(alter(admin, *deletions)))
    return seen


@scenario(seconds=120)
def kafka_python(broker: Broker) -> Any:
    """Describe credentials that were created by another client."""
    name = "kafka-pythons-user"
    confluent = AdminClient({"bootstrap.servers": broker.bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 6000)
    given = alter(confluent, UserScramCredentialUpsertion(name, info, b"a password"))
    seen: list[Any] = [error_names(given)]
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    until(lambda: not admin.describe_user_scram_credentials([name])[name]["error"])
    seen += [str(admin.describe_user_scram_credentials([user])) for user in (name, "nobody")]
    admin.close()
    taken = UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_256)
    return [*seen, error_names(alter(confluent, taken))]

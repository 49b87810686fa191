"""The quotas of one kind, and their precedence (Kafka's `DefaultQuotaCallback`).

The first of these that exists applies to a client, for the sum of all clients with the same group:

1. user and client id; 2. user and default client id: a group for each user and client id
3. user: a group for each user
4. default user and client id; 5. default user and default client id: for each user and client id
6. default user: for each user
7. client id; 8. default client id: for each client id

If all quotas are of one kind, such as users, this kind decides the group of all clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

QuotaEntity = tuple[tuple[str, str | None], ...]
"""((entity type, entity name), ...), sorted by type. The name None is the default entity of the type."""
QuotaGroup = tuple[str, str]
"""A user and a client id, which share one quota. An empty string stands for all."""

UNLIMITED: Final = float(2**63 - 1)
"""The limit of clients without a quota."""

_Entity = tuple[str | None, str | None]
_DEFAULT: Final = "\0"
"""The name of default entities in `_Entity`. Kafka's strings may contain it, but no client has this name."""


class QuotaLimits:
    """The limits of one quota key, such as `producer_byte_rate`, by user and client id."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]], key: str) -> None:
        self._limits: dict[_Entity, float] = {}
        for entity, values in quotas.items():
            names = {kind: _DEFAULT if name is None else name for kind, name in entity}
            if key in values and names.keys() <= {USER, CLIENT_ID}:
                self._limits[names.get(USER), names.get(CLIENT_ID)] = values[key]
        self._kinds = {(user is not None, client_id is not None) for user, client_id in self._limits}

    def __len__(self) -> int:
        return len(self._limits)

    def find(self, user: str, client_id: str) -> tuple[QuotaGroup, float]:
        """Return the group of a client, and the limit of this group."""
        group = self._group(user, client_id)
        return group, self._limit_of(group)

    def _group(self, user: str, client_id: str) -> QuotaGroup:
        both, of_user, of_client = (user, client_id), (user, ""), ("", client_id)
        if len(self._kinds) <= 1:
            return (
                both
                if (True, True) in self._kinds
                else of_user
                if (True, False) in self._kinds
                else of_client
            )
        for entity, group in (
            ((user, client_id), both),
            ((user, _DEFAULT), both),
            ((user, None), of_user),
            ((_DEFAULT, client_id), both),
            ((_DEFAULT, _DEFAULT), both),
            ((_DEFAULT, None), of_user),
        ):
            if entity in self._limits:
                return group
        return of_client

    def _limit_of(self, group: QuotaGroup) -> float:
        """Return the limit of a group. A client without a client id is not in the group of any client id."""
        user, client_id = group
        entities: tuple[_Entity, ...]
        if user and client_id:
            entities = (user, client_id), (user, _DEFAULT), (_DEFAULT, client_id), (_DEFAULT, _DEFAULT)
        elif user:
            entities = (user, None), (_DEFAULT, None)
        elif client_id:
            entities = (None, client_id), (None, _DEFAULT)
        else:
            entities = ()
        return next((self._limits[one] for one in entities if one in self._limits), UNLIMITED)

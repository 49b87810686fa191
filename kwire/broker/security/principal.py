"""Principals: the identities of authenticated connections."""

from __future__ import annotations

from typing import Final

from kwire.wire.named_tuple import NamedTuple

USER: Final = "User"


class Principal(NamedTuple):
    """A principal's type and name, as in Kafka's KafkaPrincipal."""

    type: str
    name: str
    token_authenticated: bool = False
    """Whether the client authenticated with a delegation token. Such a client cannot request other tokens."""

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    def is_same(self, other: Principal) -> bool:
        """Return whether type and name are equal, no matter how the clients authenticated."""
        return self[:2] == other[:2]


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal of clients on listeners without authentication."""

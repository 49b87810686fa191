"""Who asks: what a connection was authenticated as."""

from __future__ import annotations

from typing import Final

from kwire.wire.named_tuple import NamedTuple

USER: Final = "User"


class Principal(NamedTuple):
    """A kind and a name, as Kafka's KafkaPrincipal has them."""

    type: str
    name: str
    token_authenticated: bool = False
    """Whether it has shown a delegation token, not a password: by which no further token may be asked for."""

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    def is_same(self, other: Principal) -> bool:
        """Whether it is the same one, however it was authenticated."""
        return self[:2] == other[:2]


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Whoever comes by a listener that asks nobody who he is."""

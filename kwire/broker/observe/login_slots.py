"""The limits of logins that are checked at the same time, in total and per address.

A login needs a slot before any password is compared. A failed or canceled one keeps its slot until its delay
has ended, also if the client closes the connection. So the time until a response and the status 503 do not
depend on the password, and the number of guesses per second is limited.

Other addresses must not exclude a client that has logged in before. So the addresses of the last successful
logins always have slots of their own, beyond the total.
"""

from __future__ import annotations

import math
from typing import Final

MAX_LOGINS: Final = 16
"""The number of slots for all addresses without a successful login."""
MAX_LOGINS_PER_ADDRESS: Final = 4
MAX_ADDRESSES: Final = 64
"""The number of addresses with a successful login that are kept. A further one replaces the oldest."""


class LoginSlot:
    """The slot of one login."""

    def __init__(self, ip: str) -> None:
        self.ip = ip
        self.until_s = math.inf
        """The time at which the slot is free; infinite while the login is being checked."""


class LoginSlots:
    """The slots of the logins at one HTTP port. Times are in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._taken: list[LoginSlot] = []
        self._known: dict[str, None] = {}
        """The addresses of the last successful logins, the most recent last."""

    def take(self, ip: str, now_s: float) -> LoginSlot | None:
        """Take a slot; None if too many logins are being checked or delayed."""
        self._taken = [one for one in self._taken if one.until_s > now_s]
        if sum(one.ip == ip for one in self._taken) >= MAX_LOGINS_PER_ADDRESS:
            return None
        others = sum(one.ip not in self._known for one in self._taken)
        if ip not in self._known and others >= MAX_LOGINS:
            return None
        slot = LoginSlot(ip)
        self._taken.append(slot)
        return slot

    def succeed(self, slot: LoginSlot) -> None:
        """Free the slot of a correct login, and keep its address."""
        slot.until_s = -math.inf
        self._known.pop(slot.ip, None)
        while len(self._known) >= MAX_ADDRESSES:
            del self._known[next(iter(self._known))]
        self._known[slot.ip] = None

    def fail(self, slot: LoginSlot, until_s: float) -> None:
        """Free the slot of a failed or canceled login at the given time."""
        slot.until_s = until_s

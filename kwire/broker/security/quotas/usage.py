"""The use of one quota by each group of clients."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from kwire.broker.security.quotas.limits import QuotaGroup, QuotaLimits
from kwire.broker.security.quotas.rates import SampledRate, TokenBucket

MAX_GROUPS: Final = 10_000
"""The number of groups that are kept: the last used. Clients choose their client ids."""
IDLE_MS: Final = 3_600_000
"""The time after which an unused group is dropped, as in Apache Kafka."""

RateT = TypeVar("RateT", bound=SampledRate | TokenBucket)


class QuotaUsage(Generic[RateT]):
    """The rates of all groups of one quota key, and their limits."""

    def __init__(self, limits: QuotaLimits, new_rate: Callable[[], RateT]) -> None:
        """`new_rate` creates the rate of a group."""
        self.limits = limits
        """The current limits. Rates stay when the limits change."""
        self._new_rate = new_rate
        self._groups: OrderedDict[QuotaGroup, RateT] = OrderedDict()
        self._used_ms: dict[QuotaGroup, int] = {}

    def find(self, user: str, client_id: str, now_ms: int) -> tuple[RateT, float]:
        """Return the rate of a client's group, and its limit."""
        group, limit = self.limits.find(user, client_id)
        groups, used_ms = self._groups, self._used_ms
        rate = groups.get(group)
        if rate is None:
            while groups and (len(groups) >= MAX_GROUPS or now_ms - used_ms[next(iter(groups))] > IDLE_MS):
                dropped, _ = groups.popitem(last=False)
                del used_ms[dropped]
            rate = groups[group] = self._new_rate()
        else:
            groups.move_to_end(group)
        used_ms[group] = now_ms
        return rate, limit

    def __len__(self) -> int:
        return len(self._groups)

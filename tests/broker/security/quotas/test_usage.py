"""The groups whose rates are kept."""

from __future__ import annotations

from kwire.broker.security.quotas.limits import QuotaLimits
from kwire.broker.security.quotas.rates import SampledRate
from kwire.broker.security.quotas.usage import IDLE_MS, MAX_GROUPS, QuotaUsage

LIMITS = QuotaLimits({(("client-id", None),): {"producer_byte_rate": 5.0}}, "producer_byte_rate")


def new_usage() -> QuotaUsage[SampledRate]:
    return QuotaUsage(LIMITS, lambda: SampledRate(2, 1000))


def test_client_ids_do_not_make_the_groups_grow_without_limit() -> None:
    usage = new_usage()
    kept, _ = usage.find("", "kept", 0)
    for number in range(MAX_GROUPS + 10):
        usage.find("", f"client-{number}", 0)
        usage.find("", "kept", 0)
    assert len(usage) == MAX_GROUPS
    assert usage.find("", "kept", 0)[0] is kept


def test_idle_groups_are_dropped() -> None:
    usage = new_usage()
    usage.find("", "idle", 0)
    usage.find("", "busy", IDLE_MS)
    usage.find("", "new", IDLE_MS + 1)
    assert len(usage) == 2

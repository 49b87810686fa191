"""Which quota applies to a client. interop/test_quota_throttles.py has the comparison with Kafka."""

from __future__ import annotations

from kwire.broker.security.quotas.limits import UNLIMITED, QuotaEntity, QuotaLimits

KEY = "producer_byte_rate"
PRECEDENCE = (
    (("client-id", "app"), ("user", "alice")),
    (("client-id", None), ("user", "alice")),
    (("user", "alice"),),
    (("client-id", "app"), ("user", None)),
    (("client-id", None), ("user", None)),
    (("user", None),),
    (("client-id", "app"),),
    (("client-id", None),),
)
"""The quotas that apply to alice with client id app, the first of which counts."""


def test_the_most_specific_quota_applies() -> None:
    for count in range(len(PRECEDENCE)):
        quotas = {entity: {KEY: float(number)} for number, entity in enumerate(PRECEDENCE)}
        for entity in PRECEDENCE[:count]:
            del quotas[entity]
        assert QuotaLimits(quotas, KEY).find("alice", "app")[1] == count
    assert QuotaLimits({}, KEY).find("alice", "app")[1] == UNLIMITED


def test_a_quota_of_a_user_is_shared_by_the_clients_of_this_user() -> None:
    limits = QuotaLimits({(("user", None),): {KEY: 5.0}}, KEY)
    assert limits.find("alice", "app") == limits.find("alice", "job") == (("alice", ""), 5.0)
    assert limits.find("bob", "app") == (("bob", ""), 5.0)
    limits = QuotaLimits({(("client-id", None),): {KEY: 5.0}}, KEY)
    assert limits.find("alice", "app") == limits.find("bob", "app") == (("", "app"), 5.0)


def test_other_keys_and_quotas_of_addresses_do_not_count() -> None:
    quotas: dict[QuotaEntity, dict[str, float]] = {
        (("ip", None),): {KEY: 5.0},
        (("user", "alice"),): {"consumer_byte_rate": 5.0},
    }
    assert not QuotaLimits(quotas, KEY)

"""Rates and token buckets. interop/test_quota_throttles.py compares random cases with Apache Kafka."""

from __future__ import annotations

from kwire.broker.security.quotas.rates import SampledRate, TokenBucket


def test_windows_that_have_not_begun_count() -> None:
    rate = SampledRate(11, 1000)
    rate.record(100_000, 5_000)
    assert rate.per_second(5_000) == 10_000
    assert rate.throttle_time_ms(10_000, 5_000) == 0
    rate.record(100_000, 5_000)
    assert rate.throttle_time_ms(10_000, 5_000) == 10_000


def test_old_windows_expire() -> None:
    rate = SampledRate(2, 1000)
    rate.record(50, 0)
    rate.record(7, 1_500)
    assert rate.per_second(1_999) == 57 / 1.999
    assert rate.per_second(2_000) == 7 / 1.5, "one window has not begun, and half of another has passed"
    assert rate.per_second(3_500) == 0


def test_a_value_can_be_taken_back() -> None:
    rate = SampledRate(2, 1000)
    rate.record(50, 0)
    rate.record(-50, 10)
    assert rate.per_second(20) == 0


def test_a_burst_is_refilled_at_the_limit() -> None:
    bucket = TokenBucket(100, 1000)
    bucket.take(560, 5, 0)  # the example of KIP-599
    assert bucket.throttle_time_ms(5, 0) == 12_000
    assert bucket.throttle_time_ms(5, 11_999) == 1
    assert bucket.throttle_time_ms(5, 12_000) == 0
    assert bucket.tokens(5, 10_000_000) == 500, "the bucket is full"

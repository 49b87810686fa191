"""Throttle times for random quotas and clients, compared with Apache Kafka's quota managers.

Quotas change between the records of values. Some clients are idle for longer than all windows.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

from interop.java_outputs import java_outputs
from kwire.broker.security.quotas.limits import (
    CLIENT_ID,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    USER,
    QuotaEntity,
    QuotaLimits,
)
from kwire.broker.security.quotas.rates import SampledRate, TokenBucket
from kwire.broker.security.quotas.usage import QuotaUsage

SEED: Final = 13
CASES: Final = 300
STEPS: Final = 60
USERS: Final = "alice", "bob"
CLIENTS: Final = "app", "job", ""
START_MS: Final = 1_750_000_000_000


class RandomCase:
    """A case with few users and client ids, so that quotas often apply, and kwire's throttle times."""

    def __init__(self, kind: str, seed: int) -> None:
        self._random = random = Random(seed)
        self._is_bucket = kind == "mutations"
        self._key = CONTROLLER_MUTATION_RATE if self._is_bucket else PRODUCER_BYTE_RATE
        windows, seconds = random.choice((1, 2, 3, 11)), random.choice((1, 2))
        self._usage: QuotaUsage[Any] = QuotaUsage(
            QuotaLimits({}, self._key),
            lambda: (TokenBucket if self._is_bucket else SampledRate)(windows, seconds * 1000),
        )
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self._now_ms = START_MS
        levels = random.sample(((True, False), (False, True), (True, True)), random.choice((1, 2, 3)))
        self.steps: list[list[Any]] = []
        for level in levels:
            self._set(level)
        self.throttle_times = " ".join(
            str(answer) for answer in (self._step(levels) for _ in range(STEPS)) if answer is not None
        )
        self.question = json.dumps(
            {"kind": kind, "windows": windows, "seconds": seconds, "steps": self.steps}
        )

    def _set(self, level: tuple[bool, bool]) -> None:
        choose = self._random.choice
        user = choose((*USERS, None)) if level[0] else ""
        client_id = choose(("app", "job", None)) if level[1] else ""
        entity: QuotaEntity = tuple(
            (kind, name) for kind, name in ((CLIENT_ID, client_id), (USER, user)) if name != ""
        )
        limit = choose((None, 5.0, 50.0, 1000.0))
        if limit is None:
            self._quotas.pop(entity, None)
        else:
            self._quotas[entity] = {self._key: limit}
        names = [None if name == "" else name or "" for name in (user, client_id)]
        self.steps.append(["set", *names, limit])
        self._usage.limits = QuotaLimits(self._quotas, self._key)

    def _step(self, levels: list[tuple[bool, bool]]) -> int | None:
        choose = self._random.choice
        if self._random.random() < 0.1:
            self._set(choose(levels))
            return None
        self._now_ms += choose((0, 1, 7, 150, 400, 999, 1000, 2500, 30_000))
        user, client_id, value = choose(USERS), choose(CLIENTS), choose((1.0, 10.0, 700.0))
        self.steps.append(["record", user, client_id, value, self._now_ms])
        if not self._usage.limits:
            return 0
        rate, limit = self._usage.find(user, client_id, self._now_ms)
        if not self._is_bucket:
            rate.record(value, self._now_ms)
            return int(rate.throttle_time_ms(limit, self._now_ms))
        throttle_ms: int = rate.throttle_time_ms(limit, self._now_ms)
        if rate.tokens(limit, self._now_ms) >= 0:
            rate.take(value, limit, self._now_ms)
        return throttle_ms


def test_throttle_times_of_bytes() -> None:
    compare("bytes")


def test_throttle_times_of_mutations() -> None:
    compare("mutations")


def compare(kind: str) -> None:
    cases = [RandomCase(kind, SEED + number) for number in range(CASES)]
    answers = java_outputs("QuotaThrottles", [case.question for case in cases])
    for case, expected in zip(cases, answers, strict=True):
        assert case.throttle_times == expected, case.question
    found = " ".join(answers).split()
    assert CASES < found.count("0") < len(found) - CASES

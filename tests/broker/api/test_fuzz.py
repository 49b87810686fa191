"""Whatever is sent: at worst that connection is closed, the others are served, and memory stays bounded.

Hypothesis changes valid frames of every API and version that is served. `python -m tests.broker.api.fuzz`
does so for as long as one likes, guided by the lines that are reached.
"""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kwire.wire.registry import API_VERSIONS
from tests.broker.api.frames import (
    KINDS,
    LIES,
    SERVED_VERSIONS,
    VARIANTS,
    Change,
    FuzzHarness,
    changed,
    recorded,
)
from tests.broker.api.fuzz import random_changes

CASES = [
    pytest.param(key, version, id=f"{API_VERSIONS[key].name}-{version}") for key, version in SERVED_VERSIONS
]
EXAMPLES = 8
"""Of each API and version; there are about 170 of them."""
MOST_BYTES = 48 << 20
"""What some thousand requests may leave in a node whose disk is memory, too."""

CHANGES = st.lists(
    st.builds(
        Change,
        st.sampled_from(KINDS),
        st.integers(0, 1 << 12),
        st.sampled_from(LIES) | st.binary(min_size=1, max_size=4),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)
SENT = st.lists(
    st.tuples(st.integers(0, 100), CHANGES | st.just([]), st.booleans()),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize(("key", "version"), CASES)
def test_valid_frames_are_answered(key: int, version: int) -> None:
    harness = FuzzHarness()
    for variant in range(VARIANTS):
        harness.send([recorded(key, version, variant, harness.topic_ids).frame], advance_ms=1_000)
        harness.check_sound()


@pytest.mark.parametrize(("key", "version"), CASES)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(sent=SENT, advance_ms=st.sampled_from((0, 0, 600, 60_000)))
def test_changed_frames(
    key: int, version: int, sent: list[tuple[int, list[Change], bool]], advance_ms: int
) -> None:
    harness = FuzzHarness()
    for variant, changes, reseal in sent:
        frame = changed(recorded(key, version, variant, harness.topic_ids), changes, reseal=reseal).frame
        harness.send([frame], advance_ms=advance_ms)
        harness.check_sound()


def test_many_changed_frames_on_one_node() -> None:
    """Pipelined, of all APIs, so that what one leaves behind is met by the next; and in bounded memory."""
    rng = random.Random(1)
    harness = FuzzHarness()
    corpus = [
        recorded(key, version, variant, harness.topic_ids)
        for key, version in SERVED_VERSIONS
        for variant in range(VARIANTS)
    ]
    tracemalloc.start()
    try:
        for _ in range(400):
            frames = [
                changed(rng.choice(corpus), random_changes(rng), reseal=rng.random() < 0.7).frame
                for _ in range(rng.randint(1, 5))
            ]
            harness.send(frames, advance_ms=rng.choice((0, 0, 600)))
            harness.check_sound()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES
    assert kept < MOST_BYTES

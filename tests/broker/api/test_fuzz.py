"""Mutated frames: at worst their connection is closed, others are served, and memory stays bounded.

Hypothesis mutates valid frames of every supported API and version. `python -m tests.broker.api.fuzz` runs
for any time and is guided by line coverage.
"""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kwire.wire.registry import API_VERSIONS
from tests.broker.api.frames import (
    INVALID_LENGTHS,
    MUTATION_KINDS,
    SERVED_VERSIONS,
    VARIANTS,
    FuzzHarness,
    Mutation,
    mutate,
    valid_frame,
)
from tests.broker.api.fuzz import random_mutations

CASES = [
    pytest.param(key, version, id=f"{API_VERSIONS[key].name}-{version}") for key, version in SERVED_VERSIONS
]
EXAMPLES = 8
"""Examples per API and version, of which there are about 170."""
MAX_BYTES = 48 << 20
"""The memory that some thousand requests may leave in a node, including its disk in memory."""

CHANGES = st.lists(
    st.builds(
        Mutation,
        st.sampled_from(MUTATION_KINDS),
        st.integers(0, 1 << 12),
        st.sampled_from(INVALID_LENGTHS) | st.binary(min_size=1, max_size=4),
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
def test_valid_frames_get_responses(key: int, version: int) -> None:
    harness = FuzzHarness()
    for variant in range(VARIANTS):
        harness.send([valid_frame(key, version, variant, harness.topic_ids).frame], advance_ms=1_000)
        harness.check_control_topic()


@pytest.mark.parametrize(("key", "version"), CASES)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(sent=SENT, advance_ms=st.sampled_from((0, 0, 600, 60_000)))
def test_mutated_frames_do_not_break_the_node(
    key: int, version: int, sent: list[tuple[int, list[Mutation], bool]], advance_ms: int
) -> None:
    harness = FuzzHarness()
    for variant, changes, reseal in sent:
        frame = mutate(valid_frame(key, version, variant, harness.topic_ids), changes, reseal=reseal).frame
        harness.send([frame], advance_ms=advance_ms)
        harness.check_control_topic()


def test_many_mutated_frames_leave_memory_bounded() -> None:
    """Pipelined frames of all APIs meet the state that earlier ones left, in bounded memory."""
    rng = random.Random(1)
    harness = FuzzHarness()
    corpus = [
        valid_frame(key, version, variant, harness.topic_ids)
        for key, version in SERVED_VERSIONS
        for variant in range(VARIANTS)
    ]
    tracemalloc.start()
    try:
        for _ in range(400):
            frames = [
                mutate(rng.choice(corpus), random_mutations(rng), reseal=rng.random() < 0.7).frame
                for _ in range(rng.randint(1, 5))
            ]
            harness.send(frames, advance_ms=rng.choice((0, 0, 600)))
            harness.check_control_topic()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_BYTES
    assert kept < MAX_BYTES

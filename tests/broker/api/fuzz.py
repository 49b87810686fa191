"""A coverage-guided fuzzer to run by hand: it sends random frames and mutations of them.

    python -m tests.broker.api.fuzz --seconds 60 --seed 1

A frame that reaches new lines joins the corpus for further mutations. The fuzzer minimizes a failure, and
prints the frames to send to a new `FuzzHarness`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from kwire.wire.registry import API_VERSIONS
from tests.broker.api.frames import (
    INVALID_LENGTHS,
    MUTATION_KINDS,
    SERVED_VERSIONS,
    VARIANTS,
    FuzzHarness,
    Mutation,
    ValidFrame,
    mutate,
    valid_frame,
)

ROOT = str(Path(__file__).resolve().parents[3])
COVERED_PATHS = (f"{ROOT}/kwire/",)
GENERATED = "<"
"""The prefix of the file names of codecs, which are compiled at run time."""
SENDS_PER_HARNESS = 300
"""The frames per node, so that the frames to this node suffice to reproduce a failure."""
REPORT_SECONDS = 10

Sent = tuple[list[bytes], int]
"""Frames of one connection, and how long it stays open afterwards."""


def random_mutations(rng: random.Random) -> list[Mutation]:
    """Return a few random mutations."""
    return [
        Mutation(
            rng.choice(MUTATION_KINDS),
            rng.randrange(1 << 12),
            rng.choice(INVALID_LENGTHS) if rng.random() < 0.7 else rng.randbytes(rng.randint(1, 4)),
            rng.randrange(256),
        )
        for _ in range(rng.choice((1, 1, 2, 4)))
    ]


class Coverage:
    """Line coverage of kwire, by `sys.monitoring` where it exists (it is nearly free), else by tracing."""

    def __init__(self) -> None:
        self.lines: set[tuple[CodeType, int]] = set()
        self._is_covered: dict[CodeType, bool] = {}
        self._monitoring: Any = getattr(sys, "monitoring", None)

    def start(self) -> None:
        if self._monitoring is None:
            sys.settrace(self._trace)
            return
        tool, events = self._monitoring.COVERAGE_ID, self._monitoring.events
        self._monitoring.use_tool_id(tool, "kwire fuzzer")
        self._monitoring.register_callback(tool, events.LINE, self._line)
        self._monitoring.set_events(tool, events.LINE)

    def stop(self) -> None:
        if self._monitoring is None:
            sys.settrace(None)
        else:
            self._monitoring.set_events(self._monitoring.COVERAGE_ID, 0)
            self._monitoring.free_tool_id(self._monitoring.COVERAGE_ID)

    def _line(self, code: CodeType, line: int) -> Any:
        if self._covers(code):
            self.lines.add((code, line))
        return self._monitoring.DISABLE

    def _covers(self, code: CodeType) -> bool:
        known = self._is_covered.get(code)
        if known is None:
            known = self._is_covered[code] = code.co_filename.startswith((*COVERED_PATHS, GENERATED))
        return known

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._trace_lines if self._covers(frame.f_code) else None

    def _trace_lines(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.lines.add((frame.f_code, frame.f_lineno))
        return self._trace_lines


class Fuzzer:
    """A fuzzer that sends mutated frames to one node after the other until one fails."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.coverage = Coverage()
        self.harness = FuzzHarness()
        self.history: list[Sent] = []
        self.corpus = [
            valid_frame(key, version, variant, self.harness.topic_ids)
            for key, version in SERVED_VERSIONS
            for variant in range(VARIANTS)
        ]
        self.found: list[ValidFrame] = []
        self.count = 0

    def run(self, seconds: float, report: Callable[[str], None]) -> str | None:
        """Fuzz for this time. Return the description of a failure, or None."""
        started = time.monotonic()
        reported = started
        while (now := time.monotonic()) - started < seconds:
            if now - reported >= REPORT_SECONDS:
                reported = now
                report(self.status())
            if len(self.history) >= SENDS_PER_HARNESS:
                self.harness, self.history = FuzzHarness(), []
            frames = [self.next_frame() for _ in range(self.rng.choice((1, 1, 2, 4)))]
            sent = [one.frame for one in frames], self.rng.choice((0, 0, 600, 60_000))
            self.history.append(sent)
            before = len(self.coverage.lines)
            self.coverage.start()
            try:
                deliver(self.harness, [sent])
            except Exception:
                self.coverage.stop()
                return describe_failure(minimize(self.history), traceback.format_exc())
            self.coverage.stop()
            self.count += len(frames)
            if len(self.coverage.lines) > before:
                self.found += frames
        report(self.status())
        return None

    def status(self) -> str:
        return (
            f"{self.count} frames, {len(self.coverage.lines)} lines reached, "
            f"{len(self.found)} frames found that reached new ones"
        )

    def next_frame(self) -> ValidFrame:
        if self.rng.random() < 0.5:
            key, version = self.rng.choice(SERVED_VERSIONS)
            chosen = valid_frame(key, version, self.rng.randrange(1 << 30), self.harness.topic_ids)
        else:
            chosen = self.rng.choice(self.found or self.corpus)
        if self.rng.random() < 0.3:
            return chosen  # unchanged, so that mutated frames meet existing state
        return mutate(chosen, random_mutations(self.rng), reseal=self.rng.random() < 0.7)


def deliver(harness: FuzzHarness, history: Sequence[Sent]) -> None:
    for frames, advance_ms in history:
        harness.send(frames, advance_ms=advance_ms)
        harness.check_control_topic()


def fails(history: Sequence[Sent]) -> bool:
    try:
        deliver(FuzzHarness(), history)
    except Exception:
        return True
    return False


def minimize(history: list[Sent]) -> list[Sent]:
    """Remove everything from the history that the failure does not need."""
    if not fails(history):
        return history
    size = len(history)
    while size:
        at = 0
        while at < len(history):
            without = history[:at] + history[at + size :]
            if without and fails(without):
                history = without
            else:
                at += size
        size //= 2
    return history


def describe_failure(history: Sequence[Sent], why: str) -> str:
    lines = [why]
    for frames, advance_ms in history:
        for frame in frames:
            key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
            lines.append(f"# {API_VERSIONS[key].name if key in API_VERSIONS else key} {version}")
        shown = ", ".join(f"bytes.fromhex('{frame.hex()}')" for frame in frames)
        lines.append(f"harness.send([{shown}], advance_ms={advance_ms})")
    return "\n".join([*lines, "harness.check_sound()"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    problem = Fuzzer(options.seed).run(options.seconds, lambda line: print(line, flush=True))
    print("nothing broke" if problem is None else problem)
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())

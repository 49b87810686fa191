"""A fuzzer to run by hand: random frames, and random changes of them, guided by the lines that they reach.

    python -m tests.broker.api.fuzz --seconds 60 --seed 1

A frame that reaches new lines joins the corpus that others are made from. What it finds is made small, and
printed as the frames to send to a fresh `FuzzHarness`.
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
    KINDS,
    LIES,
    SERVED_VERSIONS,
    VARIANTS,
    Change,
    FuzzHarness,
    Recorded,
    changed,
    recorded,
)

ROOT = str(Path(__file__).resolve().parents[3])
OURS = (f"{ROOT}/kwire/",)
GENERATED = "<"
"""Codecs are compiled at run time: the names of their files begin so."""
SENDS_PER_HARNESS = 300
"""Then a node is given up: a failure can be told by what this one was sent."""
REPORT_SECONDS = 10

Sent = tuple[list[bytes], int]
"""Frames over one connection, and how long it stays open afterwards."""


def random_changes(rng: random.Random) -> list[Change]:
    """A few changes of any kind."""
    return [
        Change(
            rng.choice(KINDS),
            rng.randrange(1 << 12),
            rng.choice(LIES) if rng.random() < 0.7 else rng.randbytes(rng.randint(1, 4)),
            rng.randrange(256),
        )
        for _ in range(rng.choice((1, 1, 2, 4)))
    ]


class Coverage:
    """Which lines of ours have run. `sys.monitoring` where there is one (it costs nothing), else a trace."""

    def __init__(self) -> None:
        self.lines: set[tuple[CodeType, int]] = set()
        self._is_ours: dict[CodeType, bool] = {}
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
        if self._ours(code):
            self.lines.add((code, line))
        return self._monitoring.DISABLE

    def _ours(self, code: CodeType) -> bool:
        known = self._is_ours.get(code)
        if known is None:
            known = self._is_ours[code] = code.co_filename.startswith((*OURS, GENERATED))
        return known

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._trace_lines if self._ours(frame.f_code) else None

    def _trace_lines(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.lines.add((frame.f_code, frame.f_lineno))
        return self._trace_lines


class Fuzzer:
    """Sends changed frames to one node after the other, until one breaks."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.coverage = Coverage()
        self.harness = FuzzHarness()
        self.history: list[Sent] = []
        self.corpus = [
            recorded(key, version, variant, self.harness.topic_ids)
            for key, version in SERVED_VERSIONS
            for variant in range(VARIANTS)
        ]
        self.found: list[Recorded] = []
        self.count = 0

    def run(self, seconds: float, report: Callable[[str], None]) -> str | None:
        """Fuzz for so long. What went wrong, if something did."""
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
                return told(smallest(self.history), traceback.format_exc())
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

    def next_frame(self) -> Recorded:
        if self.rng.random() < 0.5:
            key, version = self.rng.choice(SERVED_VERSIONS)
            chosen = recorded(key, version, self.rng.randrange(1 << 30), self.harness.topic_ids)
        else:
            chosen = self.rng.choice(self.found or self.corpus)
        if self.rng.random() < 0.3:
            return chosen  # so that what the changed ones meet is not always empty
        return changed(chosen, random_changes(self.rng), reseal=self.rng.random() < 0.7)


def deliver(harness: FuzzHarness, history: Sequence[Sent]) -> None:
    for frames, advance_ms in history:
        harness.send(frames, advance_ms=advance_ms)
        harness.check_sound()


def breaks(history: Sequence[Sent]) -> bool:
    try:
        deliver(FuzzHarness(), history)
    except Exception:
        return True
    return False


def smallest(history: list[Sent]) -> list[Sent]:
    """What is left when everything is taken away without which it breaks, too."""
    if not breaks(history):
        return history
    size = len(history)
    while size:
        at = 0
        while at < len(history):
            without = history[:at] + history[at + size :]
            if without and breaks(without):
                history = without
            else:
                at += size
        size //= 2
    return history


def told(history: Sequence[Sent], why: str) -> str:
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

"""Seeds on demand: one with its transcript, or many on all cores."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Sequence

from kwire.testing.simulation.history import History


def failure_of(seed: int) -> str | None:
    """Run a seed: what went wrong, with the transcript and how to see it again; None if nothing did."""
    history = History(seed)
    try:
        history.run()
    except Exception as error:
        where = "".join(traceback.format_exception(error)).rstrip()
        return "\n".join(
            [
                f"seed {seed} fails:",
                *history.transcript,
                where,
                f"replay with: python -m kwire.testing.simulation --seed {seed}",
            ]
        )
    return None


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kwire.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and show its transcript")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    parser.add_argument("--stop-after", type=int, default=3, help="how many failures are enough")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        logging.basicConfig(level=logging.ERROR)
        _quiet()
        history = History(options.seed)
        try:
            history.run()
        finally:
            print("\n".join(history.transcript))
        print(f"seed {options.seed} holds")
        return 0
    return _many(options.first, options.seeds, options.jobs, options.stop_after)


def run_many(seeds: Sequence[int]) -> list[str]:
    """The failures of these seeds, on all cores."""
    with multiprocessing.get_context("spawn").Pool(initializer=_quiet) as pool:
        return [failure for failure in pool.imap(failure_of, seeds, chunksize=10) if failure is not None]


def _many(first: int, count: int, jobs: int, stop_after: int) -> int:
    began = time.monotonic()
    failures = done = 0
    seeds = range(first, first + count)
    with multiprocessing.Pool(jobs, initializer=_quiet) as pool:
        for failure in pool.imap_unordered(failure_of, seeds, chunksize=8):
            done += 1
            if failure is not None:
                failures += 1
                print(failure, "\n", flush=True)
                if failures >= stop_after:
                    pool.terminate()
                    break
            if done % 1000 == 0:
                print(f"{done} seeds, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"{done} seeds, {failures} failures, {time.monotonic() - began:.1f} s")
    return 1 if failures else 0

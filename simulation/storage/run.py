"""The command line of all simulations: one seed with its transcript, or many seeds on all cores."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from kwire.testing.disk import ProcessDied
from kwire.wire.plural import plural


class SeedHistory(Protocol):
    """The run of one seed."""

    @property
    def transcript(self) -> list[str]:
        """The events so far."""

    def run(self) -> None:
        """Run the simulation. Raises an error if the run fails."""


HistoryFactory = Callable[[int], SeedHistory]


def find_failure(seed: int, make: HistoryFactory, module: str) -> str | None:
    """Run a seed. Returns the failure with the transcript, or None if the run passes.

    `module` is the simulation's name in the command that replays the failure.
    """
    history = make(seed)
    try:
        history.run()
    except (Exception, ProcessDied) as error:
        where = "".join(traceback.format_exception(error)).rstrip()
        return "\n".join(
            [
                f"seed {seed} fails:",
                *history.transcript,
                where,
                f"replay with: python -m {module} --seed {seed}",
            ]
        )
    return None


def _disable_logging() -> None:
    logging.disable(logging.CRITICAL)


def main(make: HistoryFactory, module: str, arguments: list[str] | None = None) -> int:
    """Run the command line of the simulation in package `module`, and return the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--seed", type=int, help="run this seed and print its transcript")
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds to run (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument("--stop-after", type=int, default=3, help="stop at this many failures (default: 3)")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        logging.basicConfig(level=logging.ERROR)
        _disable_logging()
        history = make(options.seed)
        try:
            history.run()
        finally:
            print("\n".join(history.transcript))
        print(f"seed {options.seed} passes")
        return 0
    find = partial(find_failure, make=make, module=module)
    return _run_in_processes(find, options.first, options.seeds, options.jobs, options.stop_after)


def run_seeds(seeds: Sequence[int], make: HistoryFactory, module: str) -> list[str]:
    """Run seeds on all cores and return their failures."""
    find = partial(find_failure, make=make, module=module)
    with multiprocessing.get_context("spawn").Pool(initializer=_disable_logging) as pool:
        return [failure for failure in pool.imap(find, seeds, chunksize=10) if failure is not None]


def _run_in_processes(
    find: Callable[[int], str | None], first: int, count: int, jobs: int, stop_after: int
) -> int:
    began = time.monotonic()
    failures = done = 0
    seeds = range(first, first + count)
    with multiprocessing.Pool(jobs, initializer=_disable_logging) as pool:
        for failure in pool.imap_unordered(find, seeds, chunksize=8):
            done += 1
            if failure is not None:
                failures += 1
                print(failure, "\n", flush=True)
                if failures >= stop_after:
                    pool.terminate()
                    break
            if done % 1000 == 0:
                print(
                    f"{plural(done, 'seed')}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True
                )
    print(f"{plural(done, 'seed')}, {plural(failures, 'failure')}, {time.monotonic() - began:.1f} s")
    return 1 if failures else 0

"""`python -m bench [name…] [--seconds N] [--rounds N] [--only BROKER]`: measure and print a table.

A name is one of the modules below. Without names, all run except those that take many minutes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from bench import (
    acls,
    archive,
    cluster,
    codecs,
    compaction,
    console,
    flush,
    groups,
    in_tests,
    latency,
    offset_commits,
    partitions,
    quorum,
    segments,
    start,
    throughput,
    tls,
    transactions,
)
from bench.brokers import BROKERS, why_missing
from bench.figures import Figure, table
from kwire.wire.plural import plural

BENCHES: dict[str, Callable[[list[str], float, int], list[Figure]]] = {
    "start": start.measure,
    "throughput": throughput.measure,
    "tls": tls.measure,
    "latency": latency.measure,
    "codecs": codecs.measure,
    "flush": flush.measure,
    "partitions": partitions.measure,
    "compaction": compaction.measure,
    "console": console.measure,
    "transactions": transactions.measure,
    "groups": groups.measure,
    "offset_commits": offset_commits.measure,
    "segments": segments.measure,
    "archive": archive.measure,
    "cluster": cluster.measure,
    "quorum": quorum.measure,
    "acls": acls.measure,
    "in_tests": in_tests.measure,
}
LONG = {
    "codecs",
    "partitions",
    "compaction",
    "console",
    "tls",
    "transactions",
    "groups",
    "offset_commits",
    "segments",
    "archive",
    "cluster",
    "quorum",
    "acls",
    "in_tests",
}
"""Modules that run only when they are named."""


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)  # runs the exit handlers, which stop the brokers
    options = _options()
    names = []
    for name in options.only or BROKERS:
        reason = why_missing(name)
        if reason is None:
            names.append(name)
        else:
            print(reason, file=sys.stderr)
    if not names:
        return 1
    figures: list[Figure] = []
    begun, load = time.perf_counter(), os.getloadavg()[0]
    for name in options.benches or [name for name in BENCHES if name not in LONG]:
        print(f"measuring {name} of {' and '.join(names)} ...", file=sys.stderr, flush=True)
        figures += BENCHES[name](names, options.seconds, options.rounds)
    command = " ".join(["python -m bench", *sys.argv[1:]])
    print(table(figures))
    print(
        f"\n`{command}`: {time.perf_counter() - begun:.0f} s on {plural(os.cpu_count() or 1, 'core')}, "
        f"load {load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end. "
        f"Medians over the samples of each broker."
    )
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("benches", nargs="*", metavar="name", help=", ".join(BENCHES))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (default: 5)")
    parser.add_argument("--rounds", type=int, default=3, help="of all modules except start (default: 3)")
    parser.add_argument("--only", action="append", choices=list(BROKERS), help="one broker; may be repeated")
    options = parser.parse_args()
    unknown = [name for name in options.benches if name not in BENCHES]
    if unknown:
        parser.error(f"unknown name {', '.join(unknown)}: choose from {', '.join(BENCHES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())

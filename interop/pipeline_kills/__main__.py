"""`python -m interop.pipeline_kills`: trials of each job with each victim, for several seeds."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from interop.pipeline_kills.jobs import JOBS
from interop.pipeline_kills.processes import EACH, VICTIMS
from interop.pipeline_kills.trial import Report, prepare_setup, run
from interop.reference import Missing

EVERY, LAST, NEVER = "every", "last", "never"


def main() -> int:
    """Run the trials. Return the exit status: 1 if there is a finding, 2 if the trials cannot run."""
    parser = argparse.ArgumentParser(prog="python -m interop.pipeline_kills", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many trials for each job and victim")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--job", choices=list(JOBS), action="append", help="may be repeated (default: all)")
    parser.add_argument(
        "--victim",
        choices=(*VICTIMS, EACH),
        action="append",
        help=f"may be repeated (default: {', '.join(VICTIMS)}; {EACH}: all three in one test)",
    )
    parser.add_argument(
        "--minutes", type=float, default=0, help="start no test after this many minutes (default: no limit)"
    )
    parser.add_argument(
        "--audit",
        choices=(EVERY, LAST, NEVER),
        default=LAST,
        help="the tests of a job and victim whose result the job `audit` compares as well",
    )
    options = parser.parse_args()
    deadline = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    cells = [
        (job, victim)
        for job in options.job or JOBS
        for victim in options.victim or VICTIMS
        if victim in (EACH, *JOBS[job].victims)
    ]
    last = options.first + options.seeds - 1
    reports: list[Report] = []
    try:
        with prepare_setup() as setup:
            for job, victim, seed in trials(cells, options.first, last):
                if time.monotonic() > deadline:
                    break
                audited = options.audit == EVERY or (options.audit == LAST and seed == last)
                report = run(setup, job, victim, seed, audited=audited)
                print(report, flush=True)
                reports.append(report)
    except (Missing, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    print(summary(reports))
    return 1 if any(report.findings for report in reports) else 0


def trials(cells: list[tuple[str, str]], first: int, last: int) -> Iterator[tuple[str, str, int]]:
    """Yield each of `cells`, a job and a victim, with the first seed, then each with the next seed.

    If the time limit ends the run early, the numbers of trials of any two cells differ by at most one.
    """
    for seed in range(first, last + 1):
        for job, victim in cells:
            yield job, victim, seed


def summary(reports: list[Report]) -> str:
    lines = []
    for cell in dict.fromkeys((report.job, report.victim) for report in reports):
        inside = [report for report in reports if (report.job, report.victim) == cell]
        killed = sum(bool(report.killed) for report in inside)
        wrong = [report.seed for report in inside if report.findings]
        lines.append(
            f"{cell[0]:<18} {cell[1]:<9} {len(inside):>3} trials, {killed} with a kill, "
            + (f"wrong: seeds {', '.join(map(str, wrong))}" if wrong else "all clean")
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

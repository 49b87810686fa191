"""The faults that the checker must find, with their effects and the kinds of findings that they cause.

``faulty_broker`` plants the faults in kwire. Some faults show only in a short time window. These are planted
with a delay, such as slow transaction markers, which makes the window longer. A delay alone is no fault, so
the checker must find nothing in a broker that has only the delays.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    does: str
    found_as: frozenset[str]
    """The kinds of findings. The checker must report at least one finding of these kinds."""


def _fault(does: str, *found_as: str) -> Fault:
    return Fault(does, frozenset(found_as))


FAULTS: dict[str, Fault] = {
    "marker-skips-a-partition": _fault(
        "some markers are not written to partition 1, but reported as written",
        "stuck",
        "torn",
        "lost",
        "aborted",
    ),
    "marker-of-the-wrong-kind": _fault(
        "some aborts are written to partition 1 as commits", "aborted", "torn"
    ),
    "commit-acknowledged-too-early": _fault(
        "a commit is acknowledged half a second before its record is stored", "lost", "fenced"
    ),
    "prepared-commit-not-loaded": _fault(
        "a restart does not load PrepareCommit records; markers are slow", "lost", "torn"
    ),
    "prepared-not-resumed": _fault(
        "a restart does not resume the writing of markers; markers are slow", "stuck", "lost"
    ),
    "timeouts-ignored": _fault("timed-out transactions are not aborted", "stuck"),
    "aborted-not-indexed": _fault(
        "some aborted transactions are missing from the index of aborted transactions", "aborted", "duplicate"
    ),
    "stable-offset-too-high": _fault(
        "the last stable offset is always the high watermark",
        "view",
        "aborted",
        "torn",
    ),
    "producers-forgotten": _fault(
        "a restart forgets the batches of producers; Produce responses are slow", "duplicate"
    ),
    "duplicates-accepted": _fault(
        "a resent batch is appended again; Produce responses are slow", "duplicate"
    ),
    "open-transactions-forgotten": _fault(
        "a restart forgets the open transactions of a log", "lost", "aborted", "view", "torn"
    ),
    "no-fencing": _fault("a producer with an old epoch is not fenced", "fenced", "aborted", "reordered"),
    "tail-lost": _fault("a restart truncates the last bytes of the logs", "lost", "view", "torn"),
}

DELAYS = "delays-only"
"""The name that plants all delays without a fault."""

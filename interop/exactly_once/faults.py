"""The faults that the check has to find: what each does, and as what it may be found.

``faulty_broker`` does it to kwire. A fault whose window is short is planted together with a delay that opens
it, such as slow markers; the delays alone are no fault, and the check must find nothing where only they are.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A way to break the broker."""

    does: str
    found_as: frozenset[str]
    """The kinds of finding of which at least one must come up."""


def _fault(does: str, *found_as: str) -> Fault:
    return Fault(does, frozenset(found_as))


FAULTS: dict[str, Fault] = {
    "marker-skips-a-partition": _fault(
        "some markers are not written to partition 1, which counts as done",
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
        "a restart does not see the records that decide to commit; markers are slow", "lost", "torn"
    ),
    "prepared-not-resumed": _fault(
        "a restart does not write the markers that are still to be written; markers are slow", "stuck", "lost"
    ),
    "timeouts-ignored": _fault("transactions that take too long go on", "stuck"),
    "aborted-not-indexed": _fault(
        "some aborted transactions are missing from the index of aborted transactions", "aborted", "duplicate"
    ),
    "stable-offset-too-high": _fault(
        "the last stable offset is the high watermark, whatever transactions are open",
        "view",
        "aborted",
        "torn",
    ),
    "producers-forgotten": _fault(
        "a restart knows nothing of the batches of producers; answers to producers are slow", "duplicate"
    ),
    "duplicates-accepted": _fault(
        "a batch that is sent again is appended again; answers to producers are slow", "duplicate"
    ),
    "open-transactions-forgotten": _fault(
        "a restart does not know which transactions are open in a log", "lost", "aborted", "view", "torn"
    ),
    "no-fencing": _fault("whoever has an old epoch goes on as before", "fenced", "aborted", "reordered"),
    "tail-lost": _fault("a restart cuts the last bytes off the logs", "lost", "view", "torn"),
}

DELAYS = "delays-only"
"""Only the delays that some faults come with."""

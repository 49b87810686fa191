"""The output of Apache Kafka's kafka-dump-log for every file in the shared directory."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from interop.scenarios.zz_log_files import dump, dump_errors
from interop.swap.shared_directory import Shared, shape

IN_USE = re.compile(r"^\S+-\d+$")


def dump_errors_by_shape(shared: Shared) -> dict[str, str]:
    """Run the tool. Return an example of each shape of error message, by shape."""
    found: dict[str, str] = {}
    with ThreadPoolExecutor(2) as pool:
        given = [one for one in passes(shared) if one[2]]
        for kind, lines in pool.map(lambda one: (one[0], dump(*one[2], options=one[1])), given):
            for line in dump_errors(lines):
                if '"type"' not in line:
                    found.setdefault(f"{kind}: {shape(line)}", line)
            assert len(lines) > 1, (kind, lines)
            if lines[-1] != "exit 0":
                found[f"{kind}: {lines[-1]}"] = "\n".join(lines[-5:])
    return found


def passes(shared: Shared) -> list[tuple[str, tuple[str, ...], list[Path]]]:
    """Return the runs of the tool: for each, a label, its options, and the files to dump."""
    every = [path for path in shared.files("*/*") if IN_USE.match(path.parent.name)]
    every = [path for path in every if path.stat().st_size]
    metadata = [path for path in every if path.parent.name == "__cluster_metadata-0"]
    offsets = [path for path in every if path.parent.name.startswith("__consumer_offsets-")]
    transactions = [path for path in every if path.parent.name.startswith("__transaction_state-")]
    logs = ending(every, ".log")
    indexes = ending(every, ".index", ".timeindex")
    return [
        ("logs", ("--deep-iteration",), [path for path in logs if path not in metadata]),
        ("index sanity", ("--index-sanity-check",), indexes),
        ("indexes", ("--verify-index-only",), indexes),
        ("offsets", ("--offsets-decoder",), ending(offsets, ".log")),
        ("transactions", ("--transaction-log-decoder",), ending(transactions, ".log")),
        ("metadata", ("--cluster-metadata-decoder",), ending(metadata, ".log", ".checkpoint")),
        ("snapshots", (), ending(every, ".snapshot")),
    ]


def ending(paths: list[Path], *suffixes: str) -> list[Path]:
    return [path for path in paths if path.suffix in suffixes]

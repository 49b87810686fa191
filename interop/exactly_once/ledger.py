"""Logs of transactional producers as lines of JSON, which survive a kill of the process.

Each record's value names its transaction and position, so that topic and ledger are sufficient for the
checker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple


class Outcome(Enum):
    """The outcome of a transaction, as far as its producer knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Mark(NamedTuple):
    """The position of a record. `place` is its index within its transaction and partition."""

    transactional_id: str
    number: int
    partition: int
    place: int


def encode_value(mark: Mark, padding: str = "") -> bytes:
    """Return the value of the record with this mark."""
    return "/".join((*(str(part) for part in mark), padding)).encode()


def parse_value(value: bytes | None) -> Mark | None:
    """Return the mark in a record's value, or None if the value is foreign."""
    parts = (value or b"").decode(errors="replace").split("/")
    if len(parts) != 5 or not all(part.isdecimal() for part in parts[1:4]):
        return None
    return Mark(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))


@dataclass
class Transaction:
    """A transaction as its producer logged it."""

    transactional_id: str
    number: int
    counts: dict[int, int]
    """The number of records by partition."""
    outcomes: list[tuple[Outcome, str]] = field(default_factory=list)
    """Each outcome that the producer learned, with the reason."""

    @property
    def outcome(self) -> Outcome:
        return self.outcomes[-1][0] if self.outcomes else Outcome.UNKNOWN


class Ledger:
    """The ledger of one process. Each line is written before the transaction begins or after it ends."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def begin(self, transactional_id: str, number: int, counts: dict[int, int]) -> None:
        self._write(id=transactional_id, number=number, counts=counts)

    def end(self, transactional_id: str, number: int, outcome: Outcome, why: str = "") -> None:
        self._write(id=transactional_id, number=number, outcome=outcome.value, why=why)

    def close(self) -> None:
        self._file.close()

    def _write(self, **line: Any) -> None:
        # One write per line, because threads share the file.
        self._file.write(json.dumps(line).encode() + b"\n")


def read_ledgers(paths: list[Path]) -> dict[tuple[str, int], Transaction]:
    """Return all transactions of these ledgers, by transactional id and number."""
    transactions: dict[tuple[str, int], Transaction] = {}
    for path in paths:
        for text in path.read_bytes().split(b"\n")[:-1]:
            line = json.loads(text)
            key = (line["id"], line["number"])
            if "counts" in line:
                assert key not in transactions, f"{key} begins twice"
                counts = {int(partition): count for partition, count in line["counts"].items()}
                transactions[key] = Transaction(*key, counts)
            else:
                transactions[key].outcomes.append((Outcome(line["outcome"]), line["why"]))
    return transactions

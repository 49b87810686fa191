"""The logs of transactional producers: lines of JSON, which are complete even if the process is killed.

The value of each record names the record's transaction and its position in the transaction. So the checker
needs only the topic and the ledger.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple


class Outcome(Enum):
    """The outcome of a transaction, as its producer knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Mark(NamedTuple):
    """The identity of a record. `position` is its index among the transaction's records in the partition."""

    transactional_id: str
    number: int
    partition: int
    position: int


def encode_value(mark: Mark, padding: str = "") -> bytes:
    return "/".join((*(str(part) for part in mark), padding)).encode()


def parse_value(value: bytes | None) -> Mark | None:
    """Return the mark in a record's value, or None if the value was not written by `encode_value`."""
    parts = (value or b"").decode(errors="replace").split("/")
    if len(parts) != 5 or not all(part.isdecimal() for part in parts[1:4]):
        return None
    return Mark(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))


@dataclass
class Transaction:
    """A transaction, as its producer logged it."""

    transactional_id: str
    number: int
    counts: dict[int, int]
    """The number of the transaction's records by partition."""
    outcomes: list[tuple[Outcome, str]] = field(default_factory=list)
    """Each logged outcome of the transaction, with a reason. A fenced producer may add another outcome."""

    @property
    def outcome(self) -> Outcome:
        return self.outcomes[-1][0] if self.outcomes else Outcome.UNKNOWN


class Ledger:
    """The ledger of one process. It is written before a transaction begins and after the transaction ends."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def begin(self, transactional_id: str, number: int, counts: dict[int, int]) -> None:
        self._write(id=transactional_id, number=number, counts=counts)

    def end(self, transactional_id: str, number: int, outcome: Outcome, why: str = "") -> None:
        self._write(id=transactional_id, number=number, outcome=outcome.value, why=why)

    def close(self) -> None:
        self._file.close()

    def _write(self, **line: Any) -> None:
        # A line is written with one call, because several threads write to the file.
        self._file.write(json.dumps(line).encode() + b"\n")


def read_ledgers(paths: list[Path]) -> dict[tuple[str, int], Transaction]:
    """Return all transactions in these ledgers, by transactional id and transaction number."""
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

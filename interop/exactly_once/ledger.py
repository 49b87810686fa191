"""What producers have tried and learned, as lines of JSON: whoever is killed leaves all that it knew.

Each record says of itself which transaction it belongs to, and where in it it stands, so that nothing but the
topic and the ledger is needed to check.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple


class Outcome(Enum):
    """How a transaction ended, as far as its producer knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Mark(NamedTuple):
    """Where a record belongs: `place` counts the records of its transaction in its partition."""

    transactional_id: str
    number: int
    partition: int
    place: int


def encode_value(mark: Mark, padding: str = "") -> bytes:
    """The value of the record that belongs there."""
    return "/".join((*(str(part) for part in mark), padding)).encode()


def parse_value(value: bytes | None) -> Mark | None:
    """What a record says of itself; None if it is not one of ours."""
    parts = (value or b"").decode(errors="replace").split("/")
    if len(parts) != 5 or not all(part.isdecimal() for part in parts[1:4]):
        return None
    return Mark(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))


@dataclass
class Transaction:
    """A transaction as its producer tells of it."""

    transactional_id: str
    number: int
    counts: dict[int, int]
    """How many records it writes to which partition."""
    told: list[tuple[Outcome, str]] = field(default_factory=list)
    """Each outcome that the producer learned of, and why."""

    @property
    def outcome(self) -> Outcome:
        return self.told[-1][0] if self.told else Outcome.UNKNOWN


class Ledger:
    """The ledger of one process. A line is written before what it announces, and after what it tells of."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def begin(self, transactional_id: str, number: int, counts: dict[int, int]) -> None:
        self._write(id=transactional_id, number=number, counts=counts)

    def end(self, transactional_id: str, number: int, outcome: Outcome, why: str = "") -> None:
        self._write(id=transactional_id, number=number, outcome=outcome.value, why=why)

    def close(self) -> None:
        self._file.close()

    def _write(self, **line: Any) -> None:
        # One write a line: threads share the file.
        self._file.write(json.dumps(line).encode() + b"\n")


def read_ledgers(paths: list[Path]) -> dict[tuple[str, int], Transaction]:
    """All transactions of these ledgers, by transactional id and number."""
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
                transactions[key].told.append((Outcome(line["outcome"]), line["why"]))
    return transactions

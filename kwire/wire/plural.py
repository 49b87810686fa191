"""Counts in messages for people."""

from __future__ import annotations


def plural(count: int, noun: str, spec: str = "") -> str:
    """Return a count with its noun: "1 record", "2 records", "3 batches". `spec` formats the number."""
    return f"{count:{spec}} {noun if count == 1 else _plural_of(noun)}"


def _plural_of(noun: str) -> str:
    if noun.endswith(("ch", "s", "sh", "x")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"

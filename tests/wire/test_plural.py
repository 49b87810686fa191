"""Counts in messages for people."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kwire.wire.plural import plural

KWIRE = Path(__file__).parents[2] / "kwire"
PACKAGES = "testing", "cli", "pipeline", "console"

NOUNS = (
    "records|partitions|topics|brokers|groups|members|bytes|times|requests|files|segments|batches|keys|lines|"
    "values|nodes|windows|entries|errors|messages|events|commits|versions|offsets behind|connections"
)
NAMES_AND_LIMITS = {
    "MAX_FORM_BYTES", "MAX_LINE_BYTES", "api", "archive", "dividing[0]", "name", "partition", "path",
    "request.topic", "statistics['topic']", "topic.name",
}  # fmt: skip
"""Values before such a noun that are no counts, or always more than 1."""
FRACTIONS_AND_MORE_THAN_ONE = {
    "found[value]",
    "len(differing)",
    "most['records'] / fair",
    "sum((records for _, records, _ in steps)) / len(steps)",
}
COUNTED = re.compile(rf"^ (?:[a-z]+ )?(?:{NOUNS})\b")


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "record", "0 records"),
        (1, "record", "1 record"),
        (2, "record", "2 records"),
        (1, "batch", "1 batch"),
        (3, "batch", "3 batches"),
        (2, "entry", "2 entries"),
        (2, "key", "2 keys"),
        (2, "transactional id", "2 transactional ids"),
    ],
)
def test_plural_counts(count: int, noun: str, text: str) -> None:
    assert plural(count, noun) == text


def test_plural_formats_the_number() -> None:
    assert plural(12_000, "record", ",") == "12,000 records"


def counted_by_hand(source: str) -> list[str]:
    """Return the f-strings in which a formatted value precedes a plural noun."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            for value, text in zip(node.values, node.values[1:], strict=False):
                if (
                    isinstance(value, ast.FormattedValue)
                    and ast.unparse(value.value) not in NAMES_AND_LIMITS | FRACTIONS_AND_MORE_THAN_ONE
                    and isinstance(text, ast.Constant)
                    and isinstance(text.value, str)
                    and COUNTED.match(text.value)
                ):
                    found.append(f"{ast.unparse(value.value)}: {text.value}")
    return found


def test_messages_do_not_count_by_hand() -> None:
    found = {
        f"{path.relative_to(KWIRE.parent)}: {text}"
        for package in PACKAGES
        for path in sorted((KWIRE / package).rglob("*.py"))
        for text in counted_by_hand(path.read_text())
    }
    assert found == set()

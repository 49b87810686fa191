"""Counts in messages for people."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kwire.wire.plural import plural

ROOT = Path(__file__).parents[2]
PACKAGES = "kwire", "simulation", "bench", "interop"
LABELS = "interop/scenarios/", "interop/batch_mutations.py"
"""Files whose texts are the names of stored results."""

NOUNS = (
    "records|partitions|topics|brokers|groups|members|bytes|times|requests|files|segments|batches|keys|lines|"
    "values|nodes|windows|entries|errors|messages|events|commits|offsets|connections|headers|digits|seconds|"
    "milliseconds|minutes|hours|replicas|voters|logs|epochs|seeds|fields|characters|slots|cores|responses|"
    "descriptors|retries|attempts|clients|levels|listeners|directories|transactions|producers|snapshots|"
    "failures|processes|tokens|users|steps|results|duplicates|differences|warnings|problems"
)
VERBS = (
    "has|have|had|are|is|was|were|does|do|lacks?|needs?|no|not|still|and|or|of|in|at|on|to|with|from|by|than|"
    "changes|commits|names|shows|splits|contains|retries|delete|the|any|all|both"
)
"""First words of a text that follows a name, not a count."""
NOT_ONE = {
    # names
    "_format_partition(partition)", "api", "directory.command(f'kill {brokers[0].node_id}')", "file.path",
    "name", "producer_id", "self.node.node_id", "statistics['topic']",
    # fractions
    "count / seconds", "most['records'] / fair", "sum((records for _, records, _ in steps)) / len(steps)",
    # counts above 1: they exceed a limit, or are sizes of complete batches or responses
    "exchange.response_bytes", "header.size_bytes", "len(found)", "len(differing)", "len(fetched)",
    "len(response)", "len(sent)",
    "len(validated.data)", "limit", "max_bytes", "most", "precision", "self.size_bytes", "size_bytes",
    # the size of a number, the fields of a class, the entries as written in a file, and a text of Spark
    "bits", "len(MANY_BROKERS)", "len(cls._fields)", "lines[1]",
    "-EPOCH_S * 1000 % interval_ms(slide)",
    # Apache Kafka's text
    "found.rejected_count",
}  # fmt: skip
"""Values before such a noun that do not need `plural`."""
NOT_ONE_IN_LOGS = {
    # sizes of requests, responses, strings and complete batches, and counts above a limit
    "(%d bytes",
    "a string of %d bytes",
    "kept %d of %d bytes",
    "truncating it to %d bytes",
    "%d members exceed",
}
CONSTANT = re.compile(r"(?:\w+\.)*[A-Z][A-Z_0-9]+")
COUNTED = re.compile(rf"^ (?!(?:{VERBS})\b)(?:[a-z-]+ )?(?:{NOUNS})\b")
COUNTED_BY_LOGGER = re.compile(rf"%,?d (?!(?:{VERBS})\b)(?:[a-z-]+ )?(?:{NOUNS})\b")


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
    """Return the texts in which a number precedes a plural noun."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            for value, text in zip(node.values, node.values[1:], strict=False):
                if (
                    isinstance(value, ast.FormattedValue)
                    and isinstance(text, ast.Constant)
                    and isinstance(text.value, str)
                    and COUNTED.match(text.value)
                ):
                    count = ast.unparse(value.value)
                    if count not in NOT_ONE and not CONSTANT.fullmatch(count):
                        found.append(f"{{{count}}}{text.value}")
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and COUNTED_BY_LOGGER.search(node.value)
            and not any(known in node.value for known in NOT_ONE_IN_LOGS)
        ):
            found.append(node.value)
    return found


def test_messages_do_not_count_by_hand() -> None:
    found = [
        f"{name}: {text}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not (name := path.relative_to(ROOT).as_posix()).startswith(LABELS)
        and not path.name.startswith("test_")
        and "target" not in path.parts  # the environments that make installs
        for text in counted_by_hand(path.read_text())
    ]
    assert not found, "use kwire.wire.plural"


@pytest.mark.parametrize(
    "source",
    [
        'f"{size} bytes"',
        'f"{size:,} more bytes of {path}"',
        'f"a record of {size} bytes"',
        'log("%s has %d partitions", name, count)',
    ],
)
def test_number_before_a_plural_noun_is_found(source: str) -> None:
    assert counted_by_hand(source)


@pytest.mark.parametrize(
    "source",
    [
        'f"{topic} has partitions"',
        "f\"{plural(size, 'byte')}\"",
        'f"at most {MAX_BYTES} bytes"',
        'f"{disk.BLOCK_BYTES} bytes"',
    ],
)
def test_other_plural_nouns_are_not_found(source: str) -> None:
    assert not counted_by_hand(source)

"""Writer of the data that `test_regex.py` and `test_topic_hash.py` read; it needs Java.

Run `python -m tests.coordinator.groups.consumer.golden`. The data has regular expressions with the results of
RE2/J, and topics with the hashes that Kafka computes.
"""

from __future__ import annotations

import json
import random
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
EXPRESSIONS = DATA / "kafka-4.3.1-expressions.tsv"
HASHES = DATA / "kafka-4.3.1-topic-hashes.tsv"

NAMES = ["", "1", "A", "AB", "__x", "a", "a b", "a-b", "a.b", "aa", "aaaa", "ab", "abc", "b", "topic-1", "x"]

VALID = r"""
a|b | a||b | | | () | (|a)* | (?:a) | (?i)ab | (?i-s:a) | (?U)a+ | (?s). | (?m)^a$ | (?i)É | é
[^a] | []a] | [a-] | [\d-z] | [[:alpha:]]+ | [[:^alpha:]] | [[:word:]] | \w+ | \d | \pL | \p{Greek}
\pN | \p{^L}
a.b | .* | ^$ | a$ | $ | \b | \ba | \A | \z | \_ | \- | \< | \0 | \07 | \x41 | \Q | \Qa.b\E | \Q\E | \Q(\E
a{,2} | a{2 | a{0} | a{3,}? | a*? | a?? | a+?b | x{1000} | (?<n>a) | (?P<n>a)(?P<m>b) | \Q\C(?P<n>\E|[(?P<n>]+
"""

INVALID = r"""
[ | [a | [^] | [b-a] | [[:foo:]] | [\C] | [a-\d] | \p{Foo} | \pX | \p | \p{ | a(b | (a | a) | x) | (a)) | a|b)
a** | a++ | a?+ | a{2}{3} | *a | ?a | +a | (*a) | |* | a{1001} | x{2,1} | (a{1001})
\ | a\ | \C | a\C | \8 | \1 | \Z | \G | \R | \h | \N | \K | \X | \E | \x4 | \x{110000}
(?<n | (?P<n | (?P<>a) | (?<1 a>x) | (?P<a-b>x) | (?P<é>a) | (?P<n>a)(?P<n>b) | (?<n>a)(?P<n>b) | (?P=n)
(?=a) | (?z) | (?i | (?#c) | (?>a) | (?i-) | (?-) | (?^)
"""


def expressions(table: str) -> list[str]:
    """Split a table above into its expressions, separated by " | " and line ends."""
    return [pattern for line in table.strip().splitlines() for pattern in line.split(" | ")]


def topics(rng: random.Random) -> list[Any]:
    """Return random topics: name, id and racks by partition."""
    letters = "abcXYZ019._-"
    racks = ["", "a", "b", "rack-1", "eu-central-1a", "é,", "\U0001f600", "\uffee", "abcdefgh" * 5]
    return [
        [
            "".join(rng.choices(letters, k=rng.choice([1, 2, 3, 4, 5, 8, 17, 40, 100, 249]))),
            urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("="),
            [rng.choices(racks, k=rng.randint(0, 3)) for _ in range(rng.choice([1, 2, 5, 30]))],
        ]
        for _ in range(rng.choice([0, 1, 2, 3, 10]))
    ]


def write() -> None:
    """Write the data files with the output of Java."""
    from interop.java_outputs import java_outputs

    patterns = [
        json.dumps([expression, NAMES], separators=(",", ":"))
        for expression in [*expressions(VALID), *expressions(INVALID)]
    ]
    rng = random.Random(848)
    groups = [json.dumps(topics(rng), separators=(",", ":")) for _ in range(30)]
    DATA.mkdir(exist_ok=True)
    for path, program, inputs in (
        (EXPRESSIONS, "Expressions", patterns),
        (HASHES, "TopicHashes", groups),
    ):
        outputs = java_outputs(program, inputs)
        path.write_text(
            "".join(f"{input_json}\t{output}\n" for input_json, output in zip(inputs, outputs, strict=True)),
            encoding="utf-8",
        )


if __name__ == "__main__":
    write()

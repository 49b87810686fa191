"""JSON documents whose long and fractional numbers stay text until the type of their column is known."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

PLAIN_DIGITS: Final = 18
"""The maximum length of an integer that is parsed as `int`. Longer integers are kept as text."""

MAX_DEPTH: Final = 100
"""The maximum nesting of documents from which the type is inferred. Deeper documents are ignored."""


class Number:
    """A number as text from its document. The type of the column determines its conversion."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _whole(text: str) -> int | Number:
    # Keep -0 as text, because an integer would lose the sign.
    return int(text) if len(text) <= PLAIN_DIGITS and text != "-0" else Number(text)


def loads(text: str) -> Any:
    """Parse a document like `json.loads`, but return Number for long integers and all other numbers.

    Raises ValueError or RecursionError.
    """
    return json.loads(text, parse_float=Number, parse_int=_whole)


class _Verbatim(Number):
    """Text between values, which is written without changes."""

    __slots__ = ()


def dumps(value: Any) -> str:
    """Format a value of `loads` as JSON. Unlike `json.dumps`, it accepts any depth of nesting."""
    parts: list[str] = []
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, Number):
            parts.append(item.text)
        elif isinstance(item, dict):
            inside = [part for key, one in item.items() for part in (_Verbatim(f"{_string(key)}: "), one)]
            todo += _around("{", inside, 2, "}")
        elif isinstance(item, list):
            todo += _around("[", item, 1, "]")
        else:
            parts.append(_string(item))
    return "".join(parts)


def _string(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _around(first: str, inside: list[Any], step: int, last: str) -> list[Any]:
    """Return the parts of a list or an object, with delimiters, in reverse order."""
    parts: list[Any] = [_Verbatim(first)]
    for at in range(0, len(inside), step):
        if at:
            parts.append(_Verbatim(", "))
        parts += inside[at : at + step]
    parts.append(_Verbatim(last))
    return parts[::-1]


class KeySpellings:
    """Keys that differ only in case, which Spark treats as equal. Only the most frequent spelling is kept."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], Counter[str]] = {}

    def count(self, value: Any, path: tuple[str, ...] = ()) -> None:
        """Count the spellings of the keys in a document."""
        for item in value if isinstance(value, list) else ():
            self.count(item, path)
        for key, item in value.items() if isinstance(value, dict) else ():
            inside = (*path, key.lower())
            self._counts.setdefault(inside, Counter())[key] += 1
            self.count(item, inside)

    def deduplicated(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Return a document without the less frequent spellings of keys. `count` must have counted it."""
        if isinstance(value, list):
            return [self.deduplicated(item, path) for item in value]
        if not isinstance(value, dict):
            return value
        found = {}
        for key, item in value.items():
            inside = (*path, key.lower())
            if self._counts[inside].most_common(1)[0][0] == key:
                found[key] = self.deduplicated(item, inside)
        return found


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level:
        inside = [item.values() if isinstance(item, dict) else item for item in level]
        level = [item for items in inside for item in items if isinstance(item, dict | list)]
        depth += 1
    return depth


def sample_of(documents: Iterable[Any]) -> list[str]:
    """Return the JSON of those documents that are objects, prepared for Spark's inference of a common type.

    Omits documents that are too deep, and keys that differ from a more frequent key only in case.
    """
    spellings = KeySpellings()
    seen = []
    for document in documents:
        if not isinstance(document, dict):
            continue
        try:
            dumps(document).encode()
        except UnicodeEncodeError:
            continue  # A text column cannot have unpaired surrogates.
        if _depth(document) <= MAX_DEPTH:
            spellings.count(document)
            seen.append(document)
    return [dumps(spellings.deduplicated(document)) for document in seen]

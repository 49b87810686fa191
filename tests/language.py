"""Counters for wording that makes prose hard to read: `python -m tests.language [PATH ...]` prints each hit.

Two figures are kept low. Docstring sentences start with the thing that acts, not with a pronoun or a relative
clause; and some phrases have a plainer word. The prose is docstrings, comments, string literals of four words
or more (log lines, error messages, help texts) and Markdown outside of code.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

STARTS = re.compile(r"(Who|Whoever|Whose|What|Where|How|Of|Those|That which)\b")
"""Sentence starts that hide the subject. Questions may use them."""

PHRASES = re.compile(
    r"\b(tells?|told|whoever|nobody|somebody|anew|in vain|heard of|cut at|(?:is|are) asked|who is|desks?"
    r"|by now|lets? in)\b",
    re.IGNORECASE,
)
"""Phrases for which technical English has a more precise word."""

MOST_STARTS = 0.01
"""Share of docstring sentences that may start with one of `STARTS`."""
MOST_PHRASES = 0.3
"""Phrases per 1,000 words of prose that may remain."""

CODE = re.compile(r"`+[^`]*`+")
SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`])|\n\s*\n")
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
EXEMPT = {"tests/language.py", "tests/test_language.py"}
"""The files that define and test the rule: they contain the phrases."""


class Text(NamedTuple):
    """A piece of prose, and the line on which it starts."""

    line: int
    text: str
    is_docstring: bool = False


class Hit(NamedTuple):
    """A sentence start or a phrase that the rule counts."""

    path: str
    line: int
    found: str
    context: str


class Count(NamedTuple):
    """The figures of some files."""

    sentences: int
    words: int
    starts: list[Hit]
    phrases: list[Hit]

    @property
    def starts_share(self) -> float:
        """Share of docstring sentences with a counted start, 0 to 1."""
        return len(self.starts) / max(1, self.sentences)

    @property
    def phrases_per_1000_words(self) -> float:
        return 1000 * len(self.phrases) / max(1, self.words)


def python_texts(source: str) -> Iterator[Text]:
    """Yield the docstrings, comments and longer string literals of a module."""
    docstrings = set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings:
                yield Text(node.lineno, node.value, is_docstring=True)
            elif len(WORD.findall(node.value)) >= 4 and " " in node.value:
                yield Text(node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string.lstrip("#: "))


def markdown_texts(source: str) -> Iterator[Text]:
    """Yield the lines of a page outside of fenced and indented code."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield Text(number, re.sub(r"\]\([^)]*\)", "]", line))


def count(paths: Iterable[Path], *, root: Path = ROOT) -> Count:
    """Count the sentence starts and phrases of Python and Markdown files."""
    sentences = words = 0
    starts: list[Hit] = []
    phrases: list[Hit] = []
    for path in paths:
        name = path.relative_to(root).as_posix()
        if name in EXEMPT or path.suffix not in (".py", ".md"):
            continue
        source = path.read_text(encoding="utf-8")
        for line, raw, is_docstring in (
            python_texts(source) if path.suffix == ".py" else markdown_texts(source)
        ):
            text = CODE.sub("`code`", raw)
            words += len(WORD.findall(text))
            for found in PHRASES.finditer(text):
                at = line + text.count("\n", 0, found.start())
                phrases.append(Hit(name, at, found[0], text[max(0, found.start() - 40) : found.end() + 40]))
            if is_docstring:
                for sentence in SENTENCE_END.split(text):
                    stripped = sentence.strip()
                    sentences += bool(stripped)
                    start = STARTS.match(stripped)
                    if start and not stripped.endswith("?"):
                        at = line + text.count("\n", 0, text.index(sentence))
                        starts.append(Hit(name, at, start[0], stripped[:80]))
    return Count(sentences, words, starts, phrases)


def report(counted: Count) -> str:
    """Return every hit with its file and line, and then the two figures."""
    lines = [
        f"{hit.path}:{hit.line}: {hit.found!r}: {' '.join(hit.context.split())}"
        for hit in [*counted.starts, *counted.phrases]
    ]
    return "\n".join(
        [
            *lines,
            f"{len(counted.starts)} of {counted.sentences} docstring sentences "
            f"({counted.starts_share:.1%}, at most {MOST_STARTS:.0%}) start with a counted word; "
            f"{len(counted.phrases)} phrases in {counted.words} words "
            f"({counted.phrases_per_1000_words:.2f} per 1,000, at most {MOST_PHRASES})",
        ]
    )


def main(arguments: list[str]) -> int:
    """Print the hits in the given paths, or in the repository, and return 1 if a limit is exceeded."""
    from tests.architecture import repository_files

    wanted = [(ROOT / name).resolve() for name in arguments]
    counted = count(
        path
        for path in repository_files()
        if not path.is_symlink() and (not wanted or any(path.is_relative_to(top) for top in wanted))
    )
    print(report(counted))
    return int(counted.starts_share >= MOST_STARTS or counted.phrases_per_1000_words >= MOST_PHRASES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

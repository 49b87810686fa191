r"""Java's regular expressions, compiled by Python's `re` for the subset in which both give the same matches.

A pattern in the subset is translated, because even common constructs differ: Java's `.` and `$` treat five
characters as line terminators, and its `\w`, `\d` and `\s` are ASCII. Every other pattern is refused with
ValueError. The subset:

- literals, `.`, `^`, `$`, alternatives, groups `(...)` and `(?:...)`, lookahead `(?=...)` and `(?!...)`;
- classes of characters and ranges, `\d \D \w \W \s \S`, `\t \n \r \f \A \z`, escaped punctuation;
- greedy and lazy quantifiers. If one allows more than one repetition of a group, the group must not be able
  to match the empty text and must not capture, because engines differ in the captures of such groups;
- `(?i)` at the start, which affects ASCII only.

Python's engine backtracks like Java's. So some patterns need exponential time in both.
"""

from __future__ import annotations

import re
from typing import Final

from kwire.wire.named_tuple import NamedTuple

LINE_TERMINATORS: Final = r"\n\r\x85\u2028\u2029"
ANY_CHARACTER: Final = f"[^{LINE_TERMINATORS}]"
END: Final = r"(?=\Z|\r\n\Z|[\r\x85\u2028\u2029]\Z|(?<!\r)\n\Z)"
"""Java's `$` also matches before a line terminator at the end, but not between the two of `\\r\\n`."""

CONTROL_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
CLASS_ESCAPES: Final = "dDwWsS"
ASSERTIONS: Final = {"A": r"\A", "z": r"\Z"}
QUANTIFIERS: Final = "*+?{"
INTERVAL: Final = re.compile(r"\{([0-9]+)(,?)([0-9]*)\}")
MAX_REPETITIONS: Final = 1000
MAX_DEPTH: Final = 20


class Part(NamedTuple):
    """A translated part of a pattern."""

    python: str
    may_be_empty: bool
    captures: bool = False
    is_assertion: bool = False


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a Java pattern. Raises ValueError if it is invalid in Java or outside the subset."""
    is_case_insensitive = pattern.startswith("(?i)")
    translation = _Translation(pattern, 4 if is_case_insensitive else 0).run()
    return re.compile(translation, re.ASCII | (re.IGNORECASE if is_case_insensitive else re.NOFLAG))


class _Translation:
    """A recursive descent through one pattern."""

    def __init__(self, pattern: str, start: int) -> None:
        self._pattern = pattern
        self._at = start
        self._depth = 0
        self._lookaheads = 0

    def run(self) -> str:
        part = self._alternatives()
        if self._at < len(self._pattern):
            raise self._error("an unmatched )")
        return part.python

    def _error(self, what: str) -> ValueError:
        return ValueError(
            f"the regular expression `{self._pattern}` has {what} before position {self._at}, "
            "which is invalid or cannot be evaluated exactly like Java does."
        )

    def _peek(self, length: int = 1) -> str:
        return self._pattern[self._at : self._at + length]

    def _next(self) -> str:
        if self._at == len(self._pattern):
            raise self._error("an incomplete construct")
        self._at += 1
        return self._pattern[self._at - 1]

    def _accept(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _alternatives(self) -> Part:
        branches = [self._sequence()]
        while self._accept("|"):
            branches.append(self._sequence())
        return Part(
            "|".join(one.python for one in branches),
            any(one.may_be_empty for one in branches),
            any(one.captures for one in branches),
        )

    def _sequence(self) -> Part:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom()))
        return Part(
            "".join(one.python for one in parts),
            all(one.may_be_empty for one in parts),
            any(one.captures for one in parts),
        )

    def _quantified(self, atom: Part) -> Part:
        quantifier = self._quantifier()
        if not quantifier:
            return atom
        if atom.is_assertion:
            raise self._error("a quantifier after an assertion")
        if quantifier != "?" and (atom.may_be_empty or atom.captures):
            raise self._error("a repeated group that captures or may be empty")
        if self._accept("?"):
            quantifier += "?"
        if self._peek() and self._peek() in QUANTIFIERS:
            raise self._error("a quantifier after a quantifier")
        may_be_empty = atom.may_be_empty or quantifier[0] in "*?" or quantifier.startswith("{0,")
        return Part(atom.python + quantifier, may_be_empty, atom.captures)

    def _quantifier(self) -> str:
        if self._peek() in ("*", "+", "?"):
            return self._next()
        if self._peek() != "{":
            return ""
        interval = INTERVAL.match(self._pattern, self._at)
        if interval is None:
            raise self._error("an incomplete {}")
        self._at = interval.end()
        least, comma, most = interval[1], interval[2], interval[3]
        if len(least) > 4 or len(most) > 4 or (most and not comma):
            raise self._error("too large a number in {}")
        low = int(least)
        high = int(most) if most else low if not comma else None
        if max(low, high or 0) > MAX_REPETITIONS or (high is not None and not low <= high > 0):
            raise self._error("an invalid number in {}")
        return f"{{{low},{'' if high is None else high}}}"

    def _atom(self) -> Part:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == ".":
            return Part(ANY_CHARACTER, may_be_empty=False)
        if character == "^":
            return Part(r"\A", may_be_empty=True, is_assertion=True)
        if character == "$":
            return Part(END, may_be_empty=True, is_assertion=True)
        if character in QUANTIFIERS:
            raise self._error("a quantifier without an expression")
        if character == "\\":
            if self._peek() and self._peek() in ASSERTIONS:
                return Part(ASSERTIONS[self._next()], may_be_empty=True, is_assertion=True)
            return Part(self._escape(), may_be_empty=False)
        return Part(re.escape(character), may_be_empty=False)

    def _group(self) -> Part:
        opening = "("
        if self._peek() == "?":
            opening += self._next() + self._next()
            if opening not in ("(?:", "(?=", "(?!"):
                raise self._error(f"{opening}")
        is_lookahead = opening in ("(?=", "(?!")
        self._depth += 1
        self._lookaheads += is_lookahead
        if self._depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} nested groups")
        if opening == "(" and self._lookaheads:
            raise self._error("a capturing group in a lookahead")
        body = self._alternatives()
        if not self._accept(")"):
            raise self._error("an unmatched (")
        self._depth -= 1
        self._lookaheads -= is_lookahead
        return Part(
            f"{opening}{body.python})",
            body.may_be_empty or is_lookahead,
            body.captures or opening == "(",
            is_lookahead,
        )

    def _class(self) -> Part:
        negation = "^" if self._accept("^") else ""
        items: list[str] = []
        while not (items and self._accept("]")):
            first = self._class_item()
            is_range = self._peek() == "-" and self._peek(2) not in ("-", "-]")
            if not is_range or len(first) > 1:
                items.append(first if len(first) > 1 else re.escape(first))
                continue
            self._next()
            last = self._class_item()
            if len(last) > 1 or last < first:
                raise self._error("an invalid range")
            items.append(f"{re.escape(first)}-{re.escape(last)}")
        return Part(f"[{negation}{''.join(items)}]", may_be_empty=False)

    def _class_item(self) -> str:
        """Return a character, or the two characters of a predefined class."""
        if self._peek() in ("[", "]") or self._peek(2) == "&&":
            raise self._error("an unescaped [ or ] or && in a class")
        character = self._next()
        if character != "\\":
            return character
        return self._escaped()

    def _escape(self) -> str:
        item = self._escaped()
        return item if len(item) > 1 else re.escape(item)

    def _escaped(self) -> str:
        """Return what follows a backslash: a character, or the two characters of a predefined class."""
        character = self._next()
        if character in CLASS_ESCAPES:
            return f"\\{character}"
        if character in CONTROL_ESCAPES:
            return CONTROL_ESCAPES[character]
        if character.isascii() and character.isalnum():
            raise self._error(f"the escape \\{character}")
        return character

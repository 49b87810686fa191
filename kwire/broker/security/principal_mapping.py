"""ssl.principal.mapping.rules: the names of principals from distinguished names of certificates. KIP-371.

Each rule is DEFAULT or `RULE:pattern/replacement/`, optionally with L or U at the end, which changes the
result to lower or upper case. The first rule whose pattern matches a complete distinguished name gives the
name. As in Kafka, it then replaces each match of the pattern **within** the distinguished name. So the rule
`RULE:CN=(.*?)/$1/` leaves `CN=alice` as `alice`: the shortest match is `CN=`, and the rest stays. The rule
`RULE:.*/x/` gives `xx`, because `.*` also matches the empty text at the end.

Kafka accepts every Java regular expression. This module refuses the ones that Python may evaluate in
another way (`java_pattern`), and the replacements with which each connection to Kafka fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kwire.broker.security.distinguished_name import rfc2253_name, subject_of
from kwire.broker.security.java_pattern import ANY_CHARACTER, END, compile_pattern
from kwire.broker.security.principal import ANONYMOUS
from kwire.wire.named_tuple import NamedTuple

DEFAULT: Final = "DEFAULT"
SPACE: Final = r"[ \t\n\x0b\f\r]*"
PART: Final = rf"(?:\\{ANY_CHARACTER}|[^\\/])*"
RULE_PATTERN: Final = (
    rf"(?P<default>DEFAULT)|RULE:(?P<pattern>{PART})/(?P<replacement>{PART})/(?P<case>[LU]?){ANY_CHARACTER}*?"
    rf"|{ANY_CHARACTER}*?"
)
RULE_PARSER: Final = re.compile(RULE_PATTERN)
RULE_SPLITTER: Final = re.compile(f"{SPACE}(?P<rule>{RULE_PATTERN}){SPACE}(?:,{SPACE}|{END})")
"""Kafka's expressions. A comma separates rules only where a rule may end, so patterns can contain commas."""

CONTROLS_AND_SPACE: Final = "".join(map(chr, range(0x21)))
BACK_REFERENCE: Final = re.compile(r"\$([0-9]+)")
SIGMA: Final = "\N{GREEK CAPITAL LETTER SIGMA}"


class NoMatchingRuleError(ValueError):
    """No rule matches a distinguished name, or the result of a rule cannot be the same as in Kafka."""


def principal_of(certificate: bytes | None, mapper: PrincipalMapper) -> str:
    """Return the name of the principal of a TLS connection from the client's certificate, as DER.

    As in Kafka, a client without a certificate is ANONYMOUS, and a certificate with an empty subject has an
    empty name. Raises NoMatchingRuleError if no rule matches, and ValueError if the certificate is malformed
    or its name is refused. In both cases the connection must be closed.
    """
    return ANONYMOUS.name if certificate is None else mapper.name_of(rfc2253_name(subject_of(certificate)))


class Rule(NamedTuple):
    """One rule. A rule without a compiled pattern is DEFAULT."""

    pattern: str
    replacement: str
    case: str
    compiled: re.Pattern[str] | None
    template: list[str | int]
    """The replacement as texts and numbers of groups."""

    def __str__(self) -> str:
        if self.compiled is None:
            return DEFAULT
        return f"RULE:{self.pattern}/{self.replacement}" + (f"/{self.case}" if self.case else "")


class PrincipalMapper:
    """The rules of one listener."""

    def __init__(self, rules: str = DEFAULT) -> None:
        """Parse ssl.principal.mapping.rules. Raises ValueError if a rule is invalid or refused."""
        self._rules = list(_parsed(rules))

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self._rules))}]"

    def name_of(self, distinguished_name: str) -> str:
        """Return the name of the principal. Raises NoMatchingRuleError."""
        for rule in self._rules:
            if rule.compiled is None:
                return distinguished_name
            if rule.compiled.fullmatch(distinguished_name):
                name = _replaced(rule.compiled, rule.template, distinguished_name)
                return _in_case(name, rule.case)
        raise NoMatchingRuleError(f"No rules apply to {distinguished_name}, rules {self}")


def _parsed(rules: str) -> Iterator[Rule]:
    for text in _split(rules):
        match = RULE_PARSER.match(text)
        if match is None:
            raise ValueError(f"Invalid rule: {text}")
        if match.end() != len(text):
            raise ValueError(f"Invalid rule: `{text}`, unmatched substring: `{text[match.end() :]}`")
        if match["default"]:
            yield Rule(DEFAULT, "", "", None, [])
        elif match["pattern"] is not None:
            try:
                compiled = compile_pattern(match["pattern"])
                template = _template(match["replacement"], compiled.groups)
            except ValueError as error:
                raise ValueError(f"Invalid rule: `{text}`: {error}") from None
            yield Rule(match["pattern"], match["replacement"], match["case"], compiled, template)


def _split(rules: str) -> Iterator[str]:
    rules = rules.strip(CONTROLS_AND_SPACE)
    at = 0
    while at <= len(rules) and (match := RULE_SPLITTER.search(rules, at)):
        yield match["rule"]
        at = match.end() + (match.end() == match.start())


def _template(replacement: str, groups: int) -> list[str | int]:
    """Return the texts and group numbers of a replacement for Java's `String.replaceAll`.

    Raises ValueError where Java would fail.
    """
    text = _with_literal_references(replacement, groups)
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if character not in "\\$":
            parts.append(character)
            continue
        following = text[at : at + 1]
        at += 1
        if character == "\\" and following:
            parts.append(following)
        elif character == "$" and following in set("0123456789"):
            group = int(following)
            if group > groups:
                raise ValueError(f"the pattern has no group {group}.")
            while (digit := text[at : at + 1]) in set("0123456789") and group * 10 + int(digit) <= groups:
                group = group * 10 + int(digit)
                at += 1
            parts.append(group)
        else:
            raise ValueError(
                f"the replacement has an incomplete {character}. Write \\{character} for the character."
            )
    return parts


def _with_literal_references(replacement: str, groups: int) -> str:
    """Escape references to groups that do not exist, as Kafka does.

    Kafka's positions are those in the original text, even after it has inserted a backslash.
    """
    if not groups:
        return replacement
    text = replacement
    for reference in BACK_REFERENCE.finditer(replacement):
        if reference[1].startswith("0"):
            continue
        if len(reference[1]) > 9:
            raise ValueError(f"the replacement has too large a number: {reference[0]}.")
        group = int(reference[1])
        while group > groups and group >= 10:
            group //= 10
        if group > groups:
            text = f"{text[: reference.start()]}\\{text[reference.start() :]}"
    return text


def _replaced(pattern: re.Pattern[str], template: list[str | int], text: str) -> str:
    """Return `text` with each match replaced, as Java's `String.replaceAll`.

    `re.sub` differs: after an empty match, it looks for a non-empty one at the same position.
    """
    parts = []
    copied = at = 0
    while at <= len(text) and (match := pattern.search(text, at)):
        parts.append(text[copied : match.start()])
        parts += [one if isinstance(one, str) else match[one] or "" for one in template]
        copied = at = match.end()
        if match.start() == match.end():
            if text[at : at + 1] > "\uffff":
                # Java's next match may be between the two halves of this character in UTF-16.
                raise NoMatchingRuleError(f"A rule matches the empty text before {text[at]} in {text}")
            at += 1
    return "".join(parts) + text[copied:]


def _in_case(name: str, case: str) -> str:
    if case == "L":
        if SIGMA in name:  # Java and Python choose between its two lower-case forms by different rules
            raise NoMatchingRuleError(
                f"A rule with /L cannot change the {SIGMA} in {name} exactly like Java does"
            )
        return name.lower()
    return name.upper() if case == "U" else name

"""JAAS configurations, which hold the credentials of SASL mechanisms: in a setting (KIP-85), or in a file.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_c="d";

The text is parsed as in Kafka, with the rules of Java's StreamTokenizer. The value of an option is a quoted
text, or a word that does not start with a digit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from kwire.wire.java_strings import BLANKS
from kwire.wire.named_tuple import NamedTuple

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"

_LOGIN_OPTIONS: Final = ("username", "password", "tokenauth")
_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
_NUMERIC: Final = "0123456789.-"
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NUMBER_TEXT: Final = re.compile(r"-?[0-9]*(?:\.[0-9]*)?")
_LINE: Final = re.compile(r"[^\r\n]*")
_OCTAL: Final = "01234567"


class MalformedJaas(ValueError):
    """A text that is not a valid JAAS configuration.

    The message is Kafka's, without words that may be a part of a password, such as one that contains a quote.
    """


class LoginModule(NamedTuple):
    """A login module and its options."""

    name: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name}, [hidden])"


class LoginContext(NamedTuple):
    """The login modules of a mechanism. They contain the users of PLAIN, and this node's own login.

    Kafka's login modules only hold options. If several modules set an option, the first one wins.
    """

    modules: tuple[LoginModule, ...]

    @property
    def username(self) -> str:
        """The user name with which this node logs in; empty if it is not set."""
        return self._first("username")

    @property
    def password(self) -> str:
        """The password with which this node logs in; empty if it is not set."""
        return self._first("password")

    def _first(self, name: str) -> str:
        return next((one.options[name] for one in self.modules if name in one.options), "")

    @property
    def is_token(self) -> bool:
        """Whether user name and password are the id and HMAC of a delegation token. KIP-48."""
        return any(
            one.name == SCRAM_MODULE and one.options.get("tokenauth", "").lower() == "true"
            for one in self.modules
        )

    @property
    def users(self) -> dict[str, str]:
        """The users of the PLAIN modules: name -> password."""
        return {
            name.removeprefix("user_"): value
            for one in reversed(self.modules)
            if one.name == PLAIN_MODULE
            for name, value in one.options.items()
            if name.startswith("user_")
        }


@lru_cache(maxsize=16)  # each Envelope on a SASL listener asks for this node's own login
def parse_jaas(text: str) -> LoginContext:
    """Parse a text with a single login module. Raises MalformedJaas for any other text."""
    tokens = _tokens(text)
    modules = []
    while (token := next(tokens, _END)) != _END:
        modules.append(_parse_module(token, tokens))
    if not modules:
        raise MalformedJaas("Login module not specified in JAAS config")
    if len(modules) > 1:
        raise MalformedJaas(f"JAAS config property contains {len(modules)} login modules, should be 1 module")
    return LoginContext(tuple(modules))


def parse_jaas_file(text: str) -> dict[str, LoginContext]:
    """Parse a JAAS file into context name -> context. Raises MalformedJaas if the file is invalid.

    A context is NAME { MODULE required OPTION="VALUE"; MODULE required; };
    """
    tokens = _tokens(text)
    contexts = {}
    while (token := next(tokens, _END)) != _END:
        if token.word is None or next(tokens, _END).character != "{":
            raise MalformedJaas("expected NAME { in JAAS config")
        modules = []
        while (inner := next(tokens, _END)).character != "}":
            modules.append(_parse_module(inner, tokens))
        if next(tokens, _END).character != ";":
            raise MalformedJaas(f"{token.word} is not terminated by semi-colon in JAAS config")
        if any("${" in value for module in modules for value in module.options.values()):
            raise MalformedJaas(f"{token.word} has a Java property in JAAS config, which is not supported")
        contexts[token.word] = LoginContext(tuple(modules))
    return contexts


class _Token(NamedTuple):
    """A token: a word, or a single character that is not part of a word. A number is `_NUMBER`."""

    word: str | None
    character: str = ""


_END: Final = _Token(None)
_NUMBER: Final = _Token(None, "0")


def _parse_module(first: _Token, tokens: Iterator[_Token]) -> LoginModule:
    flag = next(tokens, _END)
    if flag == _END:
        raise MalformedJaas("Login module control flag not specified in JAAS config")
    if flag.word is None:
        raise MalformedJaas("Login module control flag is not available in the JAAS config")
    if flag.word.upper() not in _FLAGS:
        raise MalformedJaas("Invalid login module control flag in JAAS config")
    return LoginModule(first.word or "null", dict(_parse_options(tokens)))


def _parse_options(tokens: Iterator[_Token]) -> Iterator[tuple[str, str]]:
    while (token := next(tokens, _END)) != _END:
        if token.character == ";":
            return
        if next(tokens, _END).character != "=" or (value := next(tokens, _END).word) is None:
            key = f"key '{token.word}'" if token.word in _LOGIN_OPTIONS else "a key"
            raise MalformedJaas(f"Value not specified for {key} in JAAS config")
        yield token.word or "", value
    raise MalformedJaas("JAAS config entry not terminated by semi-colon")


def _is_word_character(character: str) -> bool:
    return (character.isascii() and (character.isalpha() or character in "-_$")) or character >= "\xa0"


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        first = text[at]
        if first in BLANKS:
            at += 1
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            at = len(text) if end < 0 else end + 2
        elif first == "/":
            at = _match_end(_LINE, text, at)
        elif first in "\"'":
            word, at = _read_quoted(text, at)
            yield _Token(word)
        elif first in _NUMERIC and (first != "-" or text[at + 1 : at + 2] in tuple("0123456789.")):
            at = _match_end(_NUMBER_TEXT, text, at)
            yield _NUMBER
        elif first != "-" and _is_word_character(first):
            start = at
            while at < len(text) and (_is_word_character(text[at]) or text[at] in _NUMERIC):
                at += 1
            yield _Token(text[start:at])
        else:
            at += 1
            yield _Token(None, first)


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _read_quoted(text: str, at: int) -> tuple[str, int]:
    """Return the quoted word that starts at `at`, and the position after it. A line end also ends a word."""
    quote = text[at]
    at += 1
    word: list[str] = []
    while at < len(text) and text[at] not in (quote, "\r", "\n"):
        character = text[at]
        at += 1
        if character == "\\" and at < len(text):
            character, at = _read_escape(text, at)
        word.append(character)
    return "".join(word), at + (at < len(text) and text[at] == quote)


def _read_escape(text: str, at: int) -> tuple[str, int]:
    if text[at] not in _OCTAL:
        return _ESCAPED.get(text[at], text[at]), at + 1
    end = at + 1
    limit = at + (3 if text[at] <= "3" else 2)
    while end < min(limit, len(text)) and text[end] in _OCTAL:
        end += 1
    return chr(int(text[at:end], 8)), end

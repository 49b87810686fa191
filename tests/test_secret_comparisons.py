"""Secrets are compared in constant time. Otherwise the time would show how much of a guess is right.

CVE-2021-38153 was such a comparison in Apache Kafka.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import kwire

SECRET = re.compile(r"(^|_)(password|secret|hmac|signature|proof|stored_key|server_key|salted_password)s?$")
PACKAGE = Path(kwire.__path__[0])
SERVERS = ("broker", "console", "coordinator")
"""The packages that get secrets from clients. Commands compare only what their own user gives them."""


def names_in(node: ast.expr) -> set[str]:
    """Return the names in a compared value: of variables, attributes and fields."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {name}
        case ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
            return {key, *names_in(value)}
        case ast.Subscript(value=value) | ast.Await(value=value):
            return names_in(value)
        case ast.Call(func=ast.Name(id="len")):
            return set()
        case ast.Call(func=ast.Attribute(value=value), args=arguments):
            return names_in(value).union(*map(names_in, arguments))
        case ast.Call(args=arguments):
            return set().union(*map(names_in, arguments))
    return set()


def comparisons_in(source: str) -> list[int]:
    """Return the lines that compare a secret with another value in ordinary ways."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        operands = [node.left, *node.comparators]
        is_equality = all(isinstance(one, ast.Eq | ast.NotEq) for one in node.ops)
        has_constant = any(isinstance(one, ast.Constant) for one in operands)
        if (
            is_equality
            and not has_constant
            and any(map(SECRET.search, set().union(*map(names_in, operands))))
        ):
            found.append(node.lineno)
    return found


def test_comparisons_of_secrets_are_found() -> None:
    for text in (
        "password == expected",
        "given != self._password",
        "hash(proof) == stored_key",
        'fields["password"] == other',
        "one.hmac == bytes(other)",
    ):
        assert comparisons_in(text), text
    for text in ('password == ""', "len(proof) != 3", "hmac.compare_digest(password, expected)"):
        assert not comparisons_in(text), text


def test_kwire_compares_secrets_in_constant_time() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for server in SERVERS
        for path in sorted((PACKAGE / server).rglob("*.py"))
        for line in comparisons_in(path.read_text("utf-8"))
    ]
    assert found == []

"""kwire's fast NamedTuple behaves as that of typing."""

from __future__ import annotations

import pickle
import typing
from typing import Any, Generic, TypeVar

import pytest

from kwire.wire.named_tuple import NamedTuple

R = TypeVar("R")


class KwireTuple(NamedTuple):
    """A docstring."""

    name: str | None
    size_bytes: int = 7
    """A docstring of an attribute."""

    @property
    def double(self) -> int:
        """Return twice the size."""
        return 2 * self.size_bytes


class TypingTuple(typing.NamedTuple):
    """A docstring."""

    name: str | None
    size_bytes: int = 7
    """A docstring of an attribute."""

    @property
    def double(self) -> int:
        """Return twice the size."""
        return 2 * self.size_bytes


class GenericTuple(NamedTuple, Generic[R]):
    value: R


@pytest.mark.parametrize("kind", [KwireTuple, TypingTuple])
def test_fields_defaults_and_methods(kind: Any) -> None:
    made = kind("a")
    assert (made.name, made.size_bytes, made.double) == ("a", 7, 14)
    assert kind("a", 8) == made._replace(size_bytes=8) == ("a", 8)
    assert (kind._fields, kind._field_defaults) == (("name", "size_bytes"), {"size_bytes": 7})
    assert repr(made) == f"{kind.__name__}(name='a', size_bytes=7)"
    assert kind.__doc__ == "A docstring."
    assert (kind.__bases__, kind.__module__) == ((tuple,), __name__)
    assert type(pickle.loads(pickle.dumps(made))) is kind
    with pytest.raises(TypeError, match=rf"{kind.__name__}\.__new__\(\) missing 1 .* 'name'"):
        kind()
    with pytest.raises(TypeError, match="size"):
        kind("a", size=1)
    assert (made._asdict(), kind._make(["b", 1])) == ({"name": "a", "size_bytes": 7}, kind("b", 1))
    with pytest.raises(TypeError, match="2"):
        kind._make(["b"])
    with pytest.raises((ValueError, TypeError), match="size"):
        made._replace(size=1)
    match made:
        case kind(name, size):
            assert (name, size) == ("a", 7)
        case _:
            pytest.fail("its fields are not matched by their places")
    assert vars(kind).get("__slots__") == ()
    with pytest.raises(AttributeError):
        made.name = "b"


def test_default_docstring_lists_the_fields() -> None:
    assert GenericTuple.__doc__ == "GenericTuple(value)"


def test_annotations_are_evaluated_lazily() -> None:
    assert (
        typing.get_type_hints(KwireTuple)
        == typing.get_type_hints(TypingTuple)
        == {"name": str | None, "size_bytes": int}
    )


def test_generic_tuple_accepts_parameters() -> None:
    assert GenericTuple[int](3).value == 3

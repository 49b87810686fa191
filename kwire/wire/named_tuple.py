"""`NamedTuple`, made in a fifth of the time: a broker's start makes a hundred and fifty of them.

`typing.NamedTuple` compiles each field's annotation when the class is made, only to keep it unevaluated, as
the annotation itself is kept where a module has `from __future__ import annotations`. What is made here is
what `collections.namedtuple` makes, with these annotations. Type checkers see `typing.NamedTuple`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import namedtuple

    OWN = {"__module__", "__qualname__", "__annotations__"}
    """What a namespace has that is not the body's."""

    class Maker(type):
        """The class of `NamedTuple` alone: what it makes are plain subclasses of tuple."""

        def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, object]) -> type:
            """A class of the fields annotated in `body`; what has a value there has it by default."""
            fields = body.get("__annotations__", {})
            defaults = [body[field] for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            made.__qualname__ = body["__qualname__"]
            made.__annotations__ = made.__new__.__annotations__ = fields
            for key, value in body.items():
                if key not in OWN and key not in fields:
                    setattr(made, key, value)
            if len(bases) > 1:  # Generic, of whose parameters nothing is kept
                made.__class_getitem__ = classmethod(lambda cls, _: cls)
            return made

    NamedTuple = type.__new__(Maker, "NamedTuple", (), {})

"""How a message is declared: annotated classes, from which `kwire.wire.codegen` makes one codec per version.

    @message(key=0, versions="3-13", flexible="9+")
    class ProduceRequest(Message):
        transactional_id: Str | None = field(nullable="3+", default=None)
        acks: Int16
        topic_data: list[TopicProduceData] = field()

A field's type is one of the names below, `list[...]` of one, or another message class, with `| None` where
the protocol has a null. Its options say in which versions it is there, in which it may be null, and under
which tag it travels. A declaration that contradicts itself fails when its class is made or first used: a
tagged field without versions of its own, a gap, a null where none is allowed.

Classes cost almost nothing to make: their constructors and codecs are compiled when they are first used.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, dataclass_transform

from kwire.wire.primitives import ZERO_UUID, Buffer, Region

Int8: TypeAlias = int
Int16: TypeAlias = int
UInt16: TypeAlias = int
Int32: TypeAlias = int
UInt32: TypeAlias = int
Int64: TypeAlias = int
Float64: TypeAlias = float
Bool: TypeAlias = bool
Str: TypeAlias = str
Bytes: TypeAlias = bytes
Records: TypeAlias = Buffer | Region

ANY_VERSION: Final = 0x7FFF

SECRETS: Final = frozenset(
    {"auth_bytes", "hmac", "salted_password", "stored_key", "server_key", "request_data", "response_data"}
)
"""Fields that prove who somebody is, or that hold whole messages which may: no log is to have them."""

ZERO: Final[dict[str, object]] = {
    "Int8": 0,
    "Int16": 0,
    "UInt16": 0,
    "Int32": 0,
    "UInt32": 0,
    "Int64": 0,
    "Float64": 0.0,
    "Bool": False,
    "Str": "",
    "Bytes": b"",
    "Records": None,
    "Uuid": ZERO_UUID,
}
"""The primitive types and their default values."""


class SchemaError(TypeError):
    """A declaration that contradicts itself."""


class Versions(tuple[int, int]):
    """A range of versions, both ends included; empty where the first exceeds the last."""

    __slots__ = ()

    @classmethod
    @cache  # a few texts stand in all messages, hundreds of times
    def parse(cls, text: str) -> Versions:
        """Read "3", "3-5", "3+" or "none". SchemaError for anything else."""
        if text == "none":
            return cls((1, 0))
        try:
            if text.endswith("+"):
                return cls((int(text[:-1]), ANY_VERSION))
            first, dash, last = text.partition("-")
            found = cls((int(first), int(last) if dash else int(first)))
        except ValueError:
            raise SchemaError(f"not a range of versions: {text!r}") from None
        if found[0] > found[1]:
            raise SchemaError(f"the versions {text!r} end before they begin")
        return found

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self[0] <= version <= self[1]

    def within(self, other: Versions) -> bool:
        """Whether every version of this range is in the other."""
        return self[0] > self[1] or (other[0] <= self[0] and self[1] <= other[1])


ALL: Final = Versions((0, ANY_VERSION))
NONE: Final = Versions((1, 0))


class FieldOptions:
    """What a declaration says of one field besides its type."""

    __slots__ = ("default", "ignorable", "nullable", "tag", "tagged", "versions")

    def __init__(
        self,
        versions: Versions,
        nullable: Versions,
        tag: int | None,
        tagged: Versions,
        ignorable: bool,
        default: Any,
    ) -> None:
        self.versions = versions
        self.nullable = nullable
        self.tag = tag
        self.tagged = tagged
        self.ignorable = ignorable
        self.default = default


_NO_DEFAULT: Final = object()


def field(
    versions: str = "0+",
    *,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
    default: Any = _NO_DEFAULT,
) -> Any:
    """Options of a field: the versions that have it, those in which it may be null, its tag (KIP-482).

    `tagged` are the versions that send it under its tag (all that have it, if not given). An `ignorable`
    field is left out silently where a version lacks it; any other must then hold its default.
    """
    has = Versions.parse(versions)
    if tag is None and tagged is not None:
        raise SchemaError("tagged versions without a tag")
    return FieldOptions(
        has,
        Versions.parse(nullable),
        tag,
        NONE if tag is None else has if tagged is None else Versions.parse(tagged),
        ignorable,
        default,
    )


class Field:
    """One field of a message, resolved: its type's name, whether it is a list, its options."""

    __slots__ = (
        "default",
        "element",
        "ignorable",
        "is_list",
        "message",
        "name",
        "nullable",
        "tag",
        "tagged",
        "versions",
    )

    def __init__(self, owner: type[Message], name: str, annotation: str, options: FieldOptions) -> None:
        where = f"{owner.__name__}.{name}"
        self.name = name
        self.versions = options.versions
        self.nullable = options.nullable
        self.tag = options.tag
        self.tagged = options.tagged
        self.ignorable = options.ignorable
        text, bar, rest = annotation.partition("|")
        text = text.strip()
        if bar and rest.strip() != "None":
            raise SchemaError(f"{where}: cannot read the type {annotation!r}")
        self.is_list = text.startswith("list[") and text.endswith("]")
        self.element = text[5:-1] if self.is_list else text
        self.message: type[Message] | None = None
        if self.element not in ZERO:
            found = getattr(sys.modules[owner.__module__], self.element, None)
            if not (isinstance(found, type) and issubclass(found, Message)):
                raise SchemaError(f"{where}: {self.element!r} is no type of the protocol")
            self.message = found
        if not self.nullable.within(self.versions):
            raise SchemaError(f"{where}: null in versions that lack the field")
        if not self.tagged.within(self.versions):
            raise SchemaError(f"{where}: tagged in versions that lack the field")
        is_nullable = self.nullable[0] <= self.nullable[1]
        if is_nullable != bool(bar) and self.element != "Records":
            raise SchemaError(f"{where}: the type and the nullable versions disagree about null")
        self.default = self._default(where, options.default, is_nullable)

    def _default(self, where: str, given: Any, is_nullable: bool) -> Any:
        if given is not _NO_DEFAULT:
            if given is None and not is_nullable and self.element != "Records":
                raise SchemaError(f"{where}: null by default, and never nullable")
            # A list starts empty, a structure with its own defaults: for these there is only null to say.
            composed = self.is_list or self.message is not None
            if given is not None and (composed or type(given) is not type(ZERO[self.element])):
                raise SchemaError(f"{where}: {given!r} cannot be its default")
            return given
        if self.is_list:
            return []
        if self.message is not None:
            return self.message
        return ZERO[self.element]


class MessageMeta(type):
    """Makes the fields of a class its slots."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> MessageMeta:
        annotations: dict[str, str] = {
            key: text
            for key, text in namespace.get("__annotations__", {}).items()
            if not text.startswith("ClassVar")
        }
        declared: dict[str, tuple[str, FieldOptions]] = {}
        for key, text in annotations.items():
            options = namespace.pop(key, None)
            if options is None:
                options = field()
            elif not isinstance(options, FieldOptions):
                raise SchemaError(f"{name}.{key}: options are given with field(...)")
            declared[key] = (text, options)
        namespace["__slots__"] = tuple(declared)
        namespace["declared_fields"] = declared
        return super().__new__(mcs, name, bases, namespace)


# `field` is not named as a specifier: so checkers take what it returns for a default, which every field has.
@dataclass_transform(kw_only_default=True)
class _Declared(metaclass=MessageMeta):
    """Tells type checkers that fields become keyword arguments."""


MessageType = TypeVar("MessageType", bound="type[Message]")


class Message(_Declared):
    """A message, or a structure inside one, made with keyword arguments; every field has a default."""

    declared_fields: ClassVar[dict[str, tuple[str, FieldOptions]]]
    resolved_fields: ClassVar[tuple[Field, ...] | None] = None
    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[Versions] = ALL
    FLEXIBLE: ClassVar[Versions] = NONE

    def __init__(self, **values: Any) -> None:
        # The first construction compiles the constructor that all later ones use.
        type(self).__init__ = _compile_constructor(type(self))  # type: ignore[method-assign]
        type(self).__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        # Compiled as well: what an encoder leaves out where it has its default is compared for each message.
        type(self).__eq__ = _compile_equality(type(self))  # type: ignore[method-assign]
        return self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(
            f"{name}={'[hidden]' if name in SECRETS else repr(getattr(self, name))}"
            for name in self.declared_fields
        )
        return f"{type(self).__name__}({values})"


def fields_of(message_class: type[Message]) -> tuple[Field, ...]:
    """The fields of a class in their order. SchemaError where the declaration is not sound."""
    fields = message_class.__dict__.get("resolved_fields")
    if fields is None:
        fields = tuple(
            Field(message_class, name, text, options)
            for name, (text, options) in message_class.declared_fields.items()
        )
        tags = sorted(one.tag for one in fields if one.tag is not None)
        if tags != list(range(len(tags))):
            raise SchemaError(f"{message_class.__name__}: its tags are {tags}, not 0, 1, 2 and so on")
        message_class.resolved_fields = fields
    return fields


def _compile_constructor(message_class: type[Message]) -> Callable[..., None]:
    """`__init__` with a keyword argument for each one."""
    names: dict[str, Any] = {"_absent": _absent}
    arguments: list[str] = []
    lines: list[str] = []
    for one in fields_of(message_class):
        name = one.name
        if isinstance(one.default, list):
            arguments.append(f"{name}=_absent")
            lines.append(f"    self.{name} = [] if {name} is _absent else {name}")
        elif isinstance(one.default, type):
            names[f"new_{name}"] = one.default
            arguments.append(f"{name}=_absent")
            lines.append(f"    self.{name} = new_{name}() if {name} is _absent else {name}")
        else:
            names[f"default_{name}"] = one.default
            arguments.append(f"{name}=default_{name}")
            lines.append(f"    self.{name} = {name}")
    star = "*, " if arguments else ""
    source = f"def __init__(self, {star}{', '.join(arguments)}):\n" + ("\n".join(lines) or "    pass") + "\n"
    made: Callable[..., None] = compile_function(
        source, f"{message_class.__name__} constructor", "__init__", names
    )
    return made


def _compile_equality(message_class: type[Message]) -> Callable[[Message, object], bool]:
    """`__eq__` that compares one field after the other."""
    same = " and ".join(f"self.{one.name} == other.{one.name}" for one in fields_of(message_class)) or "True"
    source = (
        "def __eq__(self, other):\n"
        "    if other.__class__ is not self.__class__:\n"
        "        return NotImplemented\n"
        f"    return {same}\n"
    )
    made: Callable[[Message, object], bool] = compile_function(
        source, f"{message_class.__name__} equality", "__eq__", {}
    )
    return made


class _Absent:
    __slots__ = ()


_absent = _Absent()


def compile_function(source: str, title: str, name: str, names: dict[str, Any]) -> Any:
    """The function of that name, whose lines tracebacks show under the title."""
    filename = f"<kwire {title}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), names)
    return names[name]


def message(*, versions: str, key: int = -1, flexible: str = "none") -> Any:
    """Declare a whole message: its API key (or record type), its versions, and which of them are flexible."""
    valid = Versions.parse(versions)
    flexible_versions = Versions.parse(flexible)

    def declare(message_class: MessageType) -> MessageType:
        message_class.API_KEY = key
        message_class.VERSIONS = valid
        message_class.FLEXIBLE = flexible_versions
        return message_class

    return declare

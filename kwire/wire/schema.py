"""Message schemas: annotated classes, from which `kwire.wire.codegen` generates one codec per version.

    @message(key=0, versions="3-13", flexible="9+")
    class ProduceRequest(Message):
        transactional_id: Str | None = field(nullable="3+", default=None)
        acks: Int16
        topic_data: list[TopicProduceData] = field()

A field's type is one of the names below, `list[...]` of such a name, or another message class. `| None` marks
a field that the protocol allows to be null. The field's options give the versions that have the field, the
versions in which it may be null, and its tag. A declaration that contradicts itself raises SchemaError when
its class is created or first used: tagged versions without a tag, a gap between tags, a null default in a
field that is never null.

Creating a class is cheap, because its constructor and codecs are compiled when they are first used.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, dataclass_transform

from kwire.wire.named_tuple import NamedTuple
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
    {
        "auth_bytes",
        "hmac",
        "salted_password",
        "stored_key",
        "server_key",
        "request_data",
        "response_data",
        "AlterableConfig.value",
        "CreatableTopicConfig.value",
        "ConfigRecord.value",
    }
)
"""Fields, some with their class, that carry credentials, or complete messages that may carry them.

They must not appear in logs.
"""

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
    """The error for a declaration that contradicts itself."""


class Versions(tuple[int, int]):
    """A range of versions, both ends included. The range is empty if the first version exceeds the last."""

    __slots__ = ()

    @classmethod
    @cache  # A few texts appear hundreds of times.
    def parse(cls, text: str) -> Versions:
        """Parse "3", "3-5", "3+" or "none". Raises SchemaError for any other text."""
        if text == "none":
            return cls((1, 0))
        try:
            if text.endswith("+"):
                return cls((int(text[:-1]), ANY_VERSION))
            first, dash, last = text.partition("-")
            found = cls((int(first), int(last) if dash else int(first)))
        except ValueError:
            raise SchemaError(f"{text!r} is not a range of versions") from None
        if found[0] > found[1]:
            raise SchemaError(f"the versions {text!r} end before they start")
        return found

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self[0] <= version <= self[1]

    def within(self, other: Versions) -> bool:
        """Return whether the other range includes every version of this range."""
        return self[0] > self[1] or (other[0] <= self[0] and self[1] <= other[1])


ALL: Final = Versions((0, ANY_VERSION))
NONE: Final = Versions((1, 0))


class FieldOptions(NamedTuple):
    """The options of one field in its declaration."""

    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    ignorable: bool
    default: Any


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
    """Declare a field: the versions that have it, the versions in which it can be null, its tag (KIP-482).

    `tagged` names the versions that send the field under its tag; the default is all of its versions. An
    `ignorable` field is omitted silently from a version that lacks it. Any other field must have its default
    value in such a version.
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
    """One field of a message, with its type resolved."""

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
            raise SchemaError(f"{where}: {annotation!r} is not a type of the protocol")
        self.is_list = text.startswith("list[") and text.endswith("]")
        self.element = text[5:-1] if self.is_list else text
        self.message: type[Message] | None = None
        if self.element not in ZERO:
            # A test may have removed the module from sys.modules.
            found = getattr(import_module(owner.__module__), self.element, None)
            if not (isinstance(found, type) and issubclass(found, Message)):
                raise SchemaError(f"{where}: {self.element!r} is not a type of the protocol")
            self.message = found
        if not self.nullable.within(self.versions):
            raise SchemaError(f"{where}: nullable in a version that lacks the field")
        if not self.tagged.within(self.versions):
            raise SchemaError(f"{where}: tagged in a version that lacks the field")
        is_nullable = self.nullable[0] <= self.nullable[1]
        if is_nullable != bool(bar) and self.element != "Records":
            raise SchemaError(f"{where}: `| None` and the nullable versions contradict each other")
        self.default = self._default(where, options.default, is_nullable)

    def _default(self, where: str, given: Any, is_nullable: bool) -> Any:
        if given is not _NO_DEFAULT:
            if given is None and not is_nullable and self.element != "Records":
                raise SchemaError(f"{where}: null by default, but never nullable")
            # A list is empty by default, and a structure has its own defaults: only null can be declared.
            composed = self.is_list or self.message is not None
            if given is not None and (composed or type(given) is not type(ZERO[self.element])):
                raise SchemaError(f"{where}: {given!r} is not a default of its type")
            return given
        if self.is_list:
            return []
        if self.message is not None:
            return self.message
        return ZERO[self.element]


class MessageMeta(type):
    """A metaclass that makes the fields of a message its slots."""

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
                raise SchemaError(f"{name}.{key}: declare options with field(...)")
            declared[key] = (text, options)
        namespace["__slots__"] = tuple(declared)
        namespace["declared_fields"] = declared
        return super().__new__(mcs, name, bases, namespace)


# `field` is not listed as a field specifier. Type checkers therefore take its result for a default value,
# which every field has.
@dataclass_transform(kw_only_default=True)
class _Declared(metaclass=MessageMeta):
    """A base class that shows type checkers the fields as keyword arguments."""


MessageType = TypeVar("MessageType", bound="type[Message]")


class Message(_Declared):
    """A message, or a structure inside a message. Its constructor takes keyword arguments, all optional."""

    declared_fields: ClassVar[dict[str, tuple[str, FieldOptions]]]
    resolved_fields: ClassVar[tuple[Field, ...] | None] = None
    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[Versions] = ALL
    FLEXIBLE: ClassVar[Versions] = NONE

    def __init__(self, **values: Any) -> None:
        # The first construction compiles the constructor that all later constructions use.
        type(self).__init__ = _compile_constructor(type(self))  # type: ignore[method-assign]
        type(self).__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        # Compiled too: encoders compare tagged fields with their defaults in each message.
        type(self).__eq__ = _compile_equality(type(self))  # type: ignore[method-assign]
        return self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = type(self).__name__
        values = ", ".join(
            f"{name}={'[hidden]' if {name, f'{kind}.{name}'} & SECRETS else repr(getattr(self, name))}"
            for name in self.declared_fields
        )
        return f"{kind}({values})"


def fields_of(message_class: type[Message]) -> tuple[Field, ...]:
    """Return the fields of a class in their order. Raises SchemaError if the declaration is invalid."""
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
    """Compile `__init__` with one keyword argument for each field."""
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
    """Compile `__eq__`, which compares the fields one by one."""
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
    """Compile a function and register its source with linecache, so that tracebacks show its lines.

    `title` identifies the source in tracebacks. `names` are the function's global variables.
    """
    filename = f"<kwire {title}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), names)
    return names[name]


def message(*, versions: str, key: int = -1, flexible: str = "none") -> Any:
    """Declare a message: its API key or record type, its versions, and the flexible versions among them."""
    valid = Versions.parse(versions)
    flexible_versions = Versions.parse(flexible)

    def declare(message_class: MessageType) -> MessageType:
        message_class.API_KEY = key
        message_class.VERSIONS = valid
        message_class.FLEXIBLE = flexible_versions
        return message_class

    return declare

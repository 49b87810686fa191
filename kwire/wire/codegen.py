"""Code generation: for each version of a message, one flat function that decodes it and one that encodes it.

Each function is written as source and compiled on first use. The source is registered with linecache, so that
a traceback shows the line that failed. Adjacent fields of fixed width become one struct call. Lengths and
counts are checked against the bytes that are left, so a count cannot allocate more elements than there are
bytes.

A message with 100,000 elements takes a second. For large messages, a generator does the same work in slices,
so that the event loop can serve other connections in between. The generators come from the same source, with
a `yield` after every `SLICE_ELEMENTS` elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar, cast

from kwire.wire.errors import NotInVersion, WireError
from kwire.wire.primitives import Buffer, Region, append_unsigned_varint, read_unsigned_varint, truncated
from kwire.wire.schema import Field, Message, SchemaError, compile_function, fields_of

Decoder: TypeAlias = Callable[[Buffer, int, int], tuple[Any, int]]
"""(buffer, position, end) -> (message, position after the message). `end` is the end of the buffer."""

Encoder: TypeAlias = Callable[[Any, bytearray, list[tuple[int, Region]]], None]
"""(message, output, regions): append the message to the output.

A region's bytes are not copied to the output. `regions` gets their position in the output, and the region.
"""

SlicedDecoder: TypeAlias = Callable[[Buffer, int, int, list[int]], Generator[None, None, tuple[Any, int]]]
"""A `Decoder` that yields between slices. The list holds the number of elements until the next `yield`."""

SlicedEncoder: TypeAlias = Callable[
    [Any, bytearray, list[tuple[int, Region]], list[int]], Generator[None, None, None]
]
"""An `Encoder` that yields between slices. The list holds the number of elements until the next `yield`."""

SLICE_ELEMENTS: Final = 256
"""The number of elements in a slice, which take about 2 ms."""

FORMATS = {
    "Int8": "b",
    "Int16": "h",
    "UInt16": "H",
    "Int32": "i",
    "UInt32": "I",
    "Int64": "q",
    "Float64": "d",
    "Bool": "?",
    "Uuid": "16s",
}
"""The types of fixed width, with their format characters in the struct module."""

MAX_STRING_BYTES = 0x7FFF
"""The maximum size of a string. Java's reader and writer also reject longer strings with a compact length."""

MessageT = TypeVar("MessageT", bound=Message)


@cache
def decoder(message_class: type[Message], version: int) -> Decoder:
    """Return the function that decodes this version. Raises SchemaError if the version is not declared.

    The returned function raises WireError for malformed data.
    """
    source = _DecoderSource(message_class, version, _is_flexible(message_class, version))
    return cast(Decoder, source.compile(outermost=True))


@cache
def encoder(message_class: type[Message], version: int) -> Encoder:
    """Return the function that encodes this version. Raises SchemaError if the version is not declared.

    The returned function raises ValueError if the version cannot carry a value.
    """
    source = _EncoderSource(message_class, version, _is_flexible(message_class, version))
    return cast(Encoder, source.compile(outermost=True))


@cache
def sliced_decoder(message_class: type[Message], version: int) -> SlicedDecoder:
    """Return the generator function that decodes this version in slices. Otherwise like `decoder`."""
    source = _DecoderSource(message_class, version, _is_flexible(message_class, version), sliced=True)
    return cast(SlicedDecoder, source.compile(outermost=True))


@cache
def sliced_encoder(message_class: type[Message], version: int) -> SlicedEncoder:
    """Return the generator function that encodes this version in slices. Otherwise like `encoder`."""
    source = _EncoderSource(message_class, version, _is_flexible(message_class, version), sliced=True)
    return cast(SlicedEncoder, source.compile(outermost=True))


def decode(
    message_class: type[MessageT], version: int, buffer: Buffer, position: int = 0
) -> tuple[MessageT, int]:
    """Decode the message at `position`. Return the message and the position after the message.

    Raises WireError for malformed data.
    """
    message, position = decoder(message_class, version)(buffer, position, len(buffer))
    return message, position


def encode(message: Message, version: int) -> bytes:
    """Encode a message.

    Raises ValueError if the message holds regions of files, or a value that the version cannot carry.
    """
    out = bytearray()
    regions: list[tuple[int, Region]] = []
    encoder(type(message), version)(message, out, regions)
    if regions:
        raise ValueError(f"{type(message).__name__} holds regions of files")
    return bytes(out)


def _is_flexible(message_class: type[Message], version: int) -> bool:
    if version not in message_class.VERSIONS:
        first, last = message_class.VERSIONS
        raise SchemaError(f"{message_class.__name__} has no version {version}, only {first} to {last}")
    return version in message_class.FLEXIBLE


def _has_lists(message_class: type[Message], version: int) -> bool:
    """Return whether a version of a message may have lists whose elements are not of fixed width."""
    return any(
        (field.is_list and (field.element not in FORMATS or field.element == "Uuid"))
        or (field.message is not None and _has_lists(field.message, version))
        for field in fields_of(message_class)
        if version in field.versions
    )


class _Source:
    """The source of a generated function, and the global names that the source uses."""

    def __init__(
        self, message_class: type[Message], version: int, flexible: bool, *, sliced: bool = False
    ) -> None:
        self.message_class = message_class
        self.version = version
        self.flexible = flexible
        self.sliced = sliced
        """Whether the function is a generator that yields between slices of elements."""
        self.names: dict[str, Any] = {}
        self.lines: list[str] = []

    def add(self, indent: int, line: str) -> None:
        self.lines.append("    " * indent + line)

    def wrap_in_try(self, caught: str, raised: str) -> None:
        """Enclose the function's body in a `try`, which costs less than a wrapper function."""
        self.lines[1:] = ["    try:", *("    " + line for line in self.lines[1:])]
        self.add(1, f"except {caught} as error:")
        self.add(2, f"raise {raised} from None")

    def untagged(self) -> list[Field]:
        """Return the fields that this version sends without a tag, in their order."""
        return [
            field
            for field in fields_of(self.message_class)
            if self.version in field.versions and self.version not in field.tagged
        ]

    def tagged(self) -> list[Field]:
        fields = [field for field in fields_of(self.message_class) if self.version in field.tagged]
        if fields and not self.flexible:
            raise SchemaError(f"{self.message_class.__name__} v{self.version} has tags, but is not flexible")
        return sorted(fields, key=lambda field: field.tag or 0)

    def runs(self) -> list[list[Field]]:
        """Return the untagged fields in groups: adjacent fields of fixed width together, all others alone."""
        runs: list[list[Field]] = []
        for field in self.untagged():
            if self.is_fixed(field) and runs and self.is_fixed(runs[-1][0]):
                runs[-1].append(field)
            else:
                runs.append([field])
        return runs

    def is_fixed(self, field: Field) -> bool:
        return not field.is_list and field.element in FORMATS

    def is_nullable(self, field: Field) -> bool:
        return self.version in field.nullable

    def begin(self, parameters: str) -> None:
        """Add the first lines of the function."""
        name = parameters.partition("(")[0]
        self.add(0, f"def {name}({parameters[len(name) + 1 : -1]}{', left' if self.sliced else ''}):")
        if self.sliced:
            self.names["slice_elements"] = SLICE_ELEMENTS
            self.add(1, "if False:")
            self.add(2, "yield")  # a generator, even if the message has no lists

    def nested(self, field: Field, arguments: str) -> str:
        """Return the call of the function for the messages in a field."""
        assert field.message is not None
        name = f"nested_{field.message.__name__}"
        sliced = self.sliced and _has_lists(field.message, self.version)
        if name not in self.names:
            source = type(self)(field.message, self.version, self.flexible, sliced=sliced)
            self.names[name] = source.compile()
        return f"(yield from {name}({arguments}, left))" if sliced else f"{name}({arguments})"

    def end_of_element(self, indent: int) -> None:
        """Add lines that end the slice if it has enough elements."""
        if self.sliced:
            self.add(indent, "left[0] -= 1")
            self.add(indent, "if not left[0]:")
            self.add(indent + 1, "left[0] = slice_elements")
            self.add(indent + 1, "yield")

    def compile(self, *, outermost: bool = False) -> Any:
        raise NotImplementedError


class _DecoderSource(_Source):
    """The source of `decode(b, p, e)`: b is the buffer, p the position, e the end."""

    def compile(self, *, outermost: bool = False) -> Any:
        """Compile the decoder. The outermost decoder converts Python's read errors into WireError."""
        cls = self.message_class
        self.names.update(
            cls=cls,
            new=cls.__new__,
            WireError=WireError,
            truncated=truncated,
            read_varint=read_unsigned_varint,
            unpack_h=struct.Struct(">h").unpack_from,
            unpack_i=struct.Struct(">i").unpack_from,
            unpack_from=struct.unpack_from,
            short_read=(IndexError, struct.error),
        )
        tagged = self.tagged()
        self.begin("decode(b, p, e)")
        self.add(1, "o = new(cls)")
        untagged = {field.name for field in self.untagged()}
        for field in fields_of(cls):
            if field.name not in untagged:
                self.add(1, f"o.{field.name} = {self.default(field)}")
        for run in self.runs():
            if self.is_fixed(run[0]):
                self.fixed(run)
            else:
                self.value(1, run[0], f"o.{run[0].name}")
        if self.flexible:
            self.tags(tagged)
        self.add(1, "return o, p")
        if outermost:
            self.wrap_in_try(
                "short_read", f"WireError(f'{cls.__name__} v{self.version} is truncated: {{error}}')"
            )
        return compile_function(
            "\n".join(self.lines) + "\n", f"{cls.__name__} v{self.version} decode", "decode", self.names
        )

    def default(self, field: Field) -> str:
        if isinstance(field.default, list):
            return "[]"
        self.names[f"default_{field.name}"] = field.default
        return f"default_{field.name}()" if isinstance(field.default, type) else f"default_{field.name}"

    def fixed(self, run: list[Field]) -> None:
        packing = struct.Struct(">" + "".join(FORMATS[field.element] for field in run))
        name = f"unpack_{len(self.names)}"
        self.names[name] = packing.unpack_from
        targets = ", ".join(f"o.{field.name}" for field in run)
        self.add(1, f"{targets}{',' if len(run) == 1 else ''} = {name}(b, p)")
        self.add(1, f"p += {packing.size}")

    def varint(self, indent: int, target: str) -> None:
        """Add lines that read an unsigned varint into a variable, without a call if it has one byte."""
        self.add(indent, f"{target} = b[p]")
        self.add(indent, "p += 1")
        self.add(indent, f"if {target} > 127:")
        self.add(indent + 1, f"{target}, p = read_varint(b, p - 1, e)")

    def length(self, indent: int, where: str, unpack: str, width: int) -> None:
        """Add lines that read a length or count into the variable n. A negative n means null."""
        if self.flexible:
            self.varint(indent, "n")
            if width == 2:
                self.add(indent + 1, f"if n > {MAX_STRING_BYTES + 1}:")
                self.add(indent + 2, f"raise WireError({where} + ' has length %d' % (n - 1))")
            self.add(indent, "n -= 1")
        else:
            self.add(indent, f"n, = {unpack}(b, p)")
            self.add(indent, f"p += {width}")

    def null_or(self, indent: int, field: Field, target: str) -> None:
        where = f"{self.message_class.__name__}.{field.name}"
        self.add(indent, "if n < 0:")
        if self.is_nullable(field):
            # Java's reader accepts any negative length as null.
            self.add(indent + 1, f"{target} = None")
        else:
            self.add(indent + 1, f"raise WireError('{where} may not be null (length %d)' % n)")
        self.add(indent, "else:")

    def value(self, indent: int, field: Field, target: str) -> None:
        where = f"'{self.message_class.__name__}.{field.name}'"
        if field.is_list:
            self.length(indent, where, "unpack_i", 4)
            self.null_or(indent, field, target)
            self.add(indent + 1, "if n > e - p:")
            self.add(indent + 2, f"raise truncated({where}, p, e)")
            self.elements(indent + 1, field, target)
        elif field.message is not None:
            self.nested_message(indent, field, target)
        else:
            short = field.element == "Str"
            self.length(indent, where, "unpack_h" if short else "unpack_i", 2 if short else 4)
            self.null_or(indent, field, target)
            self.span(indent + 1, field.element, where, target)

    def span(self, indent: int, element: str, where: str, target: str) -> None:
        self.add(indent, "q = p + n")
        self.add(indent, "if q > e:")
        self.add(indent + 1, f"raise truncated({where}, p, e)")
        if element == "Str":
            # Java's reader accepts malformed UTF-8 and inserts replacement characters.
            self.add(indent, f"{target} = str(b[p:q], 'utf-8', 'replace')")
        elif element == "Bytes":
            self.add(indent, f"{target} = bytes(b[p:q])")
        else:
            self.names["memoryview"] = memoryview
            self.add(indent, f"{target} = memoryview(b)[p:q]")
        self.add(indent, "p = q")

    def nested_message(self, indent: int, field: Field, target: str) -> None:
        nested = self.nested(field, "b, p, e")
        if self.is_nullable(field):
            if self.version in field.tagged:
                # Under a tag, Java writes the varint 0 for null, and a size of at least 1 otherwise.
                self.varint(indent, "n")
                self.add(indent, "if n == 0:")
            else:
                # One byte precedes a nullable structure: -1 for null, 1 otherwise.
                self.add(indent, "n = b[p]")
                self.add(indent, "p += 1")
                self.add(indent, "if n > 127:")
            self.add(indent + 1, f"{target} = None")
            self.add(indent, "else:")
            indent += 1
        self.add(indent, f"{target}, p = {nested}")

    def elements(self, indent: int, field: Field, target: str) -> None:
        if field.element in FORMATS:
            code = FORMATS[field.element]
            if field.element == "Uuid":
                self.add(indent, "q = p + 16 * n")
                self.add(indent, "if q > e:")
                self.add(indent + 1, "raise truncated('a list of uuids', p, e)")
                self.add(indent, f"{target} = [bytes(b[i:i + 16]) for i in range(p, q, 16)]")
                self.add(indent, "p = q")
                return
            width = struct.calcsize(">" + code)
            self.add(indent, f"{target} = list(unpack_from('>%d{code}' % n, b, p))")
            self.add(indent, f"p += {width} * n" if width > 1 else "p += n")
            return
        self.add(indent, f"{target} = a{indent} = []")
        self.add(indent, "for _ in range(n):")
        if field.message is not None:
            self.add(indent + 1, f"x, p = {self.nested(field, 'b, p, e')}")
        else:
            short = field.element == "Str"
            where = f"'{self.message_class.__name__}.{field.name}'"
            self.length(indent + 1, where, "unpack_h" if short else "unpack_i", 2 if short else 4)
            self.add(indent + 1, "if n < 0:")
            self.add(indent + 2, f"raise WireError('null in ' + {where})")
            self.span(indent + 1, field.element, where, "x")
        self.add(indent + 1, f"a{indent}.append(x)")
        self.end_of_element(indent + 1)

    def tags(self, tagged: list[Field]) -> None:
        self.varint(1, "n")
        self.add(1, "if n:")
        self.add(2, "last = -1")
        self.add(2, "for _ in range(n):")
        self.varint(3, "tag")
        self.add(3, "if tag <= last:")
        self.add(4, "raise WireError('tag %d after tag %d' % (tag, last))")
        self.add(3, "last = tag")
        self.varint(3, "size")
        self.add(3, "stop = p + size")
        self.add(3, "if stop > e:")
        self.add(4, "raise truncated('a tagged field', p, e)")
        branch = "if"
        for field in tagged:
            self.add(3, f"{branch} tag == {field.tag}:")
            if self.is_fixed(field):
                self.names[f"unpack_tag{field.tag}"] = struct.Struct(">" + FORMATS[field.element]).unpack_from
                self.add(4, f"o.{field.name}, = unpack_tag{field.tag}(b, p)")
                self.add(4, f"p += {struct.calcsize('>' + FORMATS[field.element])}")
            else:
                self.value(4, field, f"o.{field.name}")
            self.add(4, "if p != stop:")
            self.add(5, f"raise WireError('tag {field.tag} does not match its size')")
            branch = "elif"
        # KIP-482: skip a tag that this version does not know.
        self.add(3, "p = stop")


class _EncoderSource(_Source):
    """The source of `encode(o, out, regions)`."""

    def compile(self, *, outermost: bool = False) -> Any:
        """Compile the encoder. The outermost encoder converts struct.error into ValueError."""
        cls = self.message_class
        self.names.update(
            append_varint=append_unsigned_varint,
            pack=struct.pack,
            pack_h=struct.Struct(">h").pack,
            pack_i=struct.Struct(">i").pack,
            size_of=_size_of,
            new_output=bytearray,
            out_of_range=struct.error,
        )
        self.begin("encode(o, out, regions)")
        untagged = {field.name for field in self.untagged()}
        tagged = self.tagged()
        sent = untagged | {field.name for field in tagged}
        for field in fields_of(cls):
            if field.name not in sent and not field.ignorable:
                self.require_default(field)
        for run in self.runs():
            if self.is_fixed(run[0]):
                packing = struct.Struct(">" + "".join(FORMATS[field.element] for field in run))
                name = f"pack_{len(self.names)}"
                self.names[name] = packing.pack
                self.add(1, f"out += {name}({', '.join(f'o.{field.name}' for field in run)})")
            else:
                self.add(1, f"v = o.{run[0].name}")
                self.value(1, run[0], "out")
        if self.flexible:
            self.tags(tagged)
        self.add(1, "return None")
        if outermost:
            self.wrap_in_try(
                "out_of_range",
                f"ValueError(f'{cls.__name__} v{self.version} cannot carry a value: {{error}}')",
            )
        return compile_function(
            "\n".join(self.lines) + "\n", f"{cls.__name__} v{self.version} encode", "encode", self.names
        )

    def default_name(self, field: Field) -> str:
        name = f"default_{field.name}"
        if name not in self.names:
            default = field.default
            self.names[name] = default() if isinstance(default, type) else default
        return name

    def require_default(self, field: Field) -> None:
        where = f"{self.message_class.__name__}.{field.name}"
        self.names["NotInVersion"] = NotInVersion
        self.add(1, f"if o.{field.name} != {self.default_name(field)}:")
        self.add(2, f"raise NotInVersion('{where} is not in version {self.version}')")

    def length(self, indent: int, size: str, wide: bool, out: str) -> None:
        if self.flexible:
            self.add(indent, f"n = {size} + 1")
            self.add(indent, "if n < 128:")
            self.add(indent + 1, f"{out}.append(n)")
            self.add(indent, "else:")
            if not wide:
                self.names["ValueError"] = ValueError
                self.add(indent + 1, f"if n > {MAX_STRING_BYTES + 1}:")
                self.add(indent + 2, "raise ValueError('a string of %d bytes' % (n - 1))")
            self.add(indent + 1, f"append_varint({out}, n)")
        else:
            self.add(indent, f"{out} += {'pack_i' if wide else 'pack_h'}({size})")

    def value(self, indent: int, field: Field, out: str) -> None:
        """Add lines that append the variable v to the output `out`."""
        where = f"{self.message_class.__name__}.{field.name}"
        wide = field.is_list or field.element != "Str"
        self.add(indent, "if v is None:")
        if self.is_nullable(field):
            if field.message is not None and not field.is_list:
                self.add(indent + 1, f"{out}.append({0 if self.version in field.tagged else 255})")
            elif self.flexible:
                self.add(indent + 1, f"{out}.append(0)")
            else:
                self.add(indent + 1, f"{out} += {'pack_i' if wide else 'pack_h'}(-1)")
        else:
            self.add(indent + 1, f"raise ValueError('{where} may not be None in version {self.version}')")
            self.names["ValueError"] = ValueError
        self.add(indent, "else:")
        indent += 1
        if field.is_list:
            self.length(indent, "len(v)", True, out)
            self.elements(indent, field, out)
        elif field.message is not None:
            if self.is_nullable(field):
                self.add(indent, f"{out}.append(1)")
            self.add(indent, self.nested(field, f"v, {out}, regions"))
        else:
            self.scalar(indent, field.element, out)

    def scalar(self, indent: int, element: str, out: str) -> None:
        if element == "Str":
            self.add(indent, "s = v.encode()")
            self.length(indent, "len(s)", False, out)
            self.add(indent, f"{out} += s")
        elif element == "Bytes":
            self.length(indent, "len(v)", True, out)
            self.add(indent, f"{out} += v")
        else:
            self.length(indent, "size_of(v)", True, out)
            self.names["buffers"] = (bytes, bytearray, memoryview)
            self.names["isinstance"] = isinstance
            self.add(indent, "if isinstance(v, buffers):")
            self.add(indent + 1, f"{out} += v")
            self.add(indent, "else:")
            self.add(indent + 1, f"regions.append((len({out}), v))")

    def elements(self, indent: int, field: Field, out: str) -> None:
        if field.element in FORMATS and field.element != "Uuid":
            self.add(indent, f"{out} += pack('>%d{FORMATS[field.element]}' % len(v), *v)")
            return
        self.add(indent, "for v in v:")
        if field.element == "Uuid":
            self.add(indent + 1, f"{out} += pack('16s', v)")
        elif field.message is not None:
            self.add(indent + 1, self.nested(field, f"v, {out}, regions"))
        else:
            self.scalar(indent + 1, field.element, out)
        self.end_of_element(indent + 1)

    def tags(self, tagged: list[Field]) -> None:
        if not tagged:
            self.add(1, "out.append(0)")
            return
        self.add(1, "tags = []")
        for field in tagged:
            self.add(1, f"v = o.{field.name}")
            self.add(1, f"if v != {self.default_name(field)}:")
            self.add(2, "t = new_output()")
            if self.is_fixed(field):
                self.add(2, f"t += pack('>{FORMATS[field.element]}', v)")
            else:
                self.value(2, field, "t")
            self.add(2, f"tags.append(({field.tag}, t))")
        self.add(1, "if not tags:")
        self.add(2, "out.append(0)")
        self.add(2, "return")
        self.add(1, "append_varint(out, len(tags))")
        self.add(1, "for tag, t in tags:")
        self.add(2, "append_varint(out, tag)")
        self.add(2, "append_varint(out, len(t))")
        self.add(2, "out += t")


def _size_of(records: Any) -> int:
    if isinstance(records, memoryview):
        return records.nbytes
    if isinstance(records, (bytes, bytearray)):
        return len(records)
    size_bytes: int = records.size_bytes
    return size_bytes

"""An imitation of macOS for the modules of kwire only. All other modules keep the real standard library.

`install` replaces `__import__`, so that modules of kwire get copies of some modules of the standard library.
The copies lack what macOS lacks, and differ where macOS differs. An audit hook hides /proc, /sys and
/dev/shm. Child processes execute this file, too (`site/sitecustomize.py`), so it does not import kwire.
"""

from __future__ import annotations

import _socket
import builtins
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

from tests.portable import real_calls

HIDDEN = ("/proc/", "/sys/", "/dev/shm")
F_FULLFSYNC = 51
SO_NOSIGPIPE = 0x1022
RLIM_INFINITY = (1 << 63) - 1
OPEN_MAX = 10_240
_DELEGATING = ("pathlib", "os", "io", "shutil", "genericpath", "posixpath", "contextlib", "tempfile")
"""Modules that open files for their callers."""


class Copy(ModuleType):
    """A view of a real module that hides some of its names, and adds or replaces others."""

    def __init__(self, real: ModuleType, missing: Sequence[str], added: Mapping[str, Any]) -> None:
        super().__init__(real.__name__)
        ModuleType.__setattr__(self, "_copied", (real, set(missing), dict(added)))

    def __getattribute__(self, name: str) -> Any:
        real, missing, added = ModuleType.__getattribute__(self, "_copied")
        if name in added:
            return added[name]
        if name == "__dict__":
            return {**{key: found for key, found in vars(real).items() if key not in missing}, **added}
        if name in missing:
            raise AttributeError(f"module {real.__name__!r} has no attribute {name!r} on macOS")
        return getattr(real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        real, missing, added = ModuleType.__getattribute__(self, "_copied")
        if name in added or name in missing:
            added[name] = value
        else:
            setattr(real, name, value)

    def __delattr__(self, name: str) -> None:
        real, missing, added = ModuleType.__getattribute__(self, "_copied")
        if name in missing:
            del added[name]
        elif name in added:
            raise AttributeError(f"cannot delete {name} of the imitation")
        else:
            delattr(real, name)

    def __dir__(self) -> list[str]:
        real, missing, added = ModuleType.__getattribute__(self, "_copied")
        return sorted({*dir(real), *added} - (missing - set(added)))


class Socket(_socket.socket):
    """A socket that behaves as on macOS."""

    _flags = 0

    def setsockopt(self, *args: Any) -> None:
        if args[:2] == (socket.SOL_SOCKET, SO_NOSIGPIPE):
            self._flags = socket.MSG_NOSIGNAL if args[2] else 0
        else:
            super().setsockopt(*args)

    def send(self, data: Any, flags: int = 0) -> int:
        return super().send(data, flags | self._flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        super().sendall(data, flags | self._flags)

    def sendmsg(self, buffers: Any, ancillary: Any = (), flags: int = 0, /, *address: Any) -> int:
        return super().sendmsg(buffers, ancillary, flags | self._flags, *address)

    def _accept(self) -> tuple[int, Any]:
        descriptor, address = super()._accept()  # type: ignore[misc]
        os.set_blocking(descriptor, self.gettimeout() is None)  # inherited from the listener
        return descriptor, address


def _socketpair(family: int = socket.AF_UNIX, kind: int = socket.SOCK_STREAM, proto: int = 0) -> Any:
    _check_kind(kind)
    return tuple(
        Socket(family, kind, proto, sock.detach()) for sock in _socket.socketpair(family, kind, proto)
    )


def _stdlib_socketpair(family: int = socket.AF_UNIX, kind: int = socket.SOCK_STREAM, proto: int = 0) -> Any:
    _check_kind(kind)
    return socket.socketpair(family, kind, proto)


def _check_kind(kind: int) -> None:
    if kind == socket.SOCK_SEQPACKET:
        raise OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT))


def os_calls(real: Any) -> dict[str, Any]:
    """Return the functions of `os` that differ on macOS. They call those of `real`."""

    def sendfile(
        out_fd: int,
        in_fd: int,
        offset: int,
        count: int,
        headers: Sequence[bytes] = (),
        trailers: Sequence[bytes] = (),
        flags: int = 0,
    ) -> int:
        if headers or trailers or flags:
            raise NotImplementedError("headers, trailers and flags")
        # With a count of 0, macOS sends up to the end of the file.
        return int(real.sendfile(out_fd, in_fd, offset, count or real.fstat(in_fd).st_size - offset))

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        _refuse_flags(flags)
        return int(real.preadv(fd, buffers, offset))

    def pwritev(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        _refuse_flags(flags)
        return int(real.pwritev(fd, buffers, offset))

    return {"sendfile": sendfile, "preadv": preadv, "pwritev": pwritev}


def _refuse_flags(flags: int) -> None:
    if flags:
        raise NotImplementedError("flags unavailable on this platform")


def _fcntl(fd: Any, cmd: int, arg: Any = 0) -> Any:
    if cmd != F_FULLFSYNC:
        return real_calls.fcntl.fcntl(fd, cmd, arg)
    real_calls.posix.fsync(fd)
    return 0


def _flock(fd: Any, operation: int) -> None:
    """Lock a file. As on macOS, the lock also excludes the locks of fcntl."""
    real_calls.fcntl.flock(fd, operation)
    kind = fcntl.F_UNLCK if operation & fcntl.LOCK_UN else fcntl.F_WRLCK
    descriptor = fd if isinstance(fd, int) else fd.fileno()
    is_writable = real_calls.fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    if is_writable:  # for other files, Linux has no exclusive lock of fcntl
        real_calls.fcntl.fcntl(
            descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, os.SEEK_SET, 0, 0, 0)
        )


def _getrlimit(kind: int) -> tuple[int, int]:
    soft, hard = resource.getrlimit(kind)
    return (soft, RLIM_INFINITY) if kind == resource.RLIMIT_NOFILE else (soft, hard)


def _setrlimit(kind: int, limits: tuple[int, int]) -> None:
    soft, hard = limits
    if kind == resource.RLIMIT_NOFILE:
        if soft > OPEN_MAX:
            raise ValueError("current limit exceeds maximum limit")
        if hard == RLIM_INFINITY:
            hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (soft, hard))


def copies(missing: Mapping[str, Sequence[str]], kqueue: ModuleType) -> dict[str, ModuleType]:
    """Return the modules that modules of kwire import instead of the real ones."""
    added: dict[str, tuple[ModuleType, Mapping[str, Any]]] = {
        "_socket": (_socket, {"socket": Socket, "socketpair": _socketpair}),
        "fcntl": (fcntl, {"F_FULLFSYNC": F_FULLFSYNC, "fcntl": _fcntl, "flock": _flock}),
        "os": (os, os_calls(os)),
        "resource": (
            resource,
            {"RLIM_INFINITY": RLIM_INFINITY, "getrlimit": _getrlimit, "setrlimit": _setrlimit},
        ),
        "select": (select, {name: found for name, found in vars(kqueue).items() if name[0] in "Kk"}),
        "signal": (signal, {}),
        "socket": (socket, {"socketpair": _stdlib_socketpair}),
        "sys": (sys, {"platform": "darwin"}),
        "time": (time, {}),
    }
    return {name: Copy(real, missing.get(name, ()), more) for name, (real, more) in added.items()}


def install(missing: Mapping[str, Sequence[str]], kqueue: ModuleType) -> None:
    """Let all modules of kwire that are imported from now on see macOS."""
    copied = copies(missing, kqueue)
    real_import = builtins.__import__

    def import_module(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        found = real_import(name, globals, locals, fromlist or (), level)
        importer = globals.get("__name__") if globals else None
        if not isinstance(importer, str) or not is_of_kwire(importer):
            return found
        if name == "kwire.host.second_instance" and not hasattr(found, "is_imitation"):
            _replace_second_instance(found, missing["os"])
        return copied.get(found.__name__, found)

    builtins.__import__ = import_module
    sys.addaudithook(_hide_files)


def is_of_kwire(module: str) -> bool:
    return module == "kwire" or module.startswith("kwire.")


def _replace_second_instance(module: Any, missing: Sequence[str]) -> None:
    real = module.second_instance

    def second_instance(name: str) -> Any:
        found = real(name)
        if name == "posix":
            changed = os_calls(SimpleNamespace(**vars(found)))
            for lacking in missing:
                if hasattr(found, lacking):
                    delattr(found, lacking)
            for name, function in changed.items():
                setattr(found, name, function)
        return found

    module.second_instance = second_instance
    module.is_imitation = True


def _hide_files(event: str, args: tuple[Any, ...]) -> None:
    if event not in ("open", "os.listdir", "os.scandir"):
        return
    path = args[0]
    if isinstance(path, str) and path.startswith(HIDDEN) and is_of_kwire(_caller()):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _caller() -> str:
    """Return the module that opens a file."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _DELEGATING:
        frame = frame.f_back
    return "" if frame is None else frame.f_globals.get("__name__", "")

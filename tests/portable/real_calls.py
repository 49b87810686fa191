"""System calls of Linux for the imitation, also while a test replaces those of the standard library."""

from __future__ import annotations

import _socket
import fcntl as _fcntl
from importlib.machinery import BuiltinImporter
from types import SimpleNamespace
from typing import Any


def _second_posix() -> Any:
    spec = BuiltinImporter.find_spec("posix")
    assert spec is not None
    module = BuiltinImporter.create_module(spec)
    assert module is not None
    BuiltinImporter.exec_module(module)
    return SimpleNamespace(**vars(module))


posix: Any = _second_posix()
fcntl: Any = SimpleNamespace(**vars(_fcntl))
Socket = _socket.socket

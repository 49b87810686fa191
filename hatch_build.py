"""The build hooks: the native record scan, and dependencies that depend on the C library.

The build compiles the scan if a C compiler and Python's headers are present. Without them, or with the
environment variable KWIRE_PURE_PYTHON=1, the wheel has no native code, and kwire uses the same function in
Python (docs/decisions/0027).

A wheel that is built on musl does not require google-re2, which has no wheels for musl (docs/decisions/0032).
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

MODULE = "kwire.wire._record_scan"
SOURCE = "kwire/wire/_record_scan.c"
LIBRARY = "kwire/wire/_record_scan.abi3.so"
PURE_PYTHON = "KWIRE_PURE_PYTHON"
NO_MUSL_WHEELS = "google-re2"


class DependenciesHook(MetadataHookInterface):
    """The metadata hook that sets the dependencies for the platform of the build.

    In an unpacked sdist, hatchling reads the dependencies from PKG-INFO, which may be from another platform.
    hatchling calls this hook nevertheless, because the entry points are dynamic and not in PKG-INFO.
    """

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dependencies and the entry points from the hook's table in pyproject.toml."""
        metadata["entry-points"] = self.config["entry-points"]
        metadata["dependencies"] = [
            one for one in self.config["dependencies"] if not (is_musl() and one.startswith(NO_MUSL_WHEELS))
        ]


class NativeBuildHook(BuildHookInterface[Any]):
    """Adds the library to a wheel, or builds it in the source tree for an editable installation."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library. `version` is "standard" or "editable". `build_data` describes the wheel."""
        root = Path(self.root)
        if version == "editable":
            (root / LIBRARY).unlink(missing_ok=True)
        self._directory = tempfile.TemporaryDirectory()
        if os.environ.get(PURE_PYTHON) == "1":
            return
        library = compile_library(root, Path(self._directory.name))
        if library is None:
            self.app.display_warning("built without native code: no C compiler, or no headers of Python")
        elif version == "editable":
            (root / LIBRARY).write_bytes(library.read_bytes())
        else:
            build_data["force_include"][str(library)] = LIBRARY
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{_local_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary directory."""
        self._directory.cleanup()


def is_musl() -> bool:
    """Return whether the C library of this Python is musl."""
    from packaging.tags import platform_tags

    return any(tag.startswith("musllinux") for tag in platform_tags())


def _local_platform() -> str:
    """Return the platform for which Python compiles, on Linux without the version of the C library."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def compile_library(root: Path, directory: Path) -> Path | None:
    """Compile the library in `directory` and return its path, or None if that fails.

    Only CPython with the global interpreter lock (GIL) has the stable ABI.
    """
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        from setuptools import Distribution, Extension
        from setuptools.command.build_ext import build_ext
        from setuptools.errors import BaseError, CCompilerError
    except ImportError as error:
        print(f"cannot compile {SOURCE}: {error}", file=sys.stderr)
        return None
    extension = Extension(MODULE, [str(root / SOURCE)], py_limited_api=True)
    command = build_ext(Distribution({"name": "kwire", "ext_modules": [extension]}))
    command.build_lib = str(directory)
    command.build_temp = str(directory / "temp")
    try:
        command.ensure_finalized()
        command.run()
    except (BaseError, CCompilerError, OSError) as error:
        print(f"cannot compile {SOURCE}: {error}", file=sys.stderr)
        return None
    library = directory / LIBRARY
    return library if library.exists() else None

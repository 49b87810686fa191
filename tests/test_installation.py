"""Wheels of kwire, built with and without a C compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
from kwire.wire.record_scan import IMPLEMENTATION, scan
print(IMPLEMENTATION, scan(bytes.fromhex("0c000000010100"), 1, 5, 0, 9, False)[:3])
"""


def build_wheel(directory: Path, **environ: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--disable-pip-version-check", "--wheel-dir", str(directory), str(ROOT)],
        env={**os.environ, **environ},
        check=True,
        timeout=120,
    )  # fmt: skip
    (wheel,) = directory.glob("*.whl")
    return wheel


def can_compile() -> bool:
    """Return whether this machine has a C compiler and Python's headers."""
    compiler = subprocess.run(["sh", "-c", "command -v ${CC:-cc}"], capture_output=True, check=False)
    return compiler.returncode == 0 and Path(sysconfig.get_path("include"), "Python.h").exists()


@pytest.mark.parametrize("compiler", ["cc", "false"])
def test_wheel_has_native_code_where_it_can_be_compiled(tmp_path: Path, compiler: str) -> None:
    if compiler == "cc":
        if not can_compile():
            pytest.skip("this machine has no C compiler, or no headers of Python")
        wheel, expected = build_wheel(tmp_path), "native"
    else:
        wheel, expected = build_wheel(tmp_path, CC="false"), "Python"
    assert wheel.name.startswith("kwire-")
    assert ("cp311-abi3-" in wheel.name) == (expected == "native")
    assert ("py3-none-any" in wheel.name) == (expected == "Python")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
        libraries = [name for name in archive.namelist() if name.endswith((".so", ".c"))]
    assert libraries == (["kwire/wire/_record_scan.abi3.so"] if expected == "native" else [])
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert run.stdout == f"{expected} (0, 1, 5)\n"
    version = subprocess.run(
        [sys.executable, "-m", "kwire.cli.main", "--version"],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert version.stdout.endswith(f"(record validation: {expected})\n")


def test_installation_without_headers_succeeds(tmp_path: Path) -> None:
    """A compiler that finds no header stands for a machine without Python's headers."""
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'fatal error: Python.h: No such file or directory' >&2\nexit 1\n")
    compiler.chmod(0o755)
    assert "py3-none-any" in build_wheel(tmp_path / "wheels", CC=str(compiler)).name

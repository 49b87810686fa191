"""The files of key stores and trust stores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kwire.broker.net.store_files import RealStoreFiles


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert RealStoreFiles().read(str(tmp_path / "link")) == b"content"


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (str(tmp_path / "fifo"), os.devnull):
        with pytest.raises(OSError, match="not a regular file"):
            RealStoreFiles().read(path)

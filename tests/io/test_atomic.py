"""Files that appear whole or not at all; `test_files` has more of it."""

import os
import stat

import pytest

from condokit.io.atomic import whole_file, write_bytes


def test_what_there_is_stays_until_all_is_written(tmp_path):
    path = tmp_path / "map.json"
    write_bytes(path, b"old")
    with pytest.raises(TypeError), whole_file(path) as file:
        file.writelines([b"new" * 100_000, "text"])
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["map.json"]
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_links_and_devices_stay_what_they_are(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    write_bytes(link, b"map")
    assert link.is_symlink()
    assert (tmp_path / "real").read_bytes() == b"map"
    write_bytes(os.devnull, b"map")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write_bytes(tmp_path, b"")
    with pytest.raises(FileNotFoundError, match="no does not exist"):
        write_bytes(tmp_path / "no" / "map.json", b"")

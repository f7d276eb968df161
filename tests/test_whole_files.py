"""Files that are written: whole, through links, to files only, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pursuit import files
from pursuit.cli.writing import check_output, whole_folder

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and locks of POSIX")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@POSIX
def test_links_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    target = tmp_path / "inner" / "target"
    target.write_text("old")
    for link, leads in (("near", "inner/target"), ("far", "near"), ("dangling", "inner/new")):
        (tmp_path / link).symlink_to(leads)
        check_output(tmp_path / link, suffixes=())
        files.write_whole(tmp_path / link, link.encode())
        assert (tmp_path / link).is_symlink()
        assert (tmp_path / link).read_text() == link
    assert target.read_text() == "far"
    assert names(tmp_path / "inner") == ["new", "target"]


@POSIX
def test_what_is_not_a_file_is_refused_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "full").symlink_to("/dev/full")
    before = names(tmp_path)
    for path, sentence in (
        (Path("/dev/full"), "/dev/full is a device, not a file; give the name of a file"),
        (tmp_path / "full", "full is a device"),
        (tmp_path / "pipe", "pipe is a pipe, not a file"),
        (tmp_path / "folder", "folder is a folder"),
        (tmp_path / "loop", "loop is a link to itself"),
    ):
        for write in (check_output, files.write_whole):
            with pytest.raises(ValueError, match=sentence):
                write(path, *[(), ()] if write is check_output else [b"x"])
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert names(tmp_path) == before
    (tmp_path / "astray").symlink_to("nowhere/file")
    for path in (tmp_path / "astray", tmp_path / "nowhere" / "file"):
        with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere to write"):
            files.write_whole(path, b"x")


@pytest.mark.parametrize("length", [240, 244, 250, 255])
def test_long_names_work(tmp_path: Path, length: int) -> None:
    path = tmp_path / ("n" * length)
    check_output(path, suffixes=())
    files.write_whole(path, b"content")
    assert path.read_bytes() == b"content"
    assert names(tmp_path) == [path.name]


def test_longer_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 256)
    with pytest.raises(OSError, match="nnn cannot be written: file name too long"):
        check_output(path, suffixes=())
    with pytest.raises(OSError, match=r"File name too long: .*nnn"):
        files.write_whole(path, b"x")
    assert names(tmp_path) == []


@POSIX
def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"m\.safetensors") as refusal:
            files.write_whole(path, bytes(20_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (refusal.value.errno, refusal.value.filename) == (errno.EFBIG, str(path))
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["m.safetensors"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_errors_name_the_file_of_the_user(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the hidden file, with its name or without one."""

    def fail(path: object, *_: object) -> None:
        raise OSError(code, os.strerror(code), *([path] if code == errno.EACCES else []))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match=r"m\.safetensors") as refusal:
        files.write_whole(tmp_path / "m.safetensors", b"x")
    assert refusal.value.filename == str(tmp_path / "m.safetensors")
    assert names(tmp_path) == []


@POSIX
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_folder_without_rights_names_the_file() -> None:
    with TemporaryDirectory() as folder:  # that of pytest is closed to other users
        os.chmod(folder, 0o755)
        path = Path(folder) / "m"
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            try:
                files.write_whole(path, b"x")
            except OSError as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with open(reader) as said:
            assert said.read() == f"[Errno 13] Permission denied: '{path}'"
        assert os.listdir(folder) == []


@POSIX
def test_part_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    script = (
        "import os, signal\nfrom pursuit.files import whole\n"
        f"with whole({str(path)!r}) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script])
    assert done.returncode == -signal.SIGKILL
    (left,) = names(tmp_path)
    assert left.endswith(".part")
    files.write_whole(tmp_path / "other", b"")  # of another file
    assert left in names(tmp_path)
    files.write_whole(path, b"whole")
    assert names(tmp_path) == ["m.safetensors", "other"]
    assert path.read_bytes() == b"whole"


def test_two_writers_of_one_file_leave_each_other_alone(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with files.whole(path) as slow:
        slow.write(b"slow")
        other = threading.Thread(target=files.write_whole, args=(path, b"quick"))
        other.start()
        other.join()
        assert path.read_bytes() == b"quick"
    assert path.read_bytes() == b"slow"
    assert names(tmp_path) == ["m"]


@POSIX
def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"old")
    path.chmod(0o600)
    files.write_whole(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@POSIX
def test_folders_are_cleaned_and_named_too(tmp_path: Path) -> None:
    (tmp_path / ".pursuit-0123.part").mkdir()  # of a killed run
    (tmp_path / ".pursuit-0123.part" / "a").write_text("half")
    with whole_folder(tmp_path) as place:
        (place / "a").write_text("whole")
    assert names(tmp_path) == ["a"]
    with pytest.raises(FileNotFoundError) as refusal, whole_folder(tmp_path) as place:
        (place / "missing" / "b").write_text("x")
    assert refusal.value.filename == str(tmp_path / "missing" / "b")
    assert names(tmp_path) == ["a"]

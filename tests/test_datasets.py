"""Data sets: what is fetched is checked, what is read is what lies in the folder."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import stat
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal
import soundfile
import torch
from PIL import Image

from pursuit.datasets import faces, pictures, singing, textures
from pursuit.datasets.download import CHECKSUMS, cache_folder, fetch, inside, read_table
from pursuit.progress import Progress

Array = np.ndarray[Any, Any]


class Site:
    """A server: what it has, what it was asked for, and what it sends only half of."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.broken: set[str] = set()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                content = site.content.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                half = len(content) // 2 if self.path in site.broken else len(content)
                self.wfile.write(content[:half])

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, args=(0.01,))
    thread.start()
    yield site
    site.server.shutdown()
    thread.join()
    site.server.server_close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def assert_sentence(error: pytest.ExceptionInfo[BaseException]) -> None:
    assert "\n" not in str(error.value)


# ---- fetch ----------------------------------------------------------------------------------


def test_a_file_is_fetched_once_and_its_checksum_is_kept(site: Site, tmp_path: Path) -> None:
    site.content["/some%20data.bin"] = b"first"
    url = site.url("/some%20data.bin")
    folder = tmp_path / "new" / "folder"
    path = fetch(url, folder)
    assert path == folder / "some data.bin"
    assert path.read_bytes() == b"first"
    assert json.loads((folder / CHECKSUMS).read_text()) == {url: sha256(b"first")}
    assert fetch(url, folder) == path
    assert len(site.asked) == 1
    assert sorted(own.name for own in folder.iterdir()) == [CHECKSUMS, "some data.bin"]


def test_checksums_of_several_files_are_kept_side_by_side(site: Site, tmp_path: Path) -> None:
    for name in "ab":
        site.content[f"/{name}"] = name.encode()
        fetch(site.url(f"/{name}"), tmp_path)
    kept = json.loads((tmp_path / CHECKSUMS).read_text())
    assert kept == {site.url(f"/{name}"): sha256(name.encode()) for name in "ab"}


def test_a_given_checksum_is_checked_and_none_is_kept(site: Site, tmp_path: Path) -> None:
    site.content["/a"] = b"right"
    path = fetch(site.url("/a"), tmp_path, sha256=sha256(b"right").upper())
    assert path.read_bytes() == b"right"
    fetch(site.url("/a"), tmp_path, sha256=sha256(b"right"))
    assert len(site.asked) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_wrong_checksum_leaves_nothing_behind(site: Site, tmp_path: Path) -> None:
    site.content["/a"] = b"wrong"
    with pytest.raises(ValueError, match=f"has the sha256 {sha256(b'wrong')}, but") as error:
        fetch(site.url("/a"), tmp_path, sha256=sha256(b"right"))
    assert_sentence(error)
    assert list(tmp_path.iterdir()) == []


def test_later_downloads_must_agree_with_the_first(site: Site, tmp_path: Path) -> None:
    site.content["/a"] = b"first"
    path = fetch(site.url("/a"), tmp_path)
    path.unlink()
    site.content["/a"] = b"second"
    with pytest.raises(ValueError, match="has changed: its sha256 is") as error:
        fetch(site.url("/a"), tmp_path)
    assert_sentence(error)
    assert [own.name for own in tmp_path.iterdir()] == [CHECKSUMS]
    site.content["/a"] = b"first"
    assert fetch(site.url("/a"), tmp_path).read_bytes() == b"first"


def test_a_damaged_file_is_fetched_again(site: Site, tmp_path: Path) -> None:
    site.content["/a"] = b"whole"
    path = fetch(site.url("/a"), tmp_path)
    path.write_bytes(b"damaged")
    assert fetch(site.url("/a"), tmp_path).read_bytes() == b"whole"
    assert len(site.asked) == 2


def test_a_file_put_there_by_hand_is_the_first_download(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"by hand")
    assert fetch(site.url("/a"), tmp_path).read_bytes() == b"by hand"
    assert site.asked == []
    assert json.loads((tmp_path / CHECKSUMS).read_text()) == {site.url("/a"): sha256(b"by hand")}


def test_what_is_not_there_is_said_and_leaves_nothing_behind(site: Site, tmp_path: Path) -> None:
    with pytest.raises(
        ConnectionError, match=r"could not be downloaded: 404 .* by hand to"
    ) as error:
        fetch(site.url("/none"), tmp_path)
    assert_sentence(error)
    assert site.url("/none") in str(error.value)
    assert str(tmp_path / "none") in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_transfer_that_breaks_off_leaves_nothing_behind(site: Site, tmp_path: Path) -> None:
    site.content["/a"] = bytes(300_000)
    site.broken.add("/a")
    with pytest.raises(ConnectionError, match="could not be downloaded") as error:
        fetch(site.url("/a"), tmp_path)
    assert_sentence(error)
    assert list(tmp_path.iterdir()) == []
    site.broken.clear()
    assert fetch(site.url("/a"), tmp_path).read_bytes() == bytes(300_000)


def test_a_failed_download_does_not_touch_what_is_there(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(ConnectionError):
        fetch(site.url("/a"), tmp_path, sha256=sha256(b"new"))
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_server_that_does_not_answer_is_a_connection_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="could not be downloaded") as error:
        fetch("http://127.0.0.1:9/a", tmp_path)
    assert_sentence(error)


def test_a_folder_that_cannot_be_written_to_is_an_os_error(site: Site, tmp_path: Path) -> None:
    site.content["/a"] = b"content"
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="could not be saved as") as error:
        fetch(site.url("/a"), tmp_path / "file")
    assert not isinstance(error.value, ConnectionError)
    assert_sentence(error)


def test_progress_goes_up_to_the_whole(site: Site, tmp_path: Path) -> None:
    site.content["/a"] = bytes(200_000)
    calls: list[Progress] = []
    fetch(site.url("/a"), tmp_path, "b", progress=calls.append)
    assert {(now.stage, now.total) for now in calls} == {("fetching b", 200_000)}
    done = [now.done for now in calls]
    assert done == sorted(done)
    assert len(set(done)) > 2
    assert done[-1] == 200_000


def test_downloads_can_be_read_by_all_who_may(site: Site, tmp_path: Path) -> None:
    site.content["/a"] = b"content"
    (tmp_path / "plain").write_bytes(b"")
    usual = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert stat.S_IMODE(fetch(site.url("/a"), tmp_path).stat().st_mode) == usual


def test_pooch_says_nothing_to_us_and_goes_on_with_others(site: Site, tmp_path: Path) -> None:
    import pooch

    said: list[str] = []
    logger = pooch.get_logger()
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(handler)
    site.content["/a"] = b"content"
    try:
        for number in range(2):
            said.clear()
            fetch(site.url("/a"), tmp_path, f"ours{number}")
            assert said == []
            pooch.retrieve(site.url("/a"), None, f"others{number}", tmp_path)
            assert len(said) == 2
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"url": "ftp://host/a"}, "url must be an http or https address, got 'ftp://host/a'"),
        ({"url": "http://host/"}, "name must be that of a file in .*, got ''"),
        ({"name": "../a"}, "name must be that of a file in .*, got '../a'"),
        ({"name": CHECKSUMS}, "name must be that of a file in"),
        ({"sha256": "abc"}, "sha256 must be 64 hexadecimal digits, got 'abc'"),
    ],
)
def test_what_cannot_be_fetched(tmp_path: Path, changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fetch(**{"url": "http://127.0.0.1:9/a", "folder": tmp_path, **changes})


@pytest.mark.parametrize("content", ["[]", "{", '{"a": 1}'])
def test_a_damaged_list_of_checksums(tmp_path: Path, content: str) -> None:
    (tmp_path / CHECKSUMS).write_text(content)
    with pytest.raises(ValueError, match="is not the list of checksums that was written"):
        fetch("http://127.0.0.1:9/a", tmp_path)


def test_without_pooch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.delenv("PURSUIT_CACHE", raising=False)
    for call in (lambda: fetch("http://127.0.0.1:9/a", tmp_path), cache_folder):
        with pytest.raises(ImportError, match=r"pip install 'pursuit\[data\]'"):
            call()


def test_where_downloads_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURSUIT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("PURSUIT_CACHE")
    assert "pursuit" in cache_folder().parts


def test_the_folder_of_a_data_set_may_lie_in_the_one_given(tmp_path: Path) -> None:
    assert inside(tmp_path, "textures") == tmp_path
    (tmp_path / "textures").mkdir()
    assert inside(tmp_path, "textures") == tmp_path / "textures"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "has no column a; it has none"),
        (b"a,c\n1,2\n", "has no column b; it has a, c"),
        (b"a,b\n1,2\n3\n", "must have 2 entries on each line, but line 3 has not"),
        (b"a,b\n1,2,3\n", "must have 2 entries on each line, but line 2 has not"),
        (b"a,b\n\xff\xfe,2\n", "is not a table"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as error:
        read_table(tmp_path / "table.csv", ("a", "b"))
    assert_sentence(error)


def test_a_table_gives_the_columns_asked_for(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"\xef\xbb\xbfa,b,c\r\n1, x ,3\r\n\r\n")
    assert read_table(tmp_path / "table.csv", ("a", "b")) == [{"a": "1", "b": "x"}]


# ---- pictures -------------------------------------------------------------------------------


def noise(rows: int = 20, columns: int = 30, seed: int = 0) -> Array:
    """A picture without a black pixel."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 256, (rows, columns), dtype=np.uint8)


def save(folder: Path, *names: str) -> dict[str, Array]:
    """Pictures of noise, each another one."""
    folder.mkdir(exist_ok=True)
    saved = {name: noise(seed=seed) for seed, name in enumerate(names)}
    for name, pixels in saved.items():
        Image.fromarray(pixels).save(folder / name)
    return saved


def test_a_folder_is_read_by_name(tmp_path: Path) -> None:
    saved = save(tmp_path, "c.png", "a.tif", "b.bmp", "d.pgm")
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "._a.tif").write_text("no picture")
    read = textures.read_folder(tmp_path)
    assert read.names == ("a", "b", "c", "d")
    assert read.source == f"a, b, c and d of {tmp_path.name}"
    for name, picture in zip(("a.tif", "b.bmp", "c.png", "d.pgm"), read.pictures, strict=True):
        assert picture.dtype == np.float64
        np.testing.assert_array_equal(picture, saved[name] / 255)


def test_names_choose_and_order(tmp_path: Path) -> None:
    saved = save(tmp_path, "a.png", "b.png", "c.png")
    read = textures.read_folder(tmp_path, names=["c.png", "a"])
    assert read.names == ("c", "a")
    np.testing.assert_array_equal(read.pictures[0], saved["c.png"] / 255)


def test_the_sequence_of_the_folder_comes_first(tmp_path: Path) -> None:
    saved = save(tmp_path / "textures", "a.png", "b.png", "c.png")
    # as numbers: 10 is after 9
    (tmp_path / "textures" / "online_sequence.csv").write_text("order,file\n10,a.png\n9,c.png\n")
    for folder in (tmp_path, tmp_path / "textures"):
        read = textures.read_folder(folder, names=["b"])
        assert read.names == ("c", "a")
        assert read.source == "c and a of textures"
        np.testing.assert_array_equal(read.pictures[0], saved["c.png"] / 255)


def test_the_splits_give_the_area_that_can_be_used(tmp_path: Path) -> None:
    saved = save(tmp_path, "a.png", "b.png")
    (tmp_path / "splits.csv").write_text(
        "file,role,row_begin,row_end,col_begin,col_end\n"
        "a.png,train,4,10,3,20\na.png,test,10,17,2,18\nnone.png,test,0,9,0,9\n"
    )
    a, b = textures.read_folder(tmp_path).pictures
    np.testing.assert_array_equal(a, saved["a.png"][4:17, 2:20] / 255)
    np.testing.assert_array_equal(b, saved["b.png"] / 255)


def test_black_edges_are_cut_off_above_and_below(tmp_path: Path) -> None:
    pixels = noise()
    pixels[:1] = pixels[18:] = pixels[7] = 0
    pixels[:, 0] = 0
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (picture,) = textures.read_folder(tmp_path).pictures
    np.testing.assert_array_equal(picture, pixels[1:18] / 255)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bits(tmp_path: Path, suffix: str) -> None:
    pixels = noise().astype(np.uint16) * 257 - np.uint16(100)
    Image.fromarray(pixels).save(tmp_path / f"a.{suffix}")
    (picture,) = textures.read_folder(tmp_path).pictures
    np.testing.assert_array_equal(picture, pixels / 65535)


@pytest.mark.parametrize(("largest", "divisor"), [(0.7, 1.0), (1.0, 1.0), (250.0, 250.0)])
def test_floating_point_pictures(tmp_path: Path, largest: float, divisor: float) -> None:
    values = (noise() / 255 * largest).astype(np.float32)
    values.flat[0] = largest
    Image.fromarray(values).save(tmp_path / "a.tif")
    np.testing.assert_allclose(pictures.read(tmp_path / "a.tif"), values / divisor, rtol=1e-6)
    np.testing.assert_array_equal(
        pictures.read(tmp_path / "a.tif"), textures.read_folder(tmp_path).pictures[0]
    )


def test_colours_become_grey(tmp_path: Path) -> None:
    colours = np.stack([noise(seed=seed) for seed in range(3)], axis=-1)
    Image.fromarray(colours).save(tmp_path / "a.png")
    (picture,) = textures.read_folder(tmp_path).pictures
    grey = colours @ [0.299, 0.587, 0.114] / 255
    np.testing.assert_allclose(picture, grey, atol=1 / 255)


def test_jpegs_are_read(tmp_path: Path) -> None:
    smooth = np.add.outer(np.arange(20), np.arange(30)).astype(np.uint8) + 100
    Image.fromarray(smooth).save(tmp_path / "a.JPG", quality=95)
    read = textures.read_folder(tmp_path)
    assert read.names == ("a",)
    assert read.source == f"a of {tmp_path.name}"
    np.testing.assert_allclose(read.pictures[0], smooth / 255, atol=0.02)


@pytest.mark.parametrize(
    ("files", "names", "sentence"),
    [
        ({}, None, "has no pictures"),
        ({"a.png": None}, ["b"], "'b' names 0; there are a.png"),
        ({"a.png": None, "a.tif": None}, ["a"], "'a' names 2; there are a.png, a.tif"),
        ({"a.png": None}, [], "names must name at least one picture"),
        ({"a.png": "no picture"}, None, "a.png cannot be read as a picture"),
        ({"a.png": np.zeros((9, 9), np.uint8)}, None, "a.png is black all over"),
        ({"a.tif": np.full((9, 9), np.nan, np.float32)}, None, "a.tif contains NaN or infinite"),
        ({"a.tif": np.full((9, 9), 70_000, np.int32)}, None, "a.tif has neither 8 nor 16 bits"),
        ({"a.png": None, "online_sequence.csv": "order\n1\n"}, None, "has no column file"),
        ({"a.png": None, "online_sequence.csv": "order,file\n"}, None, "names no pictures"),
        (
            {"a.png": None, "online_sequence.csv": "order,file\n1,a.png\n2,b.png\n"},
            None,
            "online_sequence.csv names b.png, which is not there",
        ),
        (
            {"a.png": None, "online_sequence.csv": "order,file\n1,a.png\n1,a.png\n"},
            None,
            "has two entries with the same order",
        ),
        (
            {"a.png": None, "online_sequence.csv": "order,file\nfirst,a.png\n"},
            None,
            "must hold a whole number where it has 'first'",
        ),
        ({"a.png": None, "splits.csv": "file,role\n"}, None, "splits.csv has no column row_begin"),
        (
            {
                "a.png": None,
                "splits.csv": "file,row_begin,row_end,col_begin,col_end\na.png,0,21,0,30\n",
            },
            None,
            "gives rows 0 to 21 and columns 0 to 30 of a.png, which has 20 rows and 30 columns",
        ),
    ],
)
def test_folders_that_cannot_be_read(
    tmp_path: Path, files: dict[str, Any], names: list[str] | None, sentence: str
) -> None:
    for name, content in files.items():
        if isinstance(content, str):
            (tmp_path / name).write_text(content)
        else:
            Image.fromarray(noise() if content is None else content).save(tmp_path / name)
    with pytest.raises((ValueError, FileNotFoundError), match=sentence) as error:
        textures.read_folder(tmp_path, names)
    assert_sentence(error)


def test_a_folder_of_pictures_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        textures.read_folder(tmp_path / "nowhere")


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'pursuit\[vision\]'"):
        textures.read_folder(tmp_path)


def test_embedded_pictures() -> None:
    read = textures.embedded()
    assert read.names == textures.NAMES
    assert read.source == "brick, grass and gravel of scikit-image"
    for name, picture in zip(read.names, read.pictures, strict=True):
        np.testing.assert_array_equal(picture, textures.load(name))


def tiff(pixels: Array) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="tiff")
    return file.getvalue()


def test_plates_are_downloaded_in_their_order(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PURSUIT_CACHE", str(tmp_path))
    plates = {name: noise(seed=seed) for seed, name in enumerate(textures.PLATES)}
    for name, pixels in plates.items():
        site.content[f"/images/{name}_512.tiff"] = tiff(pixels)
    calls: list[str] = []
    folder = textures.download(
        base=site.url("/images/"), progress=lambda now: calls.append(now.stage)
    )
    assert folder == tmp_path / "textures"
    read = textures.read_folder(folder)
    assert read.names == textures.PLATES == ("herringbone_weave", "straw", "bark")
    for name, picture in zip(read.names, read.pictures, strict=True):
        np.testing.assert_array_equal(picture, plates[name] / 255)
    assert set(calls) == {f"fetching {name}.tiff" for name in textures.PLATES}
    textures.download(base=site.url("/images"))
    assert len(site.asked) == 3


def test_a_plate_that_is_not_there(site: Site, tmp_path: Path) -> None:
    site.content["/a_512.tiff"] = tiff(noise())
    with pytest.raises(ConnectionError, match=r"/b_512.tiff could not be downloaded"):
        textures.download(tmp_path, site.url(""), ["a", "b"])
    assert not (tmp_path / "online_sequence.csv").exists()
    with pytest.raises(ValueError, match="names must name at least one picture"):
        textures.download(tmp_path, site.url(""), [])


# ---- patches --------------------------------------------------------------------------------


def window(picture: Array, position: int, size: int) -> Array:
    top, left = divmod(position, picture.shape[1] - size + 1)
    return picture[top : top + size, left : left + size].ravel()


def test_a_draw_has_the_windows_of_its_positions_normalised() -> None:
    picture = noise(20, 30) / 255
    picture[:6, :6] = 0.5 + 0.001 * picture[:6, :6]  # flat: its deviation is below 0.02
    x, positions = textures.draw(picture, 16 * 26, size=5)
    assert x.dtype == torch.float32
    assert x.shape == (16 * 26, 25)
    for row, position in zip(x.numpy(), positions, strict=True):
        own = window(picture, position, 5)
        own = own - own.mean()
        np.testing.assert_allclose(row, own / max(own.std(), 0.02), atol=1e-5)
    assert x[positions == 0].std() < 0.1


def test_a_draw_takes_no_window_twice() -> None:
    picture = noise() / 255
    _, all_of_them = textures.draw(picture, 16 * 26, size=5)
    np.testing.assert_array_equal(np.sort(all_of_them), np.arange(16 * 26))
    _, some = textures.draw(picture, 300, size=5, seed=1)
    assert len(np.unique(some)) == 300


def test_a_draw_avoids_what_it_is_told_to() -> None:
    picture = noise() / 255
    _, taken = textures.draw(picture, 300, size=5)
    _, others = textures.draw(picture, 16 * 26 - 300, size=5, avoid=taken)
    np.testing.assert_array_equal(np.sort(np.r_[taken, others]), np.arange(16 * 26))
    _, same = textures.draw(picture, 300, size=5, avoid=[])
    np.testing.assert_array_equal(same, taken)


def test_a_draw_is_that_of_its_seed() -> None:
    picture = noise() / 255
    first, again, other = (textures.draw(picture, 50, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[1] != other[1]).any()


def test_draws_reach_all_of_the_picture_alike() -> None:
    _, positions = textures.draw(noise(107, 107), 5000)
    top, left = np.divmod(positions, 100)
    for places in (top, left):
        counts = np.bincount(places // 10, minlength=10)
        assert counts.min() > 400  # 500 are expected, of 1000 in each tenth
        assert counts.max() < 600


def test_random_patches_are_as_they_were() -> None:
    """Bit by bit what reports and trained encoders of earlier versions go back to."""
    rng = np.random.default_rng(5)
    rows = []
    for name in ("grass", "brick"):
        windows = np.lib.stride_tricks.sliding_window_view(textures.load(name)[256:], (8, 8))
        top, left = rng.integers(0, 249, 50), rng.integers(0, 505, 50)
        rows.append(windows[top, left].reshape(50, -1))
    x = np.concatenate(rows)
    x = x - x.mean(axis=1, keepdims=True)
    x = x / np.maximum(x.std(axis=1, keepdims=True), 0.02)
    rng.shuffle(x)
    found = textures.patches(50, "test", ("grass", "brick"), seed=5)
    np.testing.assert_array_equal(found.numpy(), x.astype(np.float32))


def test_draws_and_random_patches_are_normalised_alike() -> None:
    upper = textures.load("gravel")[:256]
    drawn, _ = textures.draw(upper, 249 * 505)
    rows = {row.tobytes() for row in drawn.numpy()}
    assert all(
        row.tobytes() in rows for row in textures.patches(20, names=("gravel",), seed=1).numpy()
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"size": 1}, "size must be at least 2, got 1"),
        (
            {"picture": np.ones((5, 9))},
            "a picture of 5 x 9 pixels is smaller than a patch of 8 x 8",
        ),
        (
            {"picture": np.ones((9, 9, 3))},
            r"must have the shape \(rows, columns\), got \(9, 9, 3\)",
        ),
        ({"count": 300}, "count must be at most 299, the positions that are left of 299, got 300"),
        ({"count": 299, "avoid": [4, 4]}, "count must be at most 298, .* of 299, got 299"),
        ({"avoid": [299]}, "avoid must hold positions from 0 to 298"),
        ({"avoid": [-1]}, "avoid must hold positions from 0 to 298"),
        ({"avoid": [0.5]}, "avoid must hold positions from 0 to 298"),
    ],
)
def test_what_cannot_be_drawn(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        textures.draw(**{"picture": noise(), "count": 10, **changes})
    assert_sentence(error)


# ---- singing --------------------------------------------------------------------------------

LENGTHS = {"amy_1_01": 9000, "abjones_2_01": 700, "Ani_1_02": 5000, "amy_1_02": 6500}
ROLES = {"amy_1_01": "train", "abjones_2_01": "train", "Ani_1_02": "test", "amy_1_02": "train"}


def clip(path: Path, samples: int, channels: int = 2, rate: int = 16_000, seed: int = 0) -> Array:
    """Noise of another loudness in each channel, as it can be read again."""
    rng = np.random.default_rng(seed)
    sound = rng.uniform(-0.5, 0.5, (samples, channels)) / np.arange(1, channels + 1)
    integers = np.round(sound * 2**15).astype(np.int16)
    soundfile.write(path, integers, rate)
    return integers / 2.0**15


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Array]:
    """A folder with a table: two clips to train on, one too short for a frame, one to test."""
    folder = tmp_path / "singing"
    folder.mkdir()
    clips = {
        name: clip(folder / f"{name}.flac", samples, seed=seed)
        for seed, (name, samples) in enumerate(LENGTHS.items())
    }
    rows = [
        f"{name}.flac,{name.split('_')[0]},{name[:-3]},{ROLES[name]},{len(clips[name]) / 16_000}"
        for name in clips
    ]
    (folder / "splits.csv").write_text("\n".join(["file,singer,song,role,seconds", *rows]))
    return clips


def spectra(sound: Array, window: int = 1024, hop: int = 256) -> Array:
    """Magnitudes by scipy, frames as rows."""
    transform = scipy.signal.ShortTimeFFT(
        scipy.signal.get_window("hann", window, fftbins=True), hop, fs=1.0, phase_shift=None
    )
    # its frame number p is around the sample p hop
    first, count = -(-(window // 2) // hop), 1 + (len(sound) - window) // hop
    offset = first * hop - window // 2
    shifted = np.r_[np.zeros(offset), sound]
    return np.abs(transform.stft(shifted, p0=first, p1=first + count)).T


def test_the_clips_of_a_role_are_those_of_the_table(
    corpus: dict[str, Array], tmp_path: Path
) -> None:
    for folder in (tmp_path, tmp_path / "singing"):
        clips = singing.read_folder(folder, "train")
        assert [own.path.stem for own in clips] == ["amy_1_01", "abjones_2_01", "amy_1_02"]
    assert [own.singer for own in clips] == ["amy", "abjones", "amy"]
    assert [own.song for own in clips] == ["amy_1", "abjones_2", "amy_1"]
    assert [own.samples for own in clips] == [9000, 700, 6500]
    (test,) = singing.read_folder(tmp_path, "test")
    accompaniment, voice = test.read()
    np.testing.assert_array_equal(accompaniment, corpus["Ani_1_02"][:, 0])
    np.testing.assert_array_equal(voice, corpus["Ani_1_02"][:, 1])


@pytest.mark.parametrize("place", ["Wavfile", "MIR-1K/Wavfile", "MIR-1K/MIR-1K/Wavfile"])
def test_without_a_table_two_singers_train(tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True)
    for name in LENGTHS:
        clip(folder / f"{name}.wav", 2000)
    (folder / "._amy_1_01.wav").write_text("no clip")
    names = {
        role: [own.path.stem for own in singing.read_folder(tmp_path, role)]
        for role in ("train", "test")
    }
    assert names == {"train": ["abjones_2_01", "amy_1_01", "amy_1_02"], "test": ["Ani_1_02"]}
    (test,) = singing.read_folder(tmp_path, "test")
    assert (test.singer, test.song) == ("Ani", "Ani_1")


@pytest.mark.parametrize(("window", "hop", "power"), [(1024, 256, 0.5), (512, 200, 1.0)])
def test_frames_are_the_spectra_of_both_channels_and_their_sum(
    corpus: dict[str, Array], tmp_path: Path, window: int, hop: int, power: float
) -> None:
    music = singing.frames(tmp_path, "test", window=window, hop=hop, power=power, scale=2.0)
    left, right = corpus["Ani_1_02"].T
    for part, sound in zip(music, (left + right, left, right), strict=True):
        assert part.dtype == torch.float32
        expected = spectra(sound, window, hop) ** power / 2
        assert part.shape == (1 + (5000 - window) // hop, window // 2 + 1)
        np.testing.assert_allclose(part.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_one_frame_by_the_formula(corpus: dict[str, Array], tmp_path: Path) -> None:
    music = singing.frames(tmp_path, "test", scale=1.0)
    n = np.arange(1024)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / 1024)
    mixture = corpus["Ani_1_02"].sum(axis=1)[3 * 256 : 3 * 256 + 1024]
    basis = np.exp(-2j * np.pi * np.outer(np.arange(513), n) / 1024)
    np.testing.assert_allclose(
        music.mixture[3].numpy(), np.abs(basis @ (hann * mixture)) ** 0.5, rtol=1e-5
    )


def test_all_is_divided_by_the_deviation_of_the_train_mixtures(
    corpus: dict[str, Array], tmp_path: Path
) -> None:
    mixtures = [spectra(corpus[name].sum(axis=1)) ** 0.5 for name in ("amy_1_01", "amy_1_02")]
    scale = singing.train_scale(tmp_path)
    np.testing.assert_allclose(scale, np.concatenate(mixtures).std(), rtol=1e-6)
    train = singing.frames(tmp_path, "train")
    np.testing.assert_allclose(train.mixture.numpy().std(), 1, rtol=1e-5)
    for role in ("train", "test"):
        found, given = singing.frames(tmp_path, role), singing.frames(tmp_path, role, scale=scale)
        plain = singing.frames(tmp_path, role, scale=1.0)
        for own, same, unscaled in zip(found, given, plain, strict=True):
            assert torch.equal(own, same)
            torch.testing.assert_close(own * scale, unscaled)


def test_the_scale_of_many_frames_is_that_of_some_of_them(
    corpus: dict[str, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = singing.train_scale(tmp_path)
    monkeypatch.setattr(singing, "SCALE_FRAMES", 20)
    part = singing.train_scale(tmp_path)
    assert part != whole
    assert part == pytest.approx(whole, rel=0.05)
    assert part == singing.train_scale(tmp_path)


def test_some_frames_are_rows_of_all_of_them_in_their_order(
    corpus: dict[str, Array], tmp_path: Path
) -> None:
    whole = singing.frames(tmp_path, "train", scale=1.0)
    places = {row.tobytes(): number for number, row in enumerate(whole.mixture.numpy())}
    assert len(places) == len(whole.mixture) == 32 + 22
    seen = set()
    for seed in range(20):
        some = singing.frames(tmp_path, "train", 10, seed, scale=1.0)
        rows = [places[row.tobytes()] for row in some.mixture.numpy()]
        assert rows == sorted(set(rows))
        for part, own in zip(whole, some, strict=True):
            assert torch.equal(part[rows], own)
        seen |= set(rows)
    assert len(seen) == len(places)  # missed with probability 2e-3 if all are equally likely
    everything = singing.frames(tmp_path, "train", 54, scale=1.0)
    assert torch.equal(everything.mixture, whole.mixture)


def test_only_the_clips_that_are_needed_are_read(
    corpus: dict[str, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = singing.Clip.read

    def noted(self: singing.Clip) -> tuple[Array, Array]:
        read.append(self.path.stem)
        return original(self)

    monkeypatch.setattr(singing.Clip, "read", noted)
    singing.frames(tmp_path, "train", 1, scale=1.0)
    assert len(read) == 1
    singing.frames(tmp_path, "train", scale=1.0)
    assert read[1:] == ["amy_1_01", "amy_1_02"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"role": "val"}, "has no clips of the role 'val'; its roles are test, train"),
        ({"count": 0}, "count must be from 1 to 16, the frames there are, got 0"),
        ({"count": 17}, "count must be from 1 to 16, the frames there are, got 17"),
        ({"window": 1}, "window must be at least 2, got 1"),
        ({"window": 5001}, "no clip is as long as a window of 5001 samples"),
        ({"hop": 0}, "hop must be at least 1, got 0"),
        ({"power": 0.0}, "power must be positive and finite, got 0"),
        ({"scale": -1.0}, "scale must be positive and finite, got -1"),
    ],
)
def test_frames_that_there_are_not(
    corpus: dict[str, Array], tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        singing.frames(**{"folder": tmp_path, "role": "test", "scale": 1.0, **changes})
    assert_sentence(error)


def test_silence_has_no_scale(tmp_path: Path) -> None:
    (tmp_path / "Wavfile").mkdir()
    soundfile.write(tmp_path / "Wavfile" / "amy_1_01.wav", np.zeros((4000, 2)), 16_000)
    with pytest.raises(ValueError, match="are silent; give a scale"):
        singing.frames(tmp_path, "train")
    assert singing.frames(tmp_path, "train", scale=1.0).mixture.abs().max() == 0


def test_test_clips_alone_need_a_scale(tmp_path: Path) -> None:
    (tmp_path / "Wavfile").mkdir()
    clip(tmp_path / "Wavfile" / "Ani_1_01.wav", 4000)
    with pytest.raises(ValueError, match="has no clips of the role 'train'; its roles are test"):
        singing.frames(tmp_path, "test")
    assert len(singing.frames(tmp_path, "test", scale=1.0).mixture) == 12


def test_clips_that_cannot_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "Wavfile"
    folder.mkdir()
    path = folder / "amy_1_01.wav"

    def refused(sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence) as error:
            singing.frames(tmp_path, "train", scale=1.0)
        assert_sentence(error)

    path.write_text("no sound")
    refused("amy_1_01.wav cannot be read")
    clip(path, 4000, channels=1)
    refused("amy_1_01.wav must have two channels, accompaniment and voice, it has 1")
    clip(path, 4000, rate=44_100)
    refused("amy_1_01.wav must have 16000 samples a second, it has 44100")


def test_a_clip_that_breaks_off(corpus: dict[str, Array], tmp_path: Path) -> None:
    (own,) = singing.read_folder(tmp_path, "test")
    content = own.path.read_bytes()
    own.path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"Ani_1_02.flac cannot be read") as error:
        own.read()
    assert_sentence(error)
    clip(own.path, 4000)
    with pytest.raises(ValueError, match=r"02.flac is incomplete: it has 4000 of 5000 samples"):
        own.read()


def test_folders_without_clips(corpus: dict[str, Array], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        singing.read_folder(tmp_path / "nowhere", "train")
    (tmp_path / "empty" / "Wavfile").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"has neither splits.csv nor a folder Wavfile with .wav"):
        singing.read_folder(tmp_path / "empty", "train")
    (tmp_path / "singing" / "Ani_1_02.flac").unlink()
    with pytest.raises(FileNotFoundError, match=r"Ani_1_02.flac, but splits.csv names it"):
        singing.read_folder(tmp_path, "test")
    splits = tmp_path / "singing" / "splits.csv"
    splits.write_text("file,singer,song\n")
    with pytest.raises(ValueError, match="has no column role"):
        singing.read_folder(tmp_path, "test")
    splits.write_text("file,singer,song,role\n")
    with pytest.raises(ValueError, match="names no clips"):
        singing.read_folder(tmp_path, "test")


def test_without_soundfile(
    corpus: dict[str, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ImportError, match=r"pip install 'pursuit\[audio\]'"):
        singing.frames(tmp_path, "train")


def archive(*names: str) -> bytes:
    file = io.BytesIO()
    sound = io.BytesIO()
    soundfile.write(sound, np.full((2000, 2), 0.1), 16_000, format="WAV")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as own:
        for name in names:
            own.writestr(name, sound.getvalue())
    return file.getvalue()


def test_the_corpus_is_downloaded_and_unpacked_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PURSUIT_CACHE", str(tmp_path))
    site.content["/MIR-1K.zip"] = archive("MIR-1K/Wavfile/amy_1_01.wav", "MIR-1K/readme.txt")
    folder = singing.download(url=site.url("/MIR-1K.zip"))
    assert folder == tmp_path / "singing"
    assert len(singing.frames(folder, "train").mixture) == 4
    assert sorted(own.name for own in folder.iterdir()) == ["MIR-1K", "MIR-1K.zip", CHECKSUMS]
    (folder / "MIR-1K.zip").unlink()
    assert singing.download(url=site.url("/MIR-1K.zip")) == folder
    assert len(site.asked) == 1


@pytest.mark.parametrize(
    "name",
    ["../outside.wav", "a/../../outside.wav", "/outside.wav", "..\\outside.wav", "C:\\o.wav"],
)
def test_an_archive_that_leaves_its_folder_is_refused(
    site: Site, tmp_path: Path, name: str
) -> None:
    site.content["/a.zip"] = archive("Wavfile/amy_1_01.wav", name)
    folder = tmp_path / "one" / "two"
    with pytest.raises(ValueError, match="outside of its folder") as error:
        singing.download(folder, site.url("/a.zip"))
    assert_sentence(error)
    assert sorted(own.name for own in folder.iterdir()) == ["MIR-1K.zip", CHECKSUMS]
    assert [own.name for own in folder.parent.iterdir()] == ["two"]


@pytest.mark.parametrize("damage", ["text", "half", "flipped"])
def test_an_archive_that_is_damaged_leaves_no_clips(
    site: Site, tmp_path: Path, damage: str
) -> None:
    whole = archive("Wavfile/amy_1_01.wav")
    flipped = bytearray(whole)
    flipped[70] ^= 255
    site.content["/a.zip"] = {
        "text": b"<html>moved</html>",
        "half": whole[: len(whole) // 2],
        "flipped": bytes(flipped),
    }[damage]
    with pytest.raises(ValueError, match="is not a whole zip archive") as error:
        singing.download(tmp_path, site.url("/a.zip"))
    assert_sentence(error)
    assert not (tmp_path / "MIR-1K").exists()
    # what the sentence says to do helps
    for name in ("MIR-1K.zip", CHECKSUMS):
        (tmp_path / name).unlink()
    site.content["/a.zip"] = whole
    assert len(singing.read_folder(singing.download(tmp_path, site.url("/a.zip")), "train")) == 1


# ---- faces -----------------------------------------------------------------------------------


@pytest.fixture
def face_folder(tmp_path: Path) -> Path:
    """Two sets: one of pictures of several sizes, in which the pixel in the middle is white."""
    rows = ["file,person,role"]
    for number, (height, width) in enumerate([(11, 9), (9, 13), (15, 11)]):
        picture = np.full((height, width), 20 * number, np.uint8)
        picture[height // 2, width // 2] = 255
        (tmp_path / "raw").mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / f"raw/{number}.png")
        rows.append(f"raw/{number}.png,anna,{('train', 'test', 'train')[number]}")
    (tmp_path / "large").mkdir()
    stripes = np.tile(np.array([0, 255], np.uint8), (20, 16))
    Image.fromarray(stripes).save(tmp_path / "large/a.png")
    rows.append("large/a.png,bert,val")
    (tmp_path / "splits.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_faces_are_cut_around_their_middle(face_folder: Path) -> None:
    read = faces.read_folder(face_folder)
    assert tuple(read.pictures) == ("raw", "large")
    pictures = read.of("raw")
    assert pictures.shape == (3, 9, 9)
    assert pictures.dtype == torch.float32
    expected = np.full((3, 9, 9), [[[0]], [[20]], [[40]]])
    expected[:, 4, 4] = 255
    np.testing.assert_allclose(pictures, expected / 255, rtol=1e-6)
    assert torch.equal(read.of("raw", "train"), pictures[[0, 2]])
    assert torch.equal(read.of("raw", "test"), pictures[[1]])


def test_reduced_faces_have_no_aliases(face_folder: Path) -> None:
    """Fine stripes become grey; without a filter they would be coarse ones."""
    read = faces.read_folder(face_folder, {"large": (5, 6)})
    (picture,) = read.of("large", "val")
    assert picture.shape == (5, 6)
    assert float((picture - 0.5).abs().max()) < 0.1
    assert read.of("raw").shape == (3, 9, 9)


def test_reduced_faces_stay_grey_values(face_folder: Path) -> None:
    step = np.zeros((20, 32), np.uint8)
    step[:, 16:] = 255
    Image.fromarray(step).save(face_folder / "large/a.png")
    picture = faces.read_folder(face_folder, {"large": (5, 8)}).of("large")
    assert float(picture.min()) == 0.0
    assert float(picture.max()) == 1.0


@pytest.mark.parametrize(
    ("name", "role", "sentence"),
    [
        ("small", None, r"no set 'small'; the sets are raw, large"),
        ("raw", "val", r"raw has no pictures of the role 'val'; its roles are test, train"),
    ],
)
def test_unknown_faces(face_folder: Path, name: str, role: str | None, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        faces.read_folder(face_folder).of(name, role)


def test_tables_of_faces_that_cannot_be_used(face_folder: Path) -> None:
    (face_folder / "raw/1.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"1\.png cannot be read as a picture"):
        faces.read_folder(face_folder)
    (face_folder / "raw/1.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"no file .*1\.png, but splits\.csv names it"):
        faces.read_folder(face_folder)
    (face_folder / "splits.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"no .*splits\.csv; .* of file, person, role"):
        faces.read_folder(face_folder)


# ---- real data ------------------------------------------------------------------------------


@pytest.mark.data
def test_real_textures(data_folder: Path) -> None:
    read = textures.read_folder(data_folder)
    assert len(read.names) == 3
    for picture in read.pictures:
        assert picture.shape == (510, 512)
        assert picture.min() >= 0
        assert picture.max() <= 1
        assert picture[-1].any()  # the black rows are left out
        x, _ = textures.draw(picture, 1000)
        assert bool(torch.isfinite(x).all())
        assert float(x.std()) == pytest.approx(1, abs=0.1)


@pytest.mark.data
def test_real_singing(data_folder: Path) -> None:
    train = singing.frames(data_folder, "train", 500)
    test = singing.frames(data_folder, "test", 200, scale=singing.train_scale(data_folder))
    assert float(train.mixture.std()) == pytest.approx(1, abs=0.1)
    for music in (train, test):
        for part in music:
            assert part.shape[1] == 513
            assert float(part.min()) >= 0
        # |L + R| <= |L| + |R|, and roots are subadditive
        assert bool((music.mixture <= music.low_rank + music.sparse + 1e-5).all())
        # both channels of a clip are equally loud
        energy = [float((part**4).mean()) for part in (music.low_rank, music.sparse)]
        assert 0.3 < energy[0] / energy[1] < 3
    singers = {
        role: {own.singer for own in singing.read_folder(data_folder, role)}
        for role in ("train", "test")
    }
    assert singers["train"] == set(singing.TRAIN_SINGERS)
    assert not singers["train"] & singers["test"]


@pytest.mark.data
def test_the_real_faces(data_folder: Path) -> None:
    read = faces.read_folder(data_folder)
    counts = {
        name: [len(read.of(name, role)) for role in ("train", "val", "test")]
        for name in read.pictures
    }
    assert counts == {"lfw_bush": [371, 53, 106], "rasl_gore": [70, 10, 20]}
    assert read.of("lfw_bush").shape[1:] == (90, 77)
    assert read.of("rasl_gore").shape[1:] == (97, 74)
    for own in read.pictures.values():
        assert float(own.min()) >= 0.0
        assert float(own.max()) <= 1.0
    # the middle half of the faces is brighter than the corners of the pictures, on average
    mean = read.of("rasl_gore").mean(dim=0)
    assert float(mean[24:72, 18:55].mean()) > float(mean[-10:, :10].mean()) + 0.1

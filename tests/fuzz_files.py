"""Forged files: a reader answers with an object or with one sentence, whatever a file says.

Files of every kind are changed at random, in their descriptions and their arrays, with a checksum
that fits, or in their bytes. Every reader must then return, or raise a ValueError that names the
file in one line, within a second and with little memory. Files that are written are whole, or
nothing has changed.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import math
import os
import re
import resource
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import pursuit as pu
from families import FEATURES, problem
from pursuit import files
from pursuit.alignment.transformations import Similarity
from pursuit.audio import NoisySpeakers, Separator, Speakers
from pursuit.audio.envelope import Contrast, Envelope
from pursuit.audio.features import Features
from pursuit.audio.likeness import Likeness
from pursuit.cli.data import Table, ignore
from pursuit.cli.fit_run import Plan, run
from pursuit.cli.main import app
from pursuit.operators import Convolution
from pursuit.progress import Progress
from pursuit.vision.faces import AlignmentModel

Array = np.ndarray[Any, Any]
Content = tuple[dict[str, Array], dict[str, Any]]

#: seconds of the processor, and bytes beyond the size of the file, that a reader may take
SECONDS, BYTES = 1.0, 100 * 2**20
#: what replaces a field of a description
VALUES: list[Any] = [
    *(0, 1, -1, 2, 3, -5, 7, 1000, 99_999, 10**6, 10**9, -(10**9), 2**31, 2**63, 10**18, 10**400),
    *(0.0, 0.5, -0.5, 2.5, 1e-300, 1e30, 1e300, -1e300, math.nan, math.inf, -math.inf),
    *(True, False, None, "", "x", "3", "dictionary", "../x", "é" * 300),
    *([], {}, [[]], [1], [0, 1], [10**9], [10**9, 10**9], [3, 10**5], [None], ["x"], [math.nan]),
    *({"a": 1}, {"@penalty": "L1", "arguments": {"lam": 0.1}}, {"@operator": "Matrix"}),
    [[0, 1], [10**9]],
    [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]],
    "DEEP",
]
#: stands for lists in each other, deeper than any reader can follow
DEEP = "[" * 100_000 + "]" * 100_000
NUMBERS = [math.nan, math.inf, -math.inf, -1.0, 0.0, 1.0, 1e9, -1e9, 1e30, 3e38, -3e38, 1e-40, 0.5]
WHOLE = [-1, -2, -5, 0, 1, 2, 10**9, -(10**9), 2**62, -(2**63), 40]
DTYPES = ["f2", "f4", "f8", "i1", "i4", "i8", "u1", "u8", "?"]
NAMES = {"f2": "F16", "f4": "F32", "f8": "F64", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64"}
NAMES |= {"u1": "U8", "u2": "U16", "u4": "U32", "u8": "U64", "b1": "BOOL"}
#: wordings of Python and torch that tell a user nothing about a file
FOREIGN = re.compile(
    r"object is not|unsupported operand|not supported between|object has no attribute|"
    r"unpack|takes \d+ positional|object cannot be|can't allocate|not enough memory|"
    r"is an invalid keyword|indices must be|out of range|object of type|\bNoneType\b|"
    r"must be real number|Traceback|multiple values for"
)


# ---- the files -------------------------------------------------------------------------------


def encoders() -> dict[str, Any]:
    single = torch.float32
    lasso, hilasso = problem("lasso", 0, 1, single)[0], problem("hilasso", 1, 1, single)[0]
    stacked, robust = problem("stacked", 2, 1, single)[0], problem("robust-pca", 3, 1, single)[0]
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(3, 3, generator=generator)
    plane = pu.models.ConvolutionalLowRankSparse(
        Convolution(rows, (4, 6), (1, 3), parts=(1, 2)), 0.3, 0.1
    )
    causal = pu.ConvolutionalEncoder(
        plane, 3, tied=False, causal=True, window=2, averages=(0.9,), memory=1, positional=True
    )
    line = pu.models.SparseModel(Convolution(rows, (9,), (3,), stride=2), pu.penalties.L1(0.1))
    return {
        "proximal": pu.ProximalEncoder(lasso, 3),
        "proximal-free": pu.ProximalEncoder(stacked, 2, "free", tied=False),
        "coordinate": pu.CoordinateEncoder(lasso, 3, coordinates=(1, 2, 4), momentum=True),
        "block": pu.BlockCoordinateEncoder(hilasso, 3),
        "robust": pu.ProximalEncoder(robust, 3),
        "causal": causal,
        "convolutional": pu.ConvolutionalEncoder(line, 3),
    }


def learner() -> pu.OnlineLearner:
    model, _ = problem("lasso", 4, 1, torch.float32)
    return pu.OnlineLearner(
        pu.ProximalEncoder(model, 2), chunk=20, window=60, batch_size=20, steps=2
    )


def checkpointed(path: Path, dictionary: str, callback: Any = None) -> tuple[Any, Any]:
    model, x = problem("nmf-ridge", 5, 60, torch.float32)
    encoder = pu.ProximalEncoder(model, 2)
    options: Any = {"dictionary": dictionary, "steps": 30, "batch_size": 16, "held": [1, 5, 9]}
    return encoder, pu.fit(encoder, x, checkpoint=path, callback=callback, **options)


def command(folder: Path, callback: Any = ignore) -> None:
    """A run of `pursuit fit`, whose unfinished files are in the folder."""
    x = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    weights: Any = {"lam": 0.1, "lam_star": "auto", "lam_group": "auto"}
    plan = Plan("lasso", 6, 2, groups=4, step=None, regime="unsupervised", steps=30, passes=1,
                seed=0, threads=None, **weights)  # fmt: skip
    notes = {"name": "x", "date": "2020", "provenance": None}
    run(plan, Table(x, "x.npy"), folder / "m", folder / "m.checkpoint", notes, callback)


def write_all(folder: Path) -> None:
    """Write a file of every kind to a folder; the part of a name before the dot is the kind."""
    for name in ("lasso", "hilasso", "nmf-ridge", "tree", "stacked", "low-rank-sparse"):
        pu.save(problem(name, 6, 1)[0], folder / f"model.{name}")
    for name, encoder in encoders().items():
        pu.save(encoder, folder / f"encoder.{name}", "noise", {"steps": 3, "gap": 0.1})
    models = [problem("low-rank-sparse", seed, 1, torch.float32)[0] for seed in (0, 0)]
    bank = pu.EncoderBank([pu.ProximalEncoder(model, 2) for model in models])
    pu.save(bank, folder / "bank.shared")
    _, x = problem("lasso", 4, 50, torch.float32)
    learner().partial_fit(x).save(folder / "learner.lasso")
    for dictionary in ("gradient", "statistics"):
        stop = {"callback": lambda now: now.done >= 10}
        checkpointed(folder / f"checkpoint.{dictionary}", dictionary, **stop)
    AlignmentModel(
        pu.models.RobustPCA(torch.rand(3, 8 * 6), 0.3, 0.2), Similarity((8, 6)), (40, 32), 2, 1.0
    ).save(folder / "alignment.similarity")
    _write_sounds(folder)

    def stop_training(now: Progress) -> None:
        if now.stage == "training" and now.done >= 10:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        command(folder, stop_training)
    (folder / "m.checkpoint").rename(folder / "unfinished.checkpoint")
    (folder / "m.checkpoint.dictionary").rename(folder / "unfinished.dictionary")


def _write_sounds(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    features = Features(window=16, hop=4)
    atoms = [torch.rand(2, 9, generator=generator) for _ in range(2)]
    model = pu.models.LowRankSparse(*atoms, 0.3, 0.1)
    bias = np.zeros(9, np.float32)
    separator = Separator(pu.ProximalEncoder(model, 2), features, 2.0, bias)
    separator.save(folder / "separator.small")
    noisy = pu.models.LowRankSparse(*(torch.rand(2, 257, generator=generator) for _ in "ab"), 1, 1)
    bank = pu.EncoderBank([pu.ProximalEncoder(noisy, 2) for _ in range(2)])
    NoisySpeakers(bank, ["a", "b"]).save(folder / "noisy.two")
    voices = torch.rand(4, 6, generator=generator)
    encoder = pu.BlockCoordinateEncoder(
        pu.models.GroupLasso(voices, [[0, 1], [2, 3]], 0.1), 2, form="residual"
    )
    contrast = Contrast(np.ones(6, np.float32), np.eye(6, dtype=np.float32), 0.1)
    likeness = Likeness(np.ones((2, 6), np.float32), 0.5, 0.6, 0.1)
    program = encoder.program()
    speakers = Speakers(["a", "b"], Envelope(size=6), contrast, program, likeness, None, {})
    speakers.save(folder / "speakers.two")


# ---- forging ---------------------------------------------------------------------------------


def encoded(arrays: dict[str, Array], info: dict[str, Any]) -> bytes:
    """The bytes of a file with a checksum that fits, without the checks of `files.write`."""
    text = json.dumps(info).replace('"DEEP"', DEEP)
    digest = hashlib.sha256(text.encode())
    header: dict[str, Any] = {}
    data = b""
    for name in sorted(arrays, key=lambda name: (-arrays[name].itemsize, name)):
        array = arrays[name]
        begin, data = len(data), data + array.tobytes()
        dtype = NAMES[array.dtype.str[1:]]
        offsets = [begin, len(data)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    header["__metadata__"] = {"pursuit": text, "checksum": digest.hexdigest()}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all fields of a description."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in pairs:
        yield (*above, key)
        if isinstance(entry, dict | list):
            yield from places(entry, (*above, key))


def change_description(rng: np.random.Generator, content: Content) -> str:
    info = content[1]
    every = list(places(info))
    # fields of few levels are rarer, but matter as much as the many deep ones
    depth = rng.integers(1, 1 + max(map(len, every)))
    fitting = [place for place in every if len(place) <= depth]
    place = fitting[rng.integers(len(fitting))]
    inside: Any = info
    for key in place[:-1]:
        inside = inside[key]
    old, kind = inside[place[-1]], rng.integers(10)
    value = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    where = ".".join(map(str, place))
    if kind == 0:
        del inside[place[-1]]
        return f"without {where}"
    if kind == 1 and isinstance(inside, dict):
        name = ["unknown", "dictionary", "lam", "shape", "same", "@penalty"][rng.integers(6)]
        inside[name] = value
        return f"{name} {value!r:.60} beside {where}"
    if kind == 2 and isinstance(old, list) and old:
        old.append(copy.deepcopy(old[-1]))
        return f"longer {where}"
    if kind == 3 and isinstance(old, int | float):
        value = old * [-1, 2, 1000, 0.5, 10**7][rng.integers(5)]
    if kind == 4:
        other = every[rng.integers(len(every))]
        value = info
        for key in other:
            value = value[key]
        value = copy.deepcopy(value)
    inside[place[-1]] = value
    return f"{where} = {value!r:.100}"


def change_array(rng: np.random.Generator, content: Content) -> str:
    arrays = content[0]
    if not arrays:
        return "nothing"
    name = sorted(arrays)[rng.integers(len(arrays))]
    array = arrays[name]
    match int(rng.integers(11)):
        case 0:
            del arrays[name]
            return f"without array {name}"
        case 1:
            arrays[f"{name}{['.x', '0', ' '][rng.integers(3)]}"] = arrays.pop(name)
            return f"array {name} renamed"
        case 2:
            arrays[["unknown", "program.unknown", "encoder.x"][rng.integers(3)]] = array
            return "an unknown array"
        case 3 | 4 if array.ndim:
            axis = int(rng.integers(array.ndim))
            count = int(rng.integers(array.shape[axis] + 1))
            arrays[name] = np.ascontiguousarray(np.take(array, range(count), axis))
        case 5 if array.ndim:
            arrays[name] = np.concatenate([array, array], axis=int(rng.integers(array.ndim)))
        case 6:
            shapes: list[Any] = [(-1,), (1, -1), (1, 1, 1, -1), array.shape[::-1]]
            arrays[name] = array.reshape(shapes[rng.integers(4)])
        case 7:
            with np.errstate(all="ignore"):
                arrays[name] = array.astype(DTYPES[rng.integers(len(DTYPES))])
        case 8:
            arrays[name] = arrays[sorted(arrays)[rng.integers(len(arrays))]]
        case _:
            array = array.copy()
            flat, choice = array.reshape(-1), NUMBERS if array.dtype.kind == "f" else WHOLE
            for _ in range(int(rng.integers(1, 4)) if flat.size else 0):
                with np.errstate(all="ignore"):
                    value = np.asarray(choice[rng.integers(len(choice))]).astype(array.dtype)
                flat[rng.integers(flat.size)] = value
            if rng.integers(4) == 0 and flat.size:
                flat[:] = flat[0]
            arrays[name] = array
            return f"numbers of {name}: {np.unique(array)[:5]}"
    return f"{name}: {arrays[name].dtype} {arrays[name].shape}"


def change_bytes(rng: np.random.Generator, content: bytes) -> tuple[bytes, str]:
    data = bytearray(content)
    header = 8 + int.from_bytes(content[:8], "little")
    at = int(rng.integers([8, header, len(data)][rng.integers(3)]))
    match int(rng.integers(7)):
        case 0:
            return b"", "nothing"
        case 1:
            return bytes(data[:at]), f"cut at {at}"
        case 2:
            data[at] ^= 1 << int(rng.integers(8))
        case 3:
            data[at : at + 8] = rng.bytes(8)
        case 4:
            data[at:at] = rng.bytes(int(rng.integers(1, 30)))
        case 5:
            del data[at : at + int(rng.integers(1, 30))]
        case _:
            length = [0, 1, 2**31, 2**40, 2**63, header * 10][rng.integers(6)]
            data[:8] = length.to_bytes(8, "little")
    return bytes(data), f"other bytes at {at}"


def forged(rng: np.random.Generator, kind: str) -> tuple[str, bytes, str]:
    """A changed file of a kind: the name of the original, its bytes, and what was changed."""
    names = [name for name in originals() if name.startswith(f"{kind}.")]
    name = names[rng.integers(len(names))]
    arrays, info = originals()[name]
    if rng.integers(8) == 0:
        return name, *change_bytes(rng, encoded(arrays, info))
    content = dict(arrays), copy.deepcopy(info)
    said = []
    for _ in range(int(rng.integers(1, 3))):
        change = change_description if rng.integers(2) else change_array
        said.append(change(rng, content))
    return name, encoded(*content), " and ".join(said)


@cache
def originals() -> dict[str, Content]:
    """The files that are changed."""
    with TemporaryDirectory() as folder:
        write_all(Path(folder))
        return {path.name: files.read(path) for path in sorted(Path(folder).iterdir())}


@cache
def warm_up(kind: str) -> None:
    """Read the originals once, which loads what readers need; all of them are valid."""
    for name, content in originals().items():
        if name.startswith(f"{kind}."):
            with placed(name, encoded(*content)) as path:
                for reader in READERS[kind]:
                    reader(path)


# ---- judging ---------------------------------------------------------------------------------


@contextmanager
def placed(name: str, content: bytes) -> Iterator[Path]:
    """A file in a folder of its own."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        yield path


@contextmanager
def limited(size: int) -> Iterator[None]:
    """The memory of the process may only grow by so many bytes inside."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def answered(read: Callable[[], object], path: Path) -> bool:
    """Whether a reader takes a file; if not, it must raise a ValueError as it should be."""
    seconds = []
    while not seconds or (seconds[-1] >= SECONDS and len(seconds) < 3):  # or the machine was busy
        message, started = None, time.process_time()
        with limited(path.stat().st_size + BYTES):
            try:
                read()
            except ValueError as error:
                message = str(error)
        seconds.append(time.process_time() - started)
    assert min(seconds) < SECONDS, f"{min(seconds):.1f} s"
    if message is not None:
        assert path.name in message, f"does not name the file: {message}"
        assert "\n" not in message, f"several lines: {message}"
        assert len(message) < 600, f"too long: {message}"
        assert not FOREIGN.search(message), f"not for users: {message}"
    return message is None


def spoken(*arguments: object) -> None:
    """Run a command; raise its error as a ValueError."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = app([*map(str, arguments)], standalone_mode=False)
    assert code in (None, 0, 1), code
    if code == 1:
        said = json.loads(out.getvalue())["error"] if "--json" in arguments else errors.getvalue()
        raise ValueError(said.strip())
    assert "error: " not in errors.getvalue()


# ---- readers ---------------------------------------------------------------------------------


def load_torch(path: Path) -> None:
    found = pu.load(path)
    if isinstance(found, pu.models.SparseModel):
        x, z = torch.zeros(1, found.features), torch.zeros(1, found.code_size)
        found.objective(x.to(found.dtype), z.to(found.dtype))
        return
    member = found[0] if isinstance(found, pu.EncoderBank) else found
    with torch.no_grad():
        found(torch.ones(1, member.features, dtype=member.model.dtype))


def load_compiled(path: Path) -> None:
    found = pu.runtime.load(path)
    members = found.encoders if isinstance(found, pu.runtime.CompiledBank) else [found]
    for member in members:
        if member.features > 10**5:
            return
        x = np.ones((1, member.features), np.float32)
        assert member(x).shape == (1, member.size)
        member.decode(np.zeros((1, member.size), np.float32))
        if isinstance(member, pu.runtime.Compiled):
            member.stream(4)(x)
            member(np.ones((20, member.features)))
        elif member.program.causal:
            width = member.program.channels * member.program.shape[1]
            member.stream().push(np.ones((3, width), np.float32))


def inspect(path: Path) -> None:
    spoken("inspect", path, *["--json"] * (path.stat().st_size % 2))


def encode(path: Path) -> None:
    features = {"encoder.causal": 24, "encoder.convolutional": 9}.get(path.name, FEATURES)
    np.save(path.parent / "x.npy", np.ones((2, features), np.float32))
    spoken("encode", path, path.parent / "x.npy", "-o", path.parent / "z.npy")
    try:
        spoken("decode", path, path.parent / "z.npy", "-o", path.parent / "y.npy")
    except ValueError as error:
        if "z.npy contains" not in str(error):  # codes that are too large to be decoded
            raise


def resume_learner(path: Path) -> None:
    _, x = problem("lasso", 4, 50, torch.float32)
    fresh = learner()
    before = state(fresh)
    try:
        fresh.resume(path)
    except ValueError:
        assert state(fresh) == before, "a refused file has changed the learner"
        raise
    fresh.partial_fit(x)


def state(of: pu.OnlineLearner) -> str:
    """Everything that a file changes."""
    tensors = {**of.encoder.state_dict(), **of._optimiser.state, **of._detector.moments.state}
    assert of.dictionary is not None
    tensors |= {**of.dictionary.state, **of._seen.parts, **of._waiting.parts}
    numbers = of.samples, of._recent, of._past, of._detector.levels, of.history, of.changes
    return repr(({name: t.tolist() for name, t in tensors.items()}, numbers, of.encoder.regime))


def resume_run(path: Path) -> None:
    checkpointed(path, path.name.partition(".")[2])


def resume_command(path: Path) -> None:
    for name, content in originals().items():
        if name.startswith("unfinished.") and name != path.name:
            target = "m.checkpoint" if name.endswith("checkpoint") else "m.checkpoint.dictionary"
            (path.parent / target).write_bytes(encoded(*content))
    target = "m.checkpoint" if path.name.endswith("checkpoint") else "m.checkpoint.dictionary"
    (path.parent / target).write_bytes(path.read_bytes())
    try:
        command(path.parent)
    except ValueError as error:
        raise ValueError(str(error).replace("m.checkpoint", path.name)) from error


READERS: dict[str, list[Callable[[Path], None]]] = {
    "model": [load_torch, inspect],
    "encoder": [load_torch, load_compiled, inspect, encode],
    "bank": [load_torch, load_compiled, inspect],
    "learner": [resume_learner, inspect],
    "checkpoint": [resume_run, inspect],
    "unfinished": [resume_command],
    "alignment": [AlignmentModel.load, inspect],
    "separator": [Separator.load, inspect],
    "speakers": [Speakers.load, inspect],
    "noisy": [NoisySpeakers.load, inspect],
}


#: these take longer, so they are called for some of the files
COMMANDS = (inspect, encode)


def attack(rng: np.random.Generator, kind: str) -> None:
    warm_up(kind)
    name, content, said = forged(rng, kind)
    with placed(name, content) as path:
        for reader in READERS[kind]:
            if reader in COMMANDS and rng.integers(4):
                continue
            try:
                answered(partial(reader, path), path)
            except Exception as error:
                error.add_note(f"{getattr(reader, '__qualname__', reader)} of {name}, {said}")
                raise


# ---- outputs ---------------------------------------------------------------------------------


def make_output(kind: str, folder: Path, name: str) -> Path:
    """Something at a path that a file is written to."""
    path, other = folder / name, folder / "other"
    match kind:
        case "file":
            path.write_bytes(b"old")
        case "link":
            other.write_bytes(b"old")
            path.symlink_to("other")
        case "link to a link":
            other.write_bytes(b"old")
            (folder / "between").symlink_to(other)
            path.symlink_to("between")
        case "dangling link":
            path.symlink_to("other")
        case "link to itself":
            path.symlink_to(name)
        case "link to a device":
            path.symlink_to("/dev/full")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
    return path


def attack_output(rng: np.random.Generator) -> None:
    """Write a file to something, on a disk that may be full; it is whole, or nothing changes."""
    kind = OUTPUTS[rng.integers(len(OUTPUTS))]
    name = "n" * int(rng.choice([1, 20, 239, 240, 241, 244, 255, 256, 300]))
    content = rng.bytes(int(rng.choice([0, 1, 4096, 70_000])))
    room = int(rng.choice([10, 5000, 10**9]))
    said = f"{kind}, a name of {len(name)}, {len(content)} bytes with room for {room}"
    with TemporaryDirectory() as place:
        folder = Path(place)
        try:
            path = make_output(kind, folder, name)
        except OSError:  # the name is too long for a link as well
            path = folder / name
        before = snapshot(folder)
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, unlimited[1]))
        refusal = None
        try:
            files.write_whole(path, content)
        except (ValueError, OSError) as error:
            refusal = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        if refusal is None:
            assert path.read_bytes() == content, said
            assert path.is_symlink() == ("link" in kind), said
            assert not [each for each in os.listdir(folder) if each.endswith(".part")], said
        else:
            assert name in refusal, f"{said}: {refusal}"
            assert snapshot(folder) == before, f"{said}: something has changed"


def snapshot(folder: Path) -> dict[str, Any]:
    """The names in a folder, what they are, and the content of files."""
    found = {}
    for path in folder.iterdir():
        mode = path.lstat().st_mode
        found[path.name] = (mode, path.read_bytes() if stat.S_ISREG(mode) else None)
    return found


OUTPUTS = ("nothing", "file", "link", "link to a link", "dangling link", "link to itself")
OUTPUTS += ("link to a device", "folder", "pipe")

ATTACKS: dict[str, Callable[[np.random.Generator], None]] = {
    f"file-{kind}": lambda rng, kind=kind: attack(rng, kind) for kind in READERS
}
ATTACKS["output"] = attack_output

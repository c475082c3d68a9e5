"""Sequences of unequal length: the raw lines read by hand, masks, and rows of images as steps."""

import numpy as np
import pytest
import torch
import yaml

from implementations.data import load, load_card, prepare
from implementations.data.arrays import write_splits
from implementations.data.dataset import ArrayData
from implementations.data.preparation import _recipe
from implementations.data.timeseries import pad, read_ts, write_sequences
from implementations.errors import UserError

HEADER = "#about\n@problemName Toy\n@classLabel true 1 2\n@data\n"


def ts(path, series, labels):
    """Write series (steps, channels) in the ts format; returns the numbers as they stand in the file."""
    lines = [
        ":".join([*(",".join(f"{value:.6f}" for value in channel) for channel in values.T), label])
        for values, label in zip(series, labels)
    ]
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return [np.array([[float(f"{value:.6f}") for value in step] for step in values]) for values in series]


@pytest.fixture(scope="module")
def vowels(tmp_path_factory):
    """A prepared copy of the data set whose utterances are made up, and the file's own numbers."""
    folder = tmp_path_factory.mktemp("vowels")
    card, draws, written = load_card("japanese_vowels"), np.random.default_rng(5), {}
    out = folder / "out"
    out.mkdir()
    for file, per_speaker in zip(card.files, (30, 3)):
        labels = [str(speaker + 1) for speaker in range(9) for _ in range(per_speaker)]
        lengths = draws.permutation(np.resize(np.arange(7, 30), len(labels)))
        series = [draws.normal(3, 2, (length, 12)) * np.arange(1, 13) for length in lengths]
        written[file.name] = ts(folder / file.name, series, labels), labels
    facts = _recipe(card).prepare(folder, out, card)
    summary = facts | {"name": card.name, "data_hash": "", "kind": "sequences"}
    return ArrayData(out, summary), list(written.values())


def steps_of(x_nf):
    return x_nf.view(len(x_nf), 29, 13).numpy()


def test_a_file_is_read_as_its_lines_say(tmp_path):
    (tmp_path / "a.ts").write_text(HEADER + "1,2.5,-3:4,5,6:yes\n\n7:8:no\n")
    series, labels = read_ts(tmp_path / "a.ts")
    assert labels == ["yes", "no"]
    np.testing.assert_array_equal(series[0], [[1, 4], [2.5, 5], [-3, 6]])
    np.testing.assert_array_equal(series[1], [[7, 8]])


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("1,2:3:a\n", "line 5: not channels of numbers, equally many"),
        ("1,x:3,4:a\n", "line 5: not channels of numbers"),
        ("1,2:3,4:a\n1,2:a\n", "line 6: not as many channels"),
        ("1,nan:3,4:a\n", "line 5: not as many channels as before, or a value is missing"),
        ("just a label\n", "line 5"),
        ("", "no samples"),
    ],
)
def test_lines_that_do_not_fit_are_named(tmp_path, lines, told):
    (tmp_path / "a.ts").write_text(HEADER + lines)
    with pytest.raises(UserError, match=told):
        read_ts(tmp_path / "a.ts")


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_masks_are_0_or_1_and_padding_is_0(vowels, split):
    data, _ = vowels
    for x_nf, _ in (data.tensors(split), data.samples(split).take(torch.arange(data.sizes[split]))):
        x_ntc = steps_of(x_nf)
        mask_nt = x_ntc[:, :, -1]
        assert set(np.unique(mask_nt)) == {0.0, 1.0}
        assert (np.diff(mask_nt, axis=1) <= 0).all() and mask_nt.sum(1).min() >= 7  # real steps stand first
        assert not x_ntc[mask_nt == 0].any()


def test_lengths_and_values_are_those_of_the_file(vowels):
    """Normalising is undone by hand: every utterance is in the file, under its speaker, once."""
    data, (train, test) = vowels
    mean_c, std_c = (np.array(data.summary[f"channel_{key}"]) for key in ("mean", "std"))
    x_nf, y_n = data.tensors("test")
    for values, label, steps, y in zip(*test, steps_of(x_nf), y_n.tolist(), strict=True):
        length = int(steps[:, -1].sum())
        assert (length, y) == (len(values), int(label) - 1)
        np.testing.assert_allclose(steps[:length, :-1] * std_c + mean_c, values, atol=1e-4)
    found = []
    for part in ("train", "valid"):
        x_nf, y_n = data.tensors(part)
        for steps, y in zip(steps_of(x_nf), y_n.tolist()):
            length = int(steps[:, -1].sum())
            found.append((y, length, round(float(steps[0, 0] * std_c[0] + mean_c[0]), 2)))
    raw = [(int(label) - 1, len(values), round(values[0, 0], 2)) for values, label in zip(*train)]
    assert sorted(entry[:2] for entry in found) == sorted(entry[:2] for entry in raw)
    assert sum(a[:2] == b[:2] and abs(a[2] - b[2]) < 0.011 for a, b in zip(sorted(found), sorted(raw))) == 270


def test_splits_and_normalisation_follow_real_training_steps(vowels):
    data, _ = vowels
    facts = data.summary["splits"]
    assert facts["train"]["per_class"] == [25] * 9 and facts["valid"]["per_class"] == [5] * 9
    x_ntc = steps_of(data.tensors("train")[0]).astype(float)
    real = x_ntc[x_ntc[:, :, -1] == 1][:, :-1]
    np.testing.assert_allclose(real.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(real.std(0), 1, atol=1e-6)
    assert facts["train"]["steps"] == len(real) and facts["train"]["longest"] <= 29


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match="a series of 5 steps; allowed: up to 4"):
        pad([np.zeros((2, 3)), np.zeros((5, 3))], 4)
    constant = ([np.c_[np.arange(4.0), np.ones(4)]], np.array([0]))
    with pytest.raises(UserError, match="channel 1 is constant"):
        write_sequences(tmp_path, dict.fromkeys(("train", "valid", "test"), constant), 4, 2)


def test_the_card_is_that_of_the_published_set():
    """30 training utterances a speaker; 31, 35, 88, 44, 29, 24, 40, 50 and 29 of test (the UCI page of the set)."""
    sizes = load_card("japanese_vowels").sizes
    assert sizes["train"] + sizes["valid"] == 9 * 30
    assert sizes["test"] == sum((31, 35, 88, 44, 29, 24, 40, 50, 29))


def test_a_whole_preparation(tmp_path, monkeypatch):
    """From a mirror, through the files' hashes, to ``load``."""
    import hashlib
    import shutil

    card, draws = load_card("japanese_vowels"), np.random.default_rng(2)
    folder, mirror = tmp_path / "datasets" / card.name, tmp_path / "mirror" / card.name
    folder.mkdir(parents=True), mirror.mkdir(parents=True)
    values = dict(card.values)
    values["files"] = []
    for file, per_speaker in zip(card.files, (30, 2)):
        labels = [str(speaker + 1) for speaker in range(9) for _ in range(per_speaker)]
        ts(mirror / file.name, [draws.normal(size=(7, 12)) for _ in labels], labels)
        raw = (mirror / file.name).read_bytes()
        digest = hashlib.sha256(raw).hexdigest()
        values["files"].append({"name": file.name, "bytes": len(raw), "sha256": digest})
    values["sizes"] = card.sizes | {"test": 18}
    (folder / "card.yaml").write_text(yaml.safe_dump(values))
    shutil.copy(card.folder / "prepare.py", folder)
    monkeypatch.setenv("PARATRAIN_DATA", str(mirror.parent))
    prepare(card.name, tmp_path / "results", datasets_dir=tmp_path / "datasets")
    data = load(card.name, tmp_path / "results", data_size=100)
    x_nf, y_n = data.tensors("train")
    assert x_nf.shape == (100, 377) and int(y_n.max()) <= 8
    assert steps_of(x_nf)[:, :, -1].sum() == 700


def test_rows_of_images_are_steps(tmp_path):
    """Features of an image stand row by row, so that 28 steps of 28 values are its rows from top to bottom."""
    assert load_card("fashion_mnist").sizes["input_shape"] == [1, 28, 28]
    images = np.random.default_rng(0).integers(0, 256, (6, 1, 28, 28), np.uint8)
    splits = dict.fromkeys(("train", "valid", "test"), (images, np.arange(6) % 2))
    facts = write_splits(tmp_path, splits, 2) | {"name": "toy", "data_hash": ""}
    x_nf, _ = ArrayData(tmp_path, facts).tensors("train")
    rows = x_nf.view(6, 28, 28).numpy() * facts["std"] + facts["mean"]
    for step in range(28):
        np.testing.assert_allclose(rows[:, step], images[:, 0, step, :], atol=1e-3)

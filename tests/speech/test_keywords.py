"""Clips of single words as arrays for training: shapes, order, parts, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from implementations import data
from implementations.data.dataset import ArrayData
from implementations.errors import UserError
from implementations.speech import commands, keywords, spoken
from implementations.speech.keywords import SAMPLES, Clip
from implementations.speech.logmel import PAPER, SMALL, FrontEnd, log_mel

LABELS = ("on", "off")
SIZES = {"train": 6, "valid": 2, "test": 4}
TINY = FrontEnd(mels=8, window=2048, shift=4000, centred=True)


def clips(part):
    draws = np.random.default_rng(len(part))
    for number in range(SIZES[part]):
        samples = draws.normal(size=SAMPLES).astype(np.float32) * 0.1
        samples[: 2000 * number] = 0
        yield Clip(f"{part}{number}", LABELS[number % 2], f"{part}-{number // 4}", samples)


@pytest.fixture
def parts():
    return {part: list(clips(part)) for part in SIZES}


def test_arrays(parts, tmp_path):
    facts = keywords.write(tmp_path, parts, LABELS, TINY)
    assert facts["input_shape"] == [1, 8, 5] and facts["features"] == 40 and facts["classes"] == 2
    assert facts["splits"]["train"] == {"samples": 6, "per_class": [3, 3], "speakers": 2}
    for part in ("valid", "test"):
        x, y = (np.load(tmp_path / f"{part}_{what}.npy") for what in "xy")
        assert x.dtype == np.float16 and y.tolist() == [number % 2 for number in range(SIZES[part])]
        for clip, values in zip(parts[part], x, strict=True):
            np.testing.assert_allclose(values[0], log_mel(clip.samples, TINY), atol=0.032)
    x, y = (np.load(tmp_path / f"train_{what}.npy") for what in "xy")
    expected = [log_mel(clip.samples, TINY).astype(np.float16) for clip in parts["train"]]
    places = [next(n for n, one in enumerate(expected) if np.array_equal(one, values[0])) for values in x]
    assert sorted(places) == list(range(6)) and places != list(range(6))
    assert [place % 2 for place in places] == y.tolist()


def test_every_front_end_has_the_clips_in_one_order(parts, tmp_path):
    orders = []
    for front_end in (TINY, replace(TINY, mels=5)):
        keywords.write(tmp_path, parts, LABELS, front_end)
        orders.append(np.load(tmp_path / "train_y.npy").tolist())
    assert orders[0] == orders[1]


def test_nobody_speaks_in_silence(parts, tmp_path):
    silent = [replace(clip, speaker=None) for part in SIZES for clip in parts[part][:1]]
    parts = {part: [clip, *parts[part][1:]] for part, clip in zip(SIZES, silent)}
    facts = keywords.write(tmp_path, parts, LABELS, TINY)
    assert [facts["splits"][part]["speakers"] for part in SIZES] == [2, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": np.zeros(15999, np.float32)}, r"clip test1: got 15999 samples; needed: 16000"),
        ({"samples": np.zeros((16000, 2), np.float32)}, r"clip test1: got 16000 x 2 samples; needed: 16000"),
        ({"label": "maybe"}, r"clip test1: label 'maybe'; allowed: on, off"),
        (
            {"speaker": "train-1"},
            r"speaker train-1 is in train and in test; each speaker belongs to one part",
        ),
    ],
)
def test_what_is_wrong_is_named(parts, tmp_path, change, message):
    parts["test"][1] = replace(parts["test"][1], **change)
    with pytest.raises(UserError, match=message):
        keywords.write(tmp_path, parts, LABELS, TINY)


def test_batch_normalisation_undoes_that_of_the_data(parts, tmp_path):
    """The paper's nets see the same whether fed decibels, as published, or values of mean 0 and deviation 1."""
    facts = keywords.write(tmp_path, parts, LABELS, TINY)
    loaded = ArrayData(tmp_path, {"name": "toy", "data_hash": "", **facts})
    x_nf = loaded.tensors("train")[0]
    assert x_nf.mean() == pytest.approx(0, abs=1e-5) and x_nf.std(correction=0) == pytest.approx(1, rel=1e-4)
    raw_nf = torch.from_numpy(loaded.split("train").x.reshape(6, -1).astype(np.float64))
    w_of = torch.randn(7, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours, published = (
        torch.nn.functional.batch_norm(one_nf @ w_of.T, None, None, training=True, eps=1e-12)
        for one_nf in (x_nf.double(), raw_nf)
    )
    torch.testing.assert_close(ours, published, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["speech_commands", "generated_keywords"])
def test_cards_agree_with_the_code(name):
    labels = commands.LABELS if name == "speech_commands" else spoken.WORDS
    for suffix, front_end in (("", PAPER), ("_small", SMALL)):
        sizes = data.load_card(name + suffix).sizes
        assert sizes["class_names"] == list(labels) and sizes["classes"] == len(labels)
        assert sizes["input_shape"] == [1, front_end.mels, front_end.frames(SAMPLES)]

"""Images computed by number: published random numbers, the teacher done by hand in whole numbers, order and memory."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal, stats

from implementations.data import load, load_card, prepare
from implementations.data.generated_images import GeneratedImages, _amplitudes, splitmix64
from implementations.errors import UserError
from implementations.seeds import derive

SPLITS = ("train", "valid", "test")


def images(data_size=None, name="generated_images", **generator):
    values = load_card("generated_images").values
    summary = {
        "name": name,
        "classes": 10,
        "input_shape": [1, 28, 28],
        "features": 784,
        "data_hash": "",
        "splits": {part: {"samples": 3000} for part in SPLITS},
        "generator": values["generator"] | generator,
    }
    return GeneratedImages(summary, data_size)


def test_random_numbers_are_splitmix64s():
    """The first five outputs of seed 1234567, as published with the reference implementation's C code."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(1234567, np.arange(5, dtype=np.uint64)).tolist() == published
    assert splitmix64(1234567, np.array([3], np.uint64)).tolist() == published[3:4]


def test_amplitudes_are_sums_of_bytes():
    numbers = np.array([0, 2**64 - 1, 0x0102030405060708, 0xFF00FF00FF00FF00, 255], np.uint64)
    expected = [sum(int(number).to_bytes(8, "big")) - 1020 for number in numbers]
    assert _amplitudes(numbers).tolist() == expected == [-1020, 1020, 36 - 1020, 0, -765]
    many = _amplitudes(splitmix64(3, np.arange(50_000, dtype=np.uint64)))
    sd = np.sqrt(8 * (256**2 - 1) / 12)
    assert abs(many.mean()) < 5 * sd / np.sqrt(50_000) and abs(many.std() / sd - 1) < 0.02
    assert stats.kstest(many[:2000] / sd, "norm").pvalue > 1e-4  # eight bytes are nearly normal


def test_images_and_labels_done_by_hand():
    """Cosines summed in whole numbers; then scipy's correlation of the image itself, hard tanh, matrix product."""
    data = images(label_noise=0.0)
    x_np, y_n = data.tensors("valid", np.array([7, 2999]))
    pixels = np.arange(28) + 0.5
    for x_p, y, index in zip(x_np.numpy(), y_n, (7, 2999)):
        seed = derive(0, "data", "generated_images", "valid")
        numbers = splitmix64(seed, np.arange(64 * index, 64 * index + 49, dtype=np.uint64))
        image = np.zeros((28, 28), dtype=object)  # Python's whole numbers
        for place, number in enumerate(numbers):
            amplitude = sum(int(number).to_bytes(8, "big")) - 1020
            k, m = divmod(place, 7)
            wave = np.outer(np.cos(np.pi * k * pixels / 28), np.cos(np.pi * m * pixels / 28))
            image += amplitude * np.rint(64 / (1 + np.hypot(k, m)) * wave).astype(int).astype(object)
        whole = image.astype(np.int64)
        np.testing.assert_array_equal(x_p.reshape(28, 28), (whole * data._scale).astype(np.float32))
        units = np.concatenate(
            [
                signal.correlate(whole, kernel.astype(np.int64).reshape(5, 5), "valid")[::4, ::4].ravel()
                for kernel in data._kernels_fk
            ]
        )
        scores = np.clip(units, -int(data._clip), int(data._clip)) @ data._w_uc.astype(np.int64)
        assert scores.argmax() == y


@given(st.lists(st.integers(0, 2999), max_size=30), st.sampled_from(SPLITS))
@settings(max_examples=25)
def test_an_index_is_one_sample_whatever_is_asked_beside_it(indices, split):
    data = images()
    whole_x, whole_y = images(5_000_000).tensors(split, np.arange(3000))
    x_np, y_n = data.tensors(split, np.array(indices, int))
    assert x_np.equal(whole_x[indices]) and y_n.equal(whole_y[indices])
    shard = np.arange(1, 3000, 2)
    rows = torch.tensor([index // 2 for index in indices], dtype=torch.int64)
    taken = data.samples(split, shard).take(rows)
    places = 2 * rows + 1
    assert taken[0].equal(whole_x[places]) and taken[1].equal(whole_y[places])
    assert data.labels(split).tolist() == whole_y.tolist()


def test_five_million_samples_and_more():
    data = images(5_000_000)
    x_np, y_n = data.samples("train").take(torch.tensor([4_999_999, 0]))
    assert x_np.shape == (2, 784) and not x_np[0].equal(x_np[1]) and int(y_n.min()) >= 0
    larger = images(5 * 10**9).tensors("train", np.array([0, 4_999_999, 4_999_999_999]))
    assert larger[0][0].equal(x_np[1]) and larger[0][1].equal(x_np[0])
    with pytest.raises(IndexError):
        data.tensors("train", np.array([5_000_000]))
    with pytest.raises(UserError, match="data_size 0 of generated_images"):
        images(0)


def test_values_are_normalised_and_smooth_and_samples_differ():
    x = images().tensors("train")[0].view(-1, 28, 28)
    assert abs(float(x.mean())) < 0.05 and abs(float(x.std()) - 1) < 0.05
    steps = (x[:, 1:] - x[:, :-1]).square().mean()
    assert 0 < float(steps) < 0.15  # of noise it would be 2
    others = [images(name=name).tensors(split)[0] for name, split in
              (("generated_images", "train"), ("generated_images", "test"), ("others", "train"))]  # fmt: skip
    flat = np.array([other.numpy().ravel() for other in others])
    correlation = np.corrcoef(flat)[np.triu_indices(3, 1)]
    assert np.abs(correlation).max() < 0.03


def test_class_shares_and_noise():
    noisy, clean = images(30_000), images(30_000, label_noise=0.0)
    y_n, clean_n = noisy.labels("train"), clean.labels("train")
    shares = np.bincount(clean_n, minlength=10) / 30_000
    assert shares.min() > 0.06 and shares.max() < 0.14
    moved = y_n[y_n != clean_n] - clean_n[y_n != clean_n]
    assert abs(len(moved) / 30_000 - 0.1) < 5 * (0.09 / 30_000) ** 0.5
    counts = np.bincount(moved % 10, minlength=10)
    assert counts[0] == 0 and stats.chisquare(counts[1:]).pvalue > 1e-4  # to any other class alike


def test_memory_stays_that_of_a_block():
    data = images(5_000_000)
    samples = data.samples("train", np.arange(0, 5_000_000, 25))  # 200,000 of them
    assert len(samples) == 200_000
    order = torch.randperm(200_000, generator=torch.Generator().manual_seed(1))

    def peak(rows, size):
        tracemalloc.start()
        for some in rows.split(size):
            samples.take(some)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    first = peak(order[:2000], 1000)
    assert peak(order, 1000) < 1.1 * first < 12e6  # 3.1 MB are the images of 1,000


def test_prepare_writes_just_a_summary(results_dir):
    summary = prepare("generated_images", results_dir)
    assert [path.name for path in summary.parent.iterdir()] == ["summary.json"]
    data = load("generated_images", results_dir, data_size=3_000_000)
    assert isinstance(data, GeneratedImages) and data.sizes["train"] == 3_000_000
    assert data.summary["splits"]["test"]["per_class"] == np.bincount(data.labels("test")).tolist()
    stored = data.split("valid")
    assert stored.x.shape == (10_000, 1, 28, 28) and stored.y.tolist() == data.labels("valid").tolist()
    # Another machine must have the same data to the bit.
    assert data.summary["fingerprint"].startswith(FINGERPRINT)


FINGERPRINT = "b6127c7f37ed5ff10032911641807f990f85c202397b1f7df53e5c8d124b7946"


@pytest.mark.parametrize(
    ("generator", "told"), [({"waves": 2}, "4 waves"), ({"clip": 1e12}, "sums are too large to be exact")]
)
def test_teachers_that_do_not_do(generator, told):
    with pytest.raises(UserError, match=told):
        images(**generator)

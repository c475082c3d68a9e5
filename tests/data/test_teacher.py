import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.data import load, load_card, prepare
from implementations.data.teacher import TeacherData, describe_teacher
from implementations.errors import UserError


def teacher(data_size=None, name="teacher", **generator):
    summary = {
        "name": name,
        "classes": 10,
        "input_shape": [64],
        "features": 64,
        "data_hash": "",
        "splits": {part: {"samples": 1000} for part in ("train", "valid", "test")},
        "generator": {"hidden": 32, "gain": 2.0, "label_noise": 0.1, "chunk": 100} | generator,
    }
    return TeacherData(summary, data_size)


@given(st.data(), st.sampled_from(["train", "valid", "test"]))
@settings(max_examples=40)
def test_any_part_is_the_same_whoever_asks(data, split):
    whole = teacher()
    x, y = whole.tensors(split)
    first, last = sorted(data.draw(st.tuples(st.integers(0, 1000), st.integers(0, 1000))))
    other = teacher(data_size=1000)
    pieces = list(other.stream(split, first, last))
    assert all(len(piece) <= 100 for piece, _ in pieces)
    assert np.array_equal(np.concatenate([x[:0], *(piece for piece, _ in pieces)]), x[first:last])
    assert np.array_equal(np.concatenate([y[:0], *(labels for _, labels in pieces)]), y[first:last])
    indices = np.array(data.draw(st.lists(st.integers(0, 999), max_size=30)), int)
    some_x, some_y = other.tensors(split, indices)
    assert some_x.equal(x[indices]) and some_y.equal(y[indices])


@given(st.permutations(range(8)))
@settings(max_examples=10)
def test_chunks_do_not_depend_on_the_order_of_asking(order):
    data, reference = teacher(), teacher()
    chunks = {index: data.chunk("train", index) for index in order}
    for index in range(8):
        x, y = reference.chunk("train", index)
        assert chunks[index][0].equal(x) and chunks[index][1].equal(y)


def test_a_larger_set_begins_with_the_smaller():
    small, large = teacher(250).tensors("train"), teacher(5_000_000).tensors("train", np.arange(250))
    assert small[0].equal(large[0]) and small[1].equal(large[1])
    last_x, last_y = teacher(5_000_000).tensors("train", np.array([4_999_999]))
    assert last_x.shape == (1, 64) and 0 <= last_y.item() < 10


def test_chunks_splits_and_names_differ():
    data = teacher()
    samples = [data.chunk(split, index)[0] for split in ("train", "valid", "test") for index in range(5)]
    samples.append(teacher(name="teacher2").chunk("train", 0)[0])
    for one, other in itertools.combinations(samples, 2):
        assert (
            abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 / 6400**0.5
        )  # five sigma of no correlation


def test_inputs_are_standard_normal():
    from scipy import stats

    x = teacher().tensors("train")[0].numpy().ravel()
    assert stats.kstest(x, "norm").pvalue > 1e-4


def test_class_shares_and_noise():
    """No class is rare, and the labels that noise moves are as many as asked for, never left where they were."""
    noisy, clean = teacher(20_000), teacher(20_000, label_noise=0.0)
    (x, y), (x_clean, y_clean) = noisy.tensors("train"), clean.tensors("train")
    assert x.equal(x_clean)
    share = (y != y_clean).double().mean().item()
    assert abs(share - 0.1) < 5 * (0.1 * 0.9 / 20_000) ** 0.5
    shares = np.bincount(y, minlength=10) / 20_000
    assert shares.min() > 0.05 and shares.max() < 0.15


def test_labels_are_those_of_a_two_layer_tanh_network():
    data = teacher(label_noise=0.0)
    x, y = data.chunk("valid", 3)
    hidden = np.tanh(np.einsum("nf,fh->nh", x.numpy().astype(float), data._w_fh))
    np.testing.assert_array_equal(np.einsum("nh,hc->nc", hidden, data._w_hc).argmax(1), y)


def test_a_stream_needs_the_memory_of_a_chunk():
    data = teacher(100 * 1000, chunk=1000)

    def peak(last):
        tracemalloc.start()
        samples = sum(len(y) for _, y in data.stream("train", 0, last))
        assert samples == last
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(1000)
    assert peak(100_000) < 1.2 * peak(5_000) < 0.2 * 100_000 * 64 * 4


def test_prepare_writes_just_a_summary(results_dir):
    summary = prepare("teacher", results_dir)
    assert [path.name for path in summary.parent.iterdir()] == ["summary.json"]
    data = load("teacher", results_dir, data_size=3_000_000)
    assert data.sizes == {"train": 3_000_000, "valid": 10_000, "test": 10_000}
    assert (data.features, data.classes, data.input_shape) == (64, 10, (64,))
    counted = np.bincount(data.test.y, minlength=10).tolist()
    assert data.summary["splits"]["test"] == {"samples": 10_000, "per_class": counted}
    with pytest.raises(UserError, match="data_size 0 of teacher"):
        load("teacher", results_dir, data_size=0)


def test_the_fingerprint_follows_the_generator():
    card = load_card("teacher")
    facts = describe_teacher(card)
    assert facts["fingerprint"] == describe_teacher(card)["fingerprint"]
    changed = card.values | {"generator": card.values["generator"] | {"gain": 2.5}}
    assert facts["fingerprint"] != describe_teacher(type(card)(card.folder, changed))["fingerprint"]


def test_a_teacher_too_small_for_its_classes():
    with pytest.raises(UserError, match=r"generator\.hidden: got 5; allowed: at least classes, 10"):
        teacher(hidden=5)

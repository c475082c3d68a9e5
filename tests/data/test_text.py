"""Windows of characters, against slices of the text."""

import sqlite3
import tracemalloc
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from implementations.data import load_card
from implementations.data.preparation import _recipe
from implementations.data.text import CharacterData, write_text
from implementations.errors import UserError

STEPS, STRIDE, CLASSES = 5, 3, 30
TEXT = "the quick brown fox jumps over the lazy dog. " * 20


def made(folder, text=TEXT, steps=STEPS, stride=STRIDE, data_size=None):
    facts = write_text(folder, text, steps, CLASSES, stride) | {
        "name": "toy",
        "data_hash": "",
        "kind": "text",
    }
    return CharacterData(folder, facts, data_size)


def decoded(data, x_nf):
    """Each sample's characters; every step must have one 1 among zeros."""
    x_nts = x_nf.view(len(x_nf), data.steps, data.classes)
    assert (x_nts.sum(2) == 1).all() and ((x_nts == 0) | (x_nts == 1)).all()
    return ["".join(data.summary["symbols"][code] for code in codes) for codes in x_nts.argmax(2)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return made(tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize(("split", "stride"), [("train", 1), ("valid", STRIDE), ("test", STRIDE)])
def test_windows_are_the_text(data, split, stride):
    cuts = {"train": (0, 810), "valid": (810, 855), "test": (855, 900)}  # 90, 5 and 5 % of 900
    part = TEXT[slice(*cuts[split])]
    expected = [
        (part[i : i + STEPS], part[i + STEPS]) for i in range(0, len(part) - STEPS, stride)
    ]  # no window crosses a cut
    x_nf, y_n = data.tensors(split)
    assert (x_nf.dtype, y_n.dtype) == (torch.float32, torch.int64)
    symbols = sorted(set(TEXT))
    assert list(zip(decoded(data, x_nf), [symbols[y] for y in y_n])) == expected
    assert data.sizes[split] == len(expected)
    stored, labels = data.split(split)
    assert ["".join(symbols[code] for code in codes) for codes in stored] == [w for w, _ in expected]
    assert labels.tolist() == y_n.tolist() == data.labels(split).tolist()
    assert np.may_share_memory(stored, data._codes)  # a view of the text


@given(st.lists(st.integers(0, 800), max_size=20), st.sampled_from([None, 0, 7]))
@settings(max_examples=30)
def test_an_index_is_one_sample_whatever_is_asked_beside_it(data, indices, only):
    whole_x, whole_y = data.tensors("train")
    chosen = np.array(indices, int)
    if only is None:
        x_nf, y_n = data.samples("train").take(torch.from_numpy(chosen))
    else:  # of a shard that begins later
        some = data.samples("train", np.arange(only, 805))
        chosen = chosen[chosen >= only]
        x_nf, y_n = some.take(torch.from_numpy(chosen - only))
        assert len(some) == 805 - only
    assert x_nf.shape == (len(chosen), data.features)
    assert x_nf.equal(whole_x[chosen]) and y_n.equal(whole_y[chosen])


def test_data_size_is_a_shorter_text(data, tmp_path):
    short = made(tmp_path, data_size=100)
    x_nf, y_n = short.tensors("train")
    whole_x, whole_y = data.tensors("train")
    assert x_nf.equal(whole_x[:100]) and y_n.equal(whole_y[:100])
    assert len(short.labels("train")) == len(short.split("train").x) == 100
    assert short.tensors("test")[0].equal(data.tensors("test")[0])
    for size in (0, 10**6):
        with pytest.raises(UserError, match="allowed: 1 to 805"):
            made(tmp_path, data_size=size)
    with pytest.raises(IndexError):
        short.samples("train", np.array([100]))


def test_no_samples_for_a_process_that_reads_none(data):
    x_nf, y_n = data.samples("train", np.empty(0, np.int64)).take(torch.empty(0, dtype=torch.int64))
    assert x_nf.shape == (0, data.features) and y_n.shape == (0,)


def test_memory_is_that_of_a_minibatch(tmp_path):
    text = "".join(np.random.default_rng(0).choice(list("abcdefghijklmnopqrstuvwxyz \n"), 300_000))
    long = made(tmp_path, text, steps=32)
    rows = torch.randperm(long.sizes["train"], generator=torch.Generator().manual_seed(1))[:6400]
    samples = long.samples("train")
    tracemalloc.start()
    for some in rows.view(-1, 64):
        samples.take(some)
    for _ in long.stream("train", 0, 3000):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6  # numpy's own; the windows would take a gigabyte


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("".join(map(chr, range(31))) * 9, "31 symbols; allowed: 30"),
        ("ab" * 5, "valid has 0"),
        ("abc" * 30, "valid has 4"),
    ],
)
def test_texts_that_do_not_do(tmp_path, text, told):
    with pytest.raises(UserError, match=told):
        write_text(tmp_path, text, STEPS, CLASSES, STRIDE)


def test_shakespeare_is_prepared_from_its_file(tmp_path):
    """The card's sizes follow from the text's length by the same rule."""
    card = load_card("shakespeare")
    assert card.files[0].bytes == 1_115_394
    train, held = int(0.9 * 1_115_394), int(0.05 * 1_115_394)
    rest = 1_115_394 - train - held
    ends = {"train": train - 32, "valid": -(-(held - 32) // 8), "test": -(-(rest - 32) // 8)}
    assert {part: card.sizes[part] for part in ends} == ends
    (tmp_path / "input.txt").write_text(TEXT * 10)
    facts = _recipe(card).prepare(tmp_path, tmp_path, card)
    assert facts["input_shape"] == [32, 65] and facts["splits"]["valid"]["stride"] == 8


def test_the_bible_loses_its_numbers_and_nothing_else(tmp_path):
    card, text = load_card("king_james"), []
    assert load_card("shakespeare").stand_in == card.name
    with closing(sqlite3.connect(tmp_path / "Bible.db")) as database:
        database.execute(
            "CREATE TABLE Bible(TestamentID INT, BookID INT, ChapterID INT, VerseID INT, Passage1 TEXT, Passage2 TEXT)"
        )
        for verse in reversed(range(1, 120)):
            plain = f"And verse {'x' * (verse % 7)} was said;"
            rows = (f"3:{verse} {plain} 3:{verse + 1000} So it was.", "And more." if verse % 50 == 0 else "")
            database.execute("INSERT INTO Bible VALUES (1, 2, 3, ?, ?, ?)", (verse, *rows))
            text[:0] = [f"{plain} So it was.", *(["And more."] if rows[1] else [])]
        database.commit()
    facts = _recipe(card).prepare(tmp_path, tmp_path, card)
    codes = np.load(tmp_path / "codes.npy")
    assert "".join(facts["symbols"][code] for code in codes) == "\n".join(text)

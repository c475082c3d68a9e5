"""Files of the extreme-classification format, against scikit-learn's reader of the same lines, and mistakes in them."""

import gzip
import lzma

import numpy as np
import pytest
from sklearn.datasets import load_svmlight_file

from implementations.data import load_card, xc
from implementations.data.preparation import _recipe
from implementations.data.sparse import SparseData
from implementations.errors import UserError

FILE = "3 10 6\n4,0 7:0.5 2:1.5\n 9:-2\n5 0:1e-3 1:.25 3:4.\n"


def write(path, text):
    path.write_text(text)
    return path


def test_points_are_those_of_the_lines(tmp_path):
    points = xc.read(write(tmp_path / "train.txt", FILE))
    x = np.zeros((3, 10))
    x[0, [2, 7]], x[1, 9], x[2, [0, 1, 3]] = [1.5, 0.5], -2, [1e-3, 0.25, 4]
    y = np.zeros((3, 6))
    y[0, [0, 4]], y[2, 5] = 1, 1
    np.testing.assert_array_equal(points.features.toarray(), x.astype(np.float32))
    np.testing.assert_array_equal(points.labels.toarray(), y)
    assert points.features.dtype == np.float32 and points.features.indices.tolist() == [2, 7, 9, 0, 1, 3]


@pytest.mark.parametrize("block", [1, 2, 7, 4096])
def test_against_scikit_learn_in_blocks_of_any_size(tmp_path, monkeypatch, block):
    monkeypatch.setattr(xc, "_BLOCK", block)
    draws = np.random.default_rng(1)
    lines = []
    for _ in range(20):
        labels = ",".join(map(str, draws.permutation(30)[: draws.integers(1, 5)]))
        features = sorted(draws.permutation(50)[: draws.integers(1, 20)])
        lines.append(labels + "".join(f" {at}:{draws.normal():.6f}" for at in features))
    body = write(tmp_path / "body", "\n".join(lines) + "\n")
    points = xc.read(write(tmp_path / "whole", f"20 50 30\n{body.read_text()}"))
    x, y = load_svmlight_file(str(body), n_features=50, multilabel=True, zero_based=True, dtype=np.float32)
    np.testing.assert_array_equal(points.features.toarray(), x.toarray())
    assert [tuple(row.nonzero()[0]) for row in points.labels.toarray()] == y


def test_packed_files_and_line_ends(tmp_path):
    plain = xc.read(write(tmp_path / "a.txt", FILE))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(FILE.encode()))
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(FILE.encode()))
    write(tmp_path / "dos.txt", FILE.replace("\n", "\r\n"))
    write(tmp_path / "no_end.txt", FILE.rstrip("\n"))
    write(tmp_path / "blank_end.txt", FILE + "\n \n")
    for name in ("a.txt.gz", "a.txt.xz", "dos.txt", "no_end.txt", "blank_end.txt"):
        other = xc.read(tmp_path / name)
        assert (other.features != plain.features).nnz == 0 and (other.labels != plain.labels).nnz == 0, name
    (tmp_path / "cut.xz").write_bytes(lzma.compress(FILE.encode())[:-20])
    (tmp_path / "not.gz").write_bytes(FILE.encode())
    for name in ("cut.xz", "not.gz"):
        with pytest.raises(UserError, match=f"{name}: not a whole"):
            xc.read(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("3 10 6", "3 10"), r"line 1: got '3 10'; needed: points features labels"),
        (("3 10 6\n", ""), r"line 1: got '4,0 7:0.5 2:1.5'; needed: points"),
        (("3 10 6", "0 10 6"), r"line 1: got '0 10 6'"),
        (("3 10 6", "3 3000000000 6"), r"line 1: got '3 3000000000 6'.*three counts from 1 to 2147483647"),
        (("3 10 6", "3 10 2147483648"), r"line 1: got '3 10 2147483648'"),
        (("3 10 6", "9" * 5000 + " 10 6"), r"line 1: got '9999"),
        (("3 10 6", "-3 10 6"), r"line 1: got '-3 10 6'"),
        (("3 10 6", "2147483647 10 6"), r"ends after line 4, with 3 points; its header says 2147483647"),
        (("3 10 6", "5 10 6"), r"ends after line 4, with 3 points; its header says 5"),
        (("3 10 6", "2 10 6"), r"line 4: one point more than the 2 of the header"),
        (("3 10 6", "3 9 6"), r"line 3: feature 9 is out of range; by the header: 0 to 8"),
        (("3 10 6", "3 10 5"), r"line 4: label 5 is out of range; by the header: 0 to 4"),
        (("9:-2", "99999999999999999999:-2"), r"line 3: feature 99999999999999999999 is out of range"),
        (("9:-2", "9" * 5000 + ":-2"), r"line 3: a feature that is no number"),
        (("7:0.5", "2:0.5"), r"line 2: feature 2 stands twice"),
        (("4,0", "4,4"), r"line 2: label 4 stands twice"),
        (("9:-2", "9:nan"), r"line 3: got ' 9:nan'; needed: label,label feature:value"),
        (("9:-2", "9:1e99"), r"line 3: a value is out of the range of float32"),
        (("9:-2", "9:-"), r"line 3: could not convert string to float"),
        (("9:-2", "9 :-2"), r"line 3: got ' 9 :-2'"),
        (("9:-2", "-9:2"), r"line 3: got ' -9:2'"),
        (("2:1.5", "2:1:5"), r"line 2: got '4,0 7:0.5 2:1:5'"),
        (("4,0", "4, 0"), r"line 2: got '4, 0 7:0.5 2:1.5'"),
        (("5 0:1e-3", "5,\xff 0:1"), r"line 4: got '5,"),
    ],
)
@pytest.mark.parametrize("block", [1, 4096])
def test_mistakes_name_file_and_line(tmp_path, monkeypatch, change, said, block):
    monkeypatch.setattr(xc, "_BLOCK", block)
    path = write(tmp_path / "train.txt", FILE.replace(*change))
    with pytest.raises(UserError, match=rf"train\.txt: {said}"):
        xc.read(path)


def test_points_without_a_label(tmp_path):
    path = write(tmp_path / "train.txt", FILE)
    kept = xc.labelled(xc.read(path), path)
    assert kept.labels.indices.tolist() == [0, 4, 5] and kept.features.indices.tolist() == [2, 7, 0, 1, 3]
    path = write(tmp_path / "hidden.txt", "2 10 6\n 1:1\n 2:1\n")
    with pytest.raises(UserError, match=r"hidden\.txt: none of its 2 points has a label"):
        xc.labelled(xc.read(path), path)


def made(path, first, points, header=None):
    """Point i has the one feature i with value i + 1, and the labels i and i + 1."""
    lines = [f"{at},{at + 1} {at}:{at + 1}" for at in range(first, first + points)]
    return write(path, "\n".join([header or f"{points} 60 61", *lines]) + "\n")


def test_prepared_from_two_files(tmp_path, monkeypatch):
    """The licensed set reads the user's folder; nothing but the points' order and the split is its own."""
    folder = tmp_path / "amazon670k"
    folder.mkdir()
    train, test = made(folder / "train.txt", 0, 40), made(folder / "test.txt", 40, 15)
    (folder / "test.txt.xz").write_bytes(lzma.compress(test.read_bytes()))
    test.unlink()
    monkeypatch.setenv("PARATRAIN_DATA", str(tmp_path))
    card, facts = load_card("amazon670k"), []
    for out in (tmp_path / "out", tmp_path / "again"):
        out.mkdir()
        facts.append(_recipe(card).prepare(None, out, card))
    data = SparseData(tmp_path / "out", facts[0] | {"name": "toy", "data_hash": ""})
    assert data.sizes == {"train": 36, "valid": 4, "test": 15} and data.features == 60 and data.classes == 61
    x, y = {}, {}
    for part in data.sizes:
        x[part], y[part] = data.split(part)
        row = x[part].indices
        assert x[part].data.tolist() == [at + 1 for at in row]
        assert y[part].tolist() == [[at, at + 1] for at in row]
    assert sorted([*x["train"].indices, *x["valid"].indices]) == list(range(40))
    assert x["test"].indices.tolist() == list(range(40, 55))
    assert x["train"].indices.tolist() != sorted(x["train"].indices)
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    train.unlink()
    with pytest.raises(
        UserError, match=r"no train\.txt; needed: train\.txt or train\.txt\.gz or train\.txt\.xz"
    ):
        _recipe(card).prepare(None, tmp_path / "out", card)


def test_two_files_that_do_not_belong_together(tmp_path):
    train, test = made(tmp_path / "train.txt", 0, 20), made(tmp_path / "test.txt", 20, 9, header="9 60 62")
    with pytest.raises(
        UserError, match=r"train\.txt and .*test\.txt: line 1: numbers of features and labels differ"
    ):
        xc.prepare(train, test, tmp_path, "toy")
    with pytest.raises(UserError, match=r"4 points with a label; needed: 10 or more"):
        xc.prepare(made(tmp_path / "few.txt", 0, 4), train, tmp_path, "toy")


@pytest.mark.data
def test_delicious_has_the_repository_s_counts(results_dir):
    from implementations import data
    from implementations.data import sources
    from implementations.data.summary import read_summary

    try:
        folder = data.prepare("delicious", results_dir).parent
    except sources.NotFetched as error:
        if "damaged" in str(error):
            raise
        pytest.skip(str(error))
    summary = read_summary(folder)
    splits = summary["splits"]
    assert (summary["features"], summary["classes"]) == (500, 983)
    assert splits["train"]["samples"] + splits["valid"]["samples"] == 12_920 - 13
    assert splits["test"]["samples"] == 3185 - 1
    labels = sum(part["labels"] for part in splits.values())
    assert labels / (12_920 + 3185) == pytest.approx(19.0, abs=0.05)

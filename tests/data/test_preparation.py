import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.datasets import load_digits

from implementations.data import load, prepare, sources, status
from implementations.data.arrays import split_indices, write_splits
from implementations.data.summary import read_summary
from implementations.errors import UserError


@pytest.fixture
def prepared(toy):
    toy.mirror()
    return prepare("toy", **toy.where).parent


def test_plain_arrays_and_a_summary(toy, prepared):
    files = {path.name for path in prepared.iterdir()}
    assert files == {f"{part}_{axis}.npy" for part in ("train", "valid", "test") for axis in "xy"} | {
        "summary.json"
    }
    summary = json.loads((prepared / "summary.json").read_text())
    assert summary["splits"]["train"] == {"samples": 8, "per_class": [4, 4]}
    assert summary["mean"] == 7.5  # of 0..15
    assert summary["std"] == pytest.approx((255 / 12) ** 0.5, rel=1e-15)  # discrete uniform: (n^2 - 1) / 12
    assert summary["licence"] == "CC0-1.0" and summary["features"] == 2


def test_prepared_once(toy, prepared, monkeypatch):
    monkeypatch.setattr(sources, "fetch", lambda *arguments: pytest.fail("fetched again"))
    before = os.stat(prepared / "summary.json").st_mtime_ns
    prepare("toy", **toy.where, verify=True)
    assert os.stat(prepared / "summary.json").st_mtime_ns == before
    assert status("toy", **toy.where)["state"] == "present"


@pytest.mark.parametrize("damage", ["cut", "gone", "edited summary", "no summary"])
def test_damage_is_found_named_and_mended(toy, prepared, caplog, damage):
    whole, file = (prepared / "train_x.npy").read_bytes(), prepared / "train_x.npy"
    if damage == "cut":
        file.write_bytes(whole[:-1])
    elif damage == "gone":
        file.unlink()
    elif damage == "edited summary":
        file = prepared / "summary.json"
        file.write_text(file.read_text().replace("7.5", "7.4"))
    else:
        file = prepared
        (prepared / "summary.json").unlink()
    with pytest.raises(UserError, match=rf"{file}.*run: python -m implementations prepare toy"):
        load("toy", toy.results_dir)
    assert status("toy", **toy.where)["state"] == "can be had"
    caplog.set_level(logging.INFO)
    prepare("toy", **toy.where)
    assert str(file) in caplog.text
    assert (prepared / "train_x.npy").read_bytes() == whole


def test_a_changed_bit_is_found_on_request(toy, prepared):
    path = prepared / "train_x.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    load("toy", toy.results_dir)
    with pytest.raises(UserError, match="sha256 is not the recorded one"):
        load("toy", toy.results_dir, verify=True)
    prepare("toy", **toy.where, verify=True)
    assert path.read_bytes() == whole


def test_a_changed_recipe_prepares_again_and_the_same_data_keeps_its_hash(toy, prepared):
    before = read_summary(prepared)
    recipe = toy.folder / "prepare.py"
    recipe.write_text("# a remark\n" + recipe.read_text())
    after = read_summary(prepare("toy", **toy.where).parent)
    assert after["recipe_hash"] != before["recipe_hash"] and after["data_hash"] == before["data_hash"]
    recipe.write_text(recipe.read_text().replace("x[rows]", "x[rows] + 1"))
    assert read_summary(prepare("toy", **toy.where).parent)["data_hash"] != before["data_hash"]


def test_an_interrupted_preparation_leaves_the_old_or_nothing(toy):
    toy.mirror()
    recipe = toy.folder / "prepare.py"
    whole = recipe.read_text()
    recipe.write_text(whole.replace("return write_splits", "write_splits") + "    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        prepare("toy", **toy.where)
    data = toy.results_dir / "data"
    assert [path.name for path in data.iterdir()] == [".toy.lock"]
    recipe.write_text(whole)
    prepare("toy", **toy.where)
    before = (data / "toy/summary.json").read_bytes()
    recipe.write_text("raise RuntimeError\n")
    with pytest.raises(RuntimeError):
        prepare("toy", **toy.where)
    assert (data / "toy/summary.json").read_bytes() == before
    load("toy", toy.results_dir, verify=True)


def test_a_killed_preparation_leaves_nothing_in_the_way(toy, root):
    toy.mirror()
    recipe = toy.folder / "prepare.py"
    whole = recipe.read_text()
    recipe.write_text(whole.replace("return write_splits", "write_splits") + "    import os; os._exit(9)\n")
    script = f"from implementations.data import prepare; prepare('toy', {str(toy.results_dir)!r}, datasets_dir={{!r}})"
    killed = subprocess.run([sys.executable, "-c", script.format(str(toy.datasets_dir))], cwd=root)
    assert killed.returncode == 9
    left = {path.name for path in (toy.results_dir / "data").iterdir()}
    assert len(left) == 2 and "toy" not in left
    recipe.write_text(whole)
    prepare("toy", **toy.where)
    assert {path.name for path in (toy.results_dir / "data").iterdir()} == {".toy.lock", "toy"}


def test_many_at_once_prepare_once(toy, monkeypatch):
    toy.mirror()
    fetches, fetch = [], sources.fetch
    monkeypatch.setattr(sources, "fetch", lambda *arguments: fetches.append(1) or fetch(*arguments))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: prepare("toy", **toy.where), range(8)))
    assert len(fetches) == 1


def test_no_room_and_no_permission_name_the_path(toy):
    toy.results_dir.write_text("a file where a folder should be")
    toy.mirror()
    with pytest.raises(UserError, match=r"cannot prepare data set 'toy' in .*results/data/toy"):
        prepare("toy", **toy.where)


def test_a_card_with_wrong_counts(toy):
    toy.mirror()
    toy.card["sizes"] |= {"valid": 3, "input_shape": [1, 2]}
    toy.write([{"local": "../mirror"}])
    with pytest.raises(
        UserError, match=r"sizes\.valid: the card says 3, got 2; sizes\.input_shape: .*\[1, 2\], got \[2\]"
    ):
        prepare("toy", **toy.where)


def test_nominal_sizes_need_not_be_met_but_the_shape_must(toy):
    toy.mirror()
    toy.card["sizes"] |= {"valid": 3, "classes": 5, "nominal": True}
    toy.write([{"local": "../mirror"}])
    assert load_summary(toy)["splits"]["valid"]["samples"] == 2
    toy.card["sizes"]["input_shape"] = [3]
    toy.write([{"local": "../mirror"}])
    with pytest.raises(UserError, match=r"sizes\.input_shape: the card says \[3\], got \[2\]"):
        prepare("toy", **toy.where)


def load_summary(toy):
    return read_summary(prepare("toy", **toy.where).parent)


def test_tensors(toy, prepared):
    data = load("toy", toy.results_dir, data_size=7)
    x, y = data.tensors("train")
    assert x.shape == (7, 2) and y.shape == (7,) and x.is_contiguous()
    full = load("toy", toy.results_dir).tensors("train")[0]
    assert abs(full.mean()) < 1e-6 and full.std(correction=0) == pytest.approx(1, abs=1e-6)
    some, labels = data.tensors("train", np.array([6, 0, 6]))
    assert some.equal(x[[6, 0, 6]]) and labels.equal(y[[6, 0, 6]])
    assert data.tensors("valid", np.array([], int))[0].shape == (0, 2)
    for wrong in ([7], [-1], [0.5], [True]):
        with pytest.raises(IndexError, match=r"integers in 0\.\.6"):
            data.tensors("train", np.array(wrong))
    pieces = list(data.stream("train", 2, 6))
    assert pieces[0][0].equal(x[2:6])
    x.zero_()  # the caller's own
    assert load("toy", toy.results_dir).tensors("train")[0].equal(full)
    for wrong in (0, 9):
        with pytest.raises(UserError, match=r"data_size .* allowed: 1 to 8"):
            load("toy", toy.results_dir, data_size=wrong)


def test_pickles_are_refused(toy, prepared):
    np.save(prepared / "train_x.npy", np.array([{}], dtype=object))
    summary = json.loads((prepared / "summary.json").read_text())
    summary["arrays"]["train_x.npy"]["bytes"] = (prepared / "train_x.npy").stat().st_size
    from implementations.data.summary import data_hash

    summary["data_hash"] = data_hash(summary)
    (prepared / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ValueError, match="Array can't be memory-mapped: Python objects in dtype"):
        load("toy", toy.results_dir)


def test_labels_out_of_range(tmp_path):
    split = (np.zeros((3, 2), np.uint8), np.array([0, 1, 2]))
    with pytest.raises(UserError, match=r"labels in 0\.\.1"):
        write_splits(tmp_path, dict.fromkeys(("train", "valid", "test"), split), classes=2)


def test_splits_are_disjoint_and_stratified():
    labels = np.repeat(np.arange(4), [400, 300, 200, 100])
    parts = split_indices(labels, {"test": 100, "valid": 90}, "any")
    assert sorted(np.concatenate(list(parts.values()))) == list(range(1000))
    assert np.bincount(labels[parts["test"]]).tolist() == [40, 30, 20, 10]
    assert np.bincount(labels[parts["valid"]]).tolist() == [36, 27, 18, 9]
    again = split_indices(labels, {"test": 100, "valid": 90}, "any")
    assert all(np.array_equal(parts[part], again[part]) for part in parts)
    other = split_indices(labels, {"test": 100}, "another")
    assert not np.array_equal(parts["test"], other["test"])
    # The first training samples are a sample of all classes: 4 sigma of a hypergeometric count, 810 of 400:...
    first = np.bincount(labels[parts["train"][:200]], minlength=4) / 200
    np.testing.assert_allclose(first, [0.4, 0.3, 0.2, 0.1], atol=0.13)


def test_digits_are_scikit_learns(results_dir):
    prepare("digits", results_dir)
    data, theirs = load("digits", results_dir), load_digits()
    ours = [(data.split(part).x.reshape(-1, 64), data.split(part).y) for part in ("train", "valid", "test")]
    assert [len(y) for _, y in ours] == [1200, 297, 300]
    rows = sorted((*image.tolist(), int(label)) for x, y in ours for image, label in zip(x, y))
    assert rows == sorted((*map(int, image), int(label)) for image, label in zip(theirs.data, theirs.target))
    shares = np.bincount(theirs.target) / 1797
    for _, y in ours:
        assert np.abs(np.bincount(y) - shares * len(y)).max() <= 1.5  # whole samples
    x = data.tensors("train")[0]
    assert abs(x.mean()) < 1e-5 and x.std(correction=0) == pytest.approx(1, abs=1e-5)


@pytest.mark.data
@pytest.mark.timeout(300)
def test_fashion_mnist_has_the_counts_of_its_paper(results_dir):
    try:
        prepare("fashion_mnist", results_dir)
    except sources.NotFetched as error:
        if "damaged" in str(error):
            raise
        pytest.skip(str(error))
    data = load("fashion_mnist", results_dir, verify=True)
    counts = {part: np.bincount(data.split(part).y).tolist() for part in ("train", "valid", "test")}
    assert counts == {"train": [5400] * 10, "valid": [600] * 10, "test": [1000] * 10}
    assert data.train.x.shape == (54000, 1, 28, 28) and data.train.x.dtype == np.uint8
    # The mean and standard deviation of the 60,000 official training images that everybody normalises by.
    pixels = np.concatenate([data.train.x, data.valid.x]) / np.float32(255)
    assert pixels.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)
    assert pixels.std(dtype=np.float64) == pytest.approx(0.3530, abs=5e-5)
    x, y = data.tensors("train", np.arange(100, 200))
    assert x.shape == (100, 784) and y.tolist() == data.train.y[100:200].tolist()
    raw = (data.train.x[100:200].reshape(100, 784) - data.summary["mean"]) / data.summary["std"]
    np.testing.assert_allclose(x.numpy(), raw, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["digits", "teacher"])
def test_prepare_py_runs_by_itself(root, tmp_path, name):
    done = subprocess.run(
        [sys.executable, root / "datasets" / name / "prepare.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"results/data/{name}: 1")
    assert status(name, tmp_path / "results")["state"] == "present"

"""A user's own data: every kind of file to the same arrays, and each fault in one line."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from implementations.data import loading
from implementations.data.own import Source, prepare
from implementations.data.summary import read_summary
from implementations.errors import UserError

CLASSES, PER_CLASS = ("cat", "dog", "eel"), 20


def samples(seed=0):
    draws = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), PER_CLASS)
    return draws.integers(0, 256, (len(labels), 1, 6, 5), dtype=np.uint8), labels


def write(path, x, y):
    """The same samples as a file or folder of this kind."""
    if path.suffix == ".npz":
        np.savez(path, x=x, y=y)
    elif path.suffix == ".pt":
        torch.save({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, path)
    elif path.suffix:
        table = pd.DataFrame(x.reshape(len(x), -1)).rename(columns=lambda one: f"v{one}").assign(label=y)
        table.to_csv(path, index=False) if path.suffix == ".csv" else table.to_parquet(path)
    else:
        for number, (image, label) in enumerate(zip(x, y)):
            (path / CLASSES[label]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0]).save(path / CLASSES[label] / f"{number:03}.png")
    return path


@pytest.mark.parametrize("kind", ["mine", "mine.npz", "mine.pt", "mine.csv", "mine.parquet"])
def test_every_kind_gives_all_samples_once(kind, tmp_path):
    x, y = samples()
    name = prepare(Source(write(tmp_path / kind, x, y)), tmp_path)
    data, summary = loading.load(name, tmp_path, verify=True), read_summary(tmp_path / "data" / name)
    assert [summary["splits"][part]["per_class"] for part in ("train", "valid", "test")] == [
        [16] * 3, [2] * 3, [2] * 3,
    ]  # fmt: skip
    table = kind.endswith(("csv", "parquet"))
    assert data.input_shape == ((30,) if table else (1, 6, 5))
    stored = np.concatenate([data.split(part).x.reshape(-1, 30) for part in data.sizes])
    labels = np.concatenate([data.split(part).y for part in data.sizes])
    wanted = x.reshape(-1, 30).astype(float)
    if table:  # whose columns are standardised by the training samples
        train = data.split("train").x
        np.testing.assert_allclose(train.mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(train.std(0), 1, atol=1e-6)
    else:
        for label in range(3):
            mine = sorted(map(tuple, stored[labels == label]))
            assert mine == sorted(map(tuple, wanted[y == label]))
    assert summary["class_names"] == (list(CLASSES) if kind == "mine" else ["0", "1", "2"])


def test_given_parts_are_kept_and_those_that_lack_are_held_out(tmp_path):
    x, y = samples()
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[::10], y_test=y[::10])
    data = loading.load(prepare(Source(tmp_path / "a.npz"), tmp_path), tmp_path)
    assert data.sizes == {"train": 54, "valid": 6, "test": 6}
    assert np.array_equal(data.test.x, x[::10]) and np.array_equal(data.test.y, y[::10])
    for part in ("train", "val", "test"):
        write(tmp_path / "folders" / part, x, y)
    assert loading.load(prepare(Source(tmp_path / "folders"), tmp_path), tmp_path).sizes["valid"] == 60
    table = pd.DataFrame(
        {"v": range(60), "kind": ["ab"[k % 2] for k in range(60)], "split": ["train", "train", "test"] * 20}
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    data = loading.load(prepare(Source(tmp_path / "t.csv", label="kind"), tmp_path), tmp_path)
    assert (data.sizes["test"], data.sizes["train"] + data.sizes["valid"], data.classes) == (20, 40, 2)


def test_the_name_follows_the_content(tmp_path):
    x, y = samples()
    path = write(tmp_path / "a.npz", x, y)
    name = prepare(Source(path), tmp_path)
    stamp = (tmp_path / "data" / name / "summary.json").stat().st_mtime_ns
    assert prepare(Source(path), tmp_path) == name
    assert (tmp_path / "data" / name / "summary.json").stat().st_mtime_ns == stamp  # nothing was done again
    assert prepare(Source(path, split_seed=1), tmp_path) != name
    write(path, x + 1, y)
    assert prepare(Source(path), tmp_path) != name


def test_channels_come_first_and_images_can_be_resized(tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (12, 8, 6, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=colours, y=np.arange(12) % 2)
    data = loading.load(prepare(Source(tmp_path / "a.npz"), tmp_path), tmp_path)
    assert data.input_shape == (3, 8, 6)
    for number, image in enumerate(colours):
        (tmp_path / "b" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        side = 8 if number else 16
        Image.fromarray(image).resize((side, side)).save(tmp_path / "b" / "ab"[number % 2] / f"{number}.png")
    with pytest.raises(UserError, match=r"images of several sizes .*say --image-size SIDE"):
        prepare(Source(tmp_path / "b"), tmp_path)
    assert loading.load(prepare(Source(tmp_path / "b", side=4), tmp_path), tmp_path).input_shape == (3, 4, 4)


def arrays(**named):
    def make(folder):
        np.savez(folder / "a.npz", **named)
        return folder / "a.npz"

    return make


def table(text, name="a.csv"):
    def make(folder):
        (folder / name).write_text(text)
        return folder / name

    return make


def folder(*files):
    def make(root):
        for file in files:
            path = root / "f" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4)).save(path)
        (root / "f").mkdir(exist_ok=True)
        return root / "f"

    return make


X, Y = samples()
GAP = np.where(np.arange(30).reshape(6, 5) == 7, np.nan, X.astype(np.float32))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: root / "none.npz", "there is no such file or folder"),
        (table("", "a.txt"), "write a folder of images, or a file .npz"),
        (folder(), "holds no images"),
        (folder("1.png"), "1.png lies in no class folder"),
        (folder(*(f"only/{k}.png" for k in range(5))), "one class, only"),
        (
            folder("a/1.png", "b/1.png", "b/2.png", "b/3.png"),
            "class a has 1 samples for training; needed: at least 3",
        ),
        (table("not a picture", "a.npz"), "is damaged"),
        (arrays(x=X), "holds x; needed: x and y"),
        (arrays(x=X, y=Y[1:]), "train has 60 samples and 59 labels"),
        (arrays(x=X, y=Y * 0), "one class, 0"),
        (arrays(x=X, y=Y / 7), "the suite trains classifiers only"),
        (arrays(x=X, y=np.eye(3)[Y]), "labels are 60 x 3"),
        (arrays(x=GAP, y=Y), "has a value that is nan"),
        (arrays(x=X * 0, y=Y), "all values are 0"),
        (arrays(x=X[:, 0, 0, 0], y=Y), "needed: numbers, samples x values"),
        (arrays(x=X.astype(str), y=Y), "needed: numbers, samples x values"),
        (arrays(x_train=X, y_train=Y, x_test=X, y_test=Y + 1), "class 3 is in test and not in train"),
        (arrays(x_train=X, y_train=Y, x_test=X[:, :, :3], y_test=Y), "samples of several sizes"),
        (table("a,b\n1,2\n"), "say which column has the classes, by --label; columns: a, b"),
        (table("a,label\n" + "\n".join(f"{k},{k % 2}" for k in range(20)) + "\n,1"), "nan (column a)"),
        (table("a,label\n" + "w,1\n" * 9), "column a holds no numbers"),
        (table("label\n1\n2\n"), "has no column beside the classes"),
        (table("a,label\n1,\n"), "rows without a class"),
        (table("a,label\n"), "has no rows"),
    ],
)
def test_faults_are_told_in_one_line(make, words, tmp_path):
    with pytest.raises(UserError) as told:
        prepare(Source(make(tmp_path)), tmp_path)
    assert words in str(told.value) and "\n" not in str(told.value) and str(told.value).startswith("--data")
    assert not list((tmp_path / "data").glob("user_*")) if (tmp_path / "data").exists() else True


def test_a_label_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="has no column kind; columns: a, label"):
        prepare(Source(table("a,label\n1,2\n")(tmp_path), label="kind"), tmp_path)

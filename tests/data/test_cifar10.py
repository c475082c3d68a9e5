"""CIFAR-10's preparation on an archive of the same layout made here, and the real one's counts where it can be had."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from implementations.data import Card, load_card, sources
from implementations.data.cards import DATASETS
from implementations.data.preparation import _recipe
from implementations.errors import UserError

TRAIN, TEST = 4, 2  # images of each class


def jpeg(colour, side=32):
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), colour, np.uint8)).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.fixture
def prepare(tmp_path):
    """prepare(changed members): images of one colour, which tells part, class and number."""
    card = load_card("cifar10")
    sizes = card.sizes | {"train": 10 * (TRAIN - 1), "valid": 10, "test": 10 * TEST}
    small = Card(DATASETS / "cifar10", card.values | {"sizes": sizes})

    def run(**changed):
        raw, out = tmp_path / "raw", tmp_path / "out"
        raw.mkdir()
        out.mkdir()
        members = {"README.md": b"words"}
        for part, count in (("test", TEST), ("train", TRAIN)):
            for label, name in enumerate(sizes["class_names"]):
                for number in reversed(range(count)):
                    colour = (200 * (part == "test"), 20 * label, 40 * number)
                    members[f"./{part}/{name}/{number:04d}.jpg"] = jpeg(colour)
        with tarfile.open(raw / card.files[0].name, "w:xz") as archive:
            for name, content in (members | changed).items():
                if content is None:
                    continue
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        facts = _recipe(small).prepare(raw, out, small)
        return facts, {
            part: (np.load(out / f"{part}_x.npy"), np.load(out / f"{part}_y.npy")) for part in facts["splits"]
        }

    return run


def colours(x):
    return x.mean(axis=(2, 3), dtype=float)


def test_images_stand_with_their_classes(prepare):
    facts, splits = prepare()
    assert facts["input_shape"] == [3, 32, 32] and facts["classes"] == 10
    for part, (x, y) in splits.items():
        assert x.dtype == np.uint8 and x.shape == (len(y), 3, 32, 32)
        red, green, _ = colours(x).T
        np.testing.assert_allclose(red, 200 * (part == "test"), atol=4)  # JPEG moves colours a little
        np.testing.assert_allclose(green, 20 * y, atol=4)
    assert {part: np.bincount(y).tolist() for part, (_, y) in splits.items()} == {
        "train": [TRAIN - 1] * 10,
        "valid": [1] * 10,
        "test": [TEST] * 10,
    }
    numbers = np.concatenate(
        [np.stack([y, colours(x)[:, 2].round(-1)]) for x, y in (splits["train"], splits["valid"])], 1
    )
    assert len({tuple(one) for one in numbers.T}) == 10 * TRAIN  # nothing twice, nothing lost


def test_mistakes_name_the_image(prepare):
    with pytest.raises(UserError, match=r"\./train/cat/0001\.jpg: not a whole image"):
        prepare(**{"./train/cat/0001.jpg": b"no image"})


def test_an_image_of_another_size(prepare):
    with pytest.raises(
        UserError, match=r"\./test/dog/0000\.jpg: shape \(3, 16, 16\) instead of \(3, 32, 32\)"
    ):
        prepare(**{"./test/dog/0000.jpg": jpeg((0, 0, 0), side=16)})


def test_a_cut_image(prepare):
    with pytest.raises(UserError, match="not a whole image"):
        prepare(**{"./train/cat/0001.jpg": jpeg((0, 0, 0))[:-80]})


@pytest.mark.data
@pytest.mark.timeout(300)
def test_the_archive_holds_60000_images(tmp_path):
    card = load_card("cifar10")
    try:
        sources.fetch(card, tmp_path / "raw")
    except sources.NotFetched as error:
        if "damaged" in str(error):
            raise
        pytest.skip(str(error))
    with tarfile.open(tmp_path / "raw" / card.files[0].name) as tar:
        names = [member.name.split("/")[-3:-1] for member in tar if member.isreg()]
    counts = {
        (part, label): names.count([part, label]) for part, label in map(tuple, {tuple(one) for one in names})
    }
    classes = card.sizes["class_names"]
    assert counts == {(part, one): n for part, n in (("train", 5000), ("test", 1000)) for one in classes}

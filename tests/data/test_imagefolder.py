"""ImageNet's preparation and loader on small folders of the same layout, against Pillow and NumPy by themselves."""

import logging
import os
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from implementations import data
from implementations.config import Catalog, catalog
from implementations.data import imagefolder
from implementations.data.summary import read_summary
from implementations.errors import UserError
from implementations.point import Point
from implementations.projection import project

CLASSES = ("n01440764", "n01443537", "n02084071")
TRAIN, VAL = (6, 5, 4), (2, 2, 1)  # images of each class
SIDE = 28  # and a shorter side of 32


def photograph(number, width, height, mode="RGB"):
    """Smooth, and no two alike."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (7 + number) + channel) + np.cos(y / (5 + number)) for channel in range(3)]
    pixels = np.round(127 + 60 * np.stack(waves, 2)).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The folder; images of several sizes, one grey and one CMYK, as a few of ImageNet's are."""
    folder, number = tmp_path / "own" / "imagenet", 0
    for part, counts in (("train", TRAIN), ("val", VAL)):
        for name, count in zip(CLASSES, counts):
            (folder / part / name).mkdir(parents=True)
            for place in range(count):
                size = ((70, 50), (45, 90), (40, 40), (33, 61))[number % 4]
                mode = {3: "L", 5: "CMYK"}.get(number, "RGB")
                photograph(number, *size, mode).save(folder / part / name / f"{name}_{place}.JPEG", "JPEG")
                number += 1
    monkeypatch.setenv("PARATRAIN_DATA", str(folder.parent))
    return folder


@pytest.fixture
def written(made, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    return out, imagefolder.write(out, made, SIDE)


def expected(path, side, shorter):
    """By Pillow alone; sizes are worked out as torchvision documents Resize and CenterCrop."""
    image = Image.open(path).convert("RGB")
    short, long = sorted(image.size)
    long = int(shorter * long / short)
    size = (shorter, long) if image.size[0] < image.size[1] else (long, shorter)
    if image.size[0] == image.size[1]:
        size = (shorter, shorter)
    left, top = round((size[0] - side) / 2.0), round((size[1] - side) / 2.0)
    image = image.resize(size, Image.BILINEAR).crop((left, top, left + side, top + side))
    return np.array(image).transpose(2, 0, 1)


def keyed(x, y):
    return sorted((int(label), pixels.tobytes()) for label, pixels in zip(y, x))


def test_images_are_those_of_pillow_and_stand_with_their_classes(made, written):
    out, facts = written
    assert facts["classes"] == 3 and facts["class_folders"] == list(CLASSES)
    assert facts["input_shape"] == [3, 28, 28] and facts["features"] == 2352
    stored = {
        part: tuple(np.load(out / f"{part}_{what}.npy") for what in "xy")
        for part in ("train", "valid", "test")
    }
    for part, (x, y) in stored.items():
        assert x.dtype == np.uint8 and y.dtype == np.int64 and x.shape == (len(y), 3, 28, 28)
        assert facts["splits"][part] == {
            "samples": len(y),
            "per_class": np.bincount(y, minlength=3).tolist(),
        }
    # valid is taken out of train, and out of every class here; nothing is lost, nothing is twice
    by_folder = {
        part: [
            (label, expected(path, 28, 32))
            for label, name in enumerate(CLASSES)
            for path in sorted((made / part / name).iterdir())
        ]
        for part in ("train", "val")
    }
    both = [np.concatenate([stored["train"][i], stored["valid"][i]]) for i in (0, 1)]
    assert keyed(*both) == sorted((label, pixels.tobytes()) for label, pixels in by_folder["train"])
    assert facts["splits"]["valid"]["per_class"] == [1, 1, 1]
    assert stored["test"][1].tolist() == [0, 0, 1, 1, 2]
    np.testing.assert_array_equal(stored["test"][0], np.stack([pixels for _, pixels in by_folder["val"]]))


@pytest.mark.parametrize(("side", "shorter"), [(224, 256), (299, 342)])
@pytest.mark.parametrize("size", [(500, 375), (333, 500), (100, 120), (256, 256), (401, 400)])
def test_the_usual_sizes(tmp_path, side, shorter, size):
    path = tmp_path / "one.JPEG"
    photograph(3, *size).save(path, "JPEG")
    np.testing.assert_array_equal(imagefolder.read(path, side), expected(path, side, shorter))


def test_the_centre_of_the_longer_side_is_kept(tmp_path):
    """Stripes: red left, green in the middle, blue right."""
    pixels = np.zeros((64, 192, 3), np.uint8)
    for channel in range(3):
        pixels[:, 64 * channel : 64 * (channel + 1), channel] = 255
    Image.fromarray(pixels).save(tmp_path / "one.JPEG", "JPEG", quality=95)
    cut = imagefolder.read(tmp_path / "one.JPEG", 28)
    np.testing.assert_allclose(cut.mean(axis=(1, 2)), [0, 255, 0], atol=6)


@pytest.fixture
def prepared(made, results_dir, monkeypatch):
    """``imagenet`` as the card has it, but of the small side."""
    card = data.load_card("imagenet")
    small = data.Card(card.folder, card.values | {"sizes": card.sizes | {"input_shape": [3, SIDE, SIDE]}})
    monkeypatch.setattr("implementations.data.preparation.load_card", lambda *_: small)
    data.prepare("imagenet", results_dir)
    return results_dir


def test_samples_are_normalised_channel_by_channel(made, prepared):
    loaded = data.load("imagenet", prepared, verify=True)
    assert (loaded.features, loaded.classes) == (2352, 3)
    assert loaded.sizes == {"train": 12, "valid": 3, "test": 5}
    x_nf, y_n = loaded.tensors("test")
    assert x_nf.dtype == torch.float32 and x_nf.is_contiguous() and y_n.dtype == torch.int64
    paths = [path for name in CLASSES for path in sorted((made / "val" / name).iterdir())]
    pixels = np.stack([expected(path, 28, 32) for path in paths]) / 255
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    wanted = (pixels - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(x_nf.numpy(), wanted.reshape(5, -1), rtol=0, atol=2e-6)


def test_gathered_samples_are_the_tensors(prepared):
    loaded = data.load("imagenet", prepared)
    x_nf, y_n = loaded.tensors("train")
    chosen = np.array([7, 2, 2, 11, 0])
    for indices in (None, chosen):
        samples = loaded.samples("train", indices)
        rows = torch.tensor([4, 0, 3])
        x, y = samples.take(rows)
        places = rows.numpy() if indices is None else chosen[rows]
        assert torch.equal(x, x_nf[places]) and torch.equal(y, y_n[places])
        assert len(samples) == (12 if indices is None else 5)
        x.zero_()  # the caller's own
    pieces = list(loaded.stream("train", 3, 9))
    assert torch.equal(torch.cat([x for x, _ in pieces]), x_nf[3:9])
    with pytest.raises(IndexError, match=r"integers in 0\.\.11"):
        loaded.samples("train", np.array([12]))


def test_the_first_of_a_subset_are_the_first_of_all(prepared):
    some, everything = (data.load("imagenet", prepared, data_size=size) for size in (5, None))
    assert some.sizes == {"train": 5, "valid": 3, "test": 5}
    assert torch.equal(some.tensors("train")[0], everything.tensors("train")[0][:5])
    assert len(some.labels("train")) == 5 and some.data_hash == everything.data_hash
    with pytest.raises(UserError, match="data_size 13 of imagenet: allowed: 1 to 12"):
        data.load("imagenet", prepared, data_size=13)
    with pytest.raises(IndexError):
        some.samples("train", np.array([5]))


def test_nothing_is_read_before_it_is_taken(prepared, monkeypatch):
    """Not even all of a subset: a split of many times the memory is opened, and two of its images are taken."""
    folder = prepared / "data" / "imagenet"
    images = 10**6
    with open(folder / "train_x.npy", "wb") as file:  # 2.4 GB that take no room on the disk
        header = {"descr": "|u1", "fortran_order": False, "shape": (images, 3, SIDE, SIDE)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + images * 3 * SIDE * SIDE)
    np.save(folder / "train_y.npy", np.zeros(images, np.int64))
    monkeypatch.setattr("implementations.data.loading.find_fault", lambda *_, **__: None)
    summary = read_summary(folder)
    summary["splits"]["train"]["samples"] = images
    monkeypatch.setattr("implementations.data.loading.read_summary", lambda _: summary)
    tracemalloc.start()
    samples = data.load("imagenet", prepared, data_size=900_000).samples("train", np.arange(0, 900_000, 2))
    x, _ = samples.take(torch.tensor([1, 449_999]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(samples) == 450_000 and x.shape == (2, 2352)
    assert peak < 30e6  # labels and indices


def test_images_are_never_all_in_memory(made, tmp_path, monkeypatch):
    monkeypatch.setattr(imagefolder, "_PIECE", 4)
    monkeypatch.setattr(imagefolder, "read", lambda path, side: np.zeros((3, side, side), np.uint8))
    imagefolder.write(tmp_path, made, 8)  # what is imported once is there by now
    tracemalloc.start()
    imagefolder.write(tmp_path, made, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 3 * 1000 * 1000  # of 20 images


def test_the_same_images_the_same_split(made, written, tmp_path):
    """Whatever their size, and however often."""
    other = tmp_path / "other"
    other.mkdir()
    imagefolder.write(other, made, 14)
    again = tmp_path / "again"
    again.mkdir()
    assert imagefolder.write(again, made, SIDE) == written[1]
    for part in ("train", "valid", "test"):
        y, y_other = (np.load(folder / f"{part}_y.npy") for folder in (written[0], other))
        assert np.array_equal(y, y_other)
        x, x_again, x_other = (np.load(folder / f"{part}_x.npy") for folder in (written[0], again, other))
        assert np.array_equal(x, x_again)
        # half the side: means of 2 x 2 are near, those of other images are not
        halved = x.reshape(len(x), 3, 14, 2, 14, 2).mean(axis=(3, 5))
        apart = np.abs(halved[:, None] - x_other[None]).mean(axis=(2, 3, 4))
        assert (apart.argmin(axis=1) == np.arange(len(x))).all()


def test_progress_is_told(made, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(imagefolder, "_PIECE", 5)
    monkeypatch.setattr(imagefolder, "_REPORT_S", 0)
    with caplog.at_level(logging.INFO):
        imagefolder.write(tmp_path, made, SIDE)
    told = [record.getMessage() for record in caplog.records]
    assert [line.split(",")[0] for line in told] == [
        f"imagenet: {done} of 20 images" for done in (5, 10, 12, 15, 20)
    ]
    assert all("a second, about 0 minutes left" in line for line in told)


def refused(out, folder, message):
    with pytest.raises(UserError, match=message) as raised:
        imagefolder.write(out, folder, SIDE)
    assert "\n" not in str(raised.value)


def test_a_damaged_image_is_named(made, tmp_path):
    path = made / "train" / CLASSES[1] / f"{CLASSES[1]}_2.JPEG"
    name, whole = rf"image train/{CLASSES[1]}/{path.name}: damaged:", path.read_bytes()
    for content, why in (
        (whole[:-80], "image file is truncated"),
        (whole[:30], ""),
        (b"", "not an image;"),
        (b"<html>404</html>", "not an image;"),
    ):
        path.write_bytes(content)
        refused(tmp_path, made, rf"{name} {why}.*fetch it anew, or delete it")


def test_another_layout_is_named(made, tmp_path):
    os.rename(made / "val", made / "test")
    refused(tmp_path, made, r"imagenet: no folder val; needed: val/CLASS/\*\.JPEG, a folder for each class")
    os.rename(made / "test", made / "val")

    loose = made / "val" / "ILSVRC2012_val_00000001.JPEG"
    photograph(1, 40, 40).save(loose, "JPEG")
    refused(tmp_path, made, r"val: images that are in no class folder \(ILSVRC2012_val_00000001\.JPEG\)")
    loose.unlink()

    os.rename(made / "val" / CLASSES[2], tmp_path / "moved")
    refused(tmp_path, made, rf"class {CLASSES[2]} is in one of train and val only \(1 such classes\)")
    (made / "val" / CLASSES[2]).mkdir()
    refused(tmp_path, made, rf"val/{CLASSES[2]}: no images")
    (made / "val" / CLASSES[2]).rmdir()
    os.rename(tmp_path / "moved", made / "val" / CLASSES[2])

    for path in sorted((made / "train" / CLASSES[0]).iterdir())[1:]:
        path.unlink()
    refused(tmp_path, made, rf"train/{CLASSES[0]}: one image; needed: two or more")


def test_archives_of_other_systems_leave_files_that_are_no_images(made, written, tmp_path):
    (made / "train" / CLASSES[0] / f"._{CLASSES[0]}_0.JPEG").write_bytes(b"\0\5\26\7")
    (made / "train" / CLASSES[0] / "list.txt").write_text("no image\n")
    again = tmp_path / "again"
    again.mkdir()
    assert imagefolder.write(again, made, SIDE) == written[1]


def test_too_little_room_is_said_before(made, tmp_path, monkeypatch):
    monkeypatch.setattr(imagefolder.shutil, "disk_usage", lambda _: SimpleNamespace(free=47_039))
    refused(tmp_path, made, r"20 images of 28 x 28 need 0\.0 GB")  # 20 * 3 * 28 * 28 = 47,040 bytes
    assert not list(tmp_path.glob("*.npy"))
    monkeypatch.setattr(imagefolder.shutil, "disk_usage", lambda _: SimpleNamespace(free=47_040))
    imagefolder.write(tmp_path, made, SIDE)


@pytest.mark.parametrize(
    ("name", "side", "features"), [("imagenet", 224, 150528), ("imagenet_299", 299, 268203)]
)
def test_the_cards(name, side, features, tmp_path, monkeypatch):
    sizes = data.load_card(name).sizes
    assert sizes["input_shape"] == [3, side, side] and np.prod(sizes["input_shape"]) == features
    assert sizes["train"] + sizes["valid"] == 1281167 and sizes["classes"] == 1000 and sizes["test"] == 50000
    assert sizes["valid"] == round(imagefolder.VALID_SHARE * 1281167)
    monkeypatch.setattr(catalog, "RESULTS", tmp_path)
    assert name in Catalog.installed().licensed  # projected only, until it is prepared
    monkeypatch.setenv("PARATRAIN_DATA", str(tmp_path))
    assert data.status(name, tmp_path)["state"] == "missing"
    with pytest.raises(UserError, match=r"its folder is not here[\s\S]*train/CLASS/\*\.JPEG and val/CLASS"):
        data.prepare(name, tmp_path)


@pytest.mark.parametrize(("name", "features"), [("imagenet", 150528), ("imagenet_299", 268203)])
def test_a_projected_point_needs_no_data(name, features, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARATRAIN_DATA", raising=False)
    point = Point(
        paper="layerwise",
        method="data_parallel",
        dataset=name,
        model={"name": "fc", "hidden": [16]},
        workers=4,
        evidence="projected",
        seed=0,
        method_params={"algorithm": "ring"},
        minibatch=32,
        data_size=3200,
    )
    columns, trace = project(point)
    params = features * 16 + 16 + 16 * 1000 + 1000
    assert columns["model_params"] == params and columns["steps"] == 25 and columns["status"] == "ok"
    sent = trace.loc[trace["kind"] == "comm", "sent_bytes_total"]
    assert set(sent) == {2 * 3 * 4 * params}  # of a ring of 4

"""CIFAR-10 (JPEG): 60,000 colour images of 32 x 32, 10 balanced classes, recoded as JPEG, as uint8 arrays (184 MB).

    python datasets/cifar10/prepare.py      # or: python -m implementations prepare cifar10

writes results/data/cifar10: 45,000 train, 5,000 valid (500 of each class), 10,000 test (the official ones), channels
first. The valid images are drawn from the official training images by a fixed seed. Takes about half a minute.
"""

import sys
from pathlib import Path


def prepare(raw, out, card):
    """Turn the archive of ``{train,test}/CLASS/NUMBER.jpg`` in ``raw`` into arrays; returns the summary's facts."""
    from implementations.data.arrays import split_indices, write_splits

    parts = read(raw / card.files[0].name, card.sizes["class_names"], card.sizes["input_shape"])
    images, labels = parts["train"]
    chosen = split_indices(labels, {"valid": card.sizes["valid"]}, card.name)
    splits = {part: (images[index], labels[index]) for part, index in chosen.items()}
    return write_splits(out, {**splits, "test": parts["test"]}, classes=card.sizes["classes"])


def read(archive, class_names, shape):
    """Images (n, 3, 32, 32) uint8 and labels (n,) of the parts train and test, in the order of their names."""
    import io
    import tarfile

    import numpy as np
    from PIL import Image, UnidentifiedImageError

    from implementations.errors import UserError

    found = {"train": [], "test": []}
    with tarfile.open(archive) as tar:
        for member in tar:
            part, label, name = ([*Path(member.name).parts, "", ""])[:3]
            if not member.isreg() or part not in found or label not in class_names:
                continue
            try:
                image = Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB")
            except (UnidentifiedImageError, OSError) as error:
                raise UserError(f"{archive}: {member.name}: not a whole image: {error}") from error
            pixels = np.asarray(image).transpose(2, 0, 1)
            if list(pixels.shape) != shape:
                raise UserError(f"{archive}: {member.name}: shape {pixels.shape} instead of {tuple(shape)}")
            found[part].append((class_names.index(label), name, pixels))
    parts = {}
    for part, images in found.items():
        if not images:
            raise UserError(f"{archive}: holds no images {part}/CLASS/NUMBER.jpg")
        images.sort(key=lambda one: one[:2])
        parts[part] = np.stack([one[2] for one in images]), np.array([one[0] for one in images])
    return parts


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from implementations.data import command

    sys.exit(command(Path(__file__).parent.name))

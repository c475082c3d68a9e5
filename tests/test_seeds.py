import hashlib

import torch

from implementations.seeds import derive, numpy_stream, torch_stream


def test_a_stream_is_the_hash_of_its_names():
    expected = int.from_bytes(hashlib.sha256(b"7/3/init").digest()[:8], "big") // 2
    assert derive(7, 3, "init") == expected


def test_the_same_names_give_the_same_numbers_and_others_do_not():
    assert (numpy_stream(1, "order", 2).random(8) == numpy_stream(1, "order", 2).random(8)).all()
    assert (numpy_stream(1, "order", 2).random(8) != numpy_stream(1, "order", 3).random(8)).all()
    first, second = (torch.rand(8, generator=torch_stream(1, "init")) for _ in range(2))
    assert torch.equal(first, second)

"""Sparse data sets: what is written comes back, in minibatches as a dense copy would give it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import sparse as scipy_sparse

from implementations.data.sparse import NO_LABEL, SparseData, SparseRows, write_splits
from implementations.errors import UserError

SIZES = {"train": 30, "valid": 5, "test": 7}
FEATURES, CLASSES, MOST = 12, 9, 4


def parts(most=MOST, seed=0):
    """Dense splits: a row of inputs is empty, labels are 1 to ``most``."""
    draws, made = np.random.default_rng(seed), {}
    for part, samples in SIZES.items():
        x = draws.normal(size=(samples, FEATURES)) * (draws.random((samples, FEATURES)) < 0.3)
        x[1] = 0
        y = np.zeros((samples, CLASSES))
        for row in range(samples):
            count = most if row == 0 else draws.integers(1, most + 1)
            y[row, draws.permutation(CLASSES)[:count]] = 1
        made[part] = (x.astype(np.float32), y)
    return made


def compressed(dense):
    return {part: tuple(map(scipy_sparse.csr_array, pair)) for part, pair in dense.items()}


def opened(folder, dense, data_size=None):
    facts = write_splits(folder, compressed(dense))
    return SparseData(folder, facts | {"name": "toy", "data_hash": ""}, data_size)


@pytest.mark.parametrize("most", [1, MOST])
def test_what_is_written_comes_back(tmp_path, most):
    dense = parts(most)
    data = opened(tmp_path, dense)
    assert (data.sizes, data.features, data.classes, data.most_labels) == (SIZES, FEATURES, CLASSES, most)
    for part, (x, y) in dense.items():
        stored = data.split(part)
        np.testing.assert_array_equal(stored.x.toarray(), x)
        assert stored.y.dtype == np.int64
        for labels, row in zip(stored.y.reshape(len(x), -1), y):
            wanted = row.nonzero()[0].tolist()
            assert labels.tolist() == wanted + [NO_LABEL] * (most - len(wanted))
        assert data.summary["splits"][part] == {
            "samples": len(x),
            "values": int((x != 0).sum()),
            "labels": int(y.sum()),
        }
    assert data.train.y.shape == ((30,) if most == 1 else (30, most))


def test_minibatches_are_rows_of_a_dense_copy(tmp_path):
    dense = parts()
    data = opened(tmp_path, dense)
    chosen = np.array([3, 1, 29, 3, 7, 0])
    some = data.samples("train", chosen)
    rows = torch.tensor([5, 1, 1, 2, 3])
    x, y = some.take(rows)
    assert len(some) == 6 and x.shape == (5, FEATURES) and len(x) == 5
    np.testing.assert_array_equal(x.dense().numpy(), dense["train"][0][chosen[rows]])
    assert torch.equal(x.csr().to_dense(), x.dense())
    assert torch.equal(y, torch.from_numpy(data.train.y[chosen[rows]]))
    assert (x.indices.dtype, x.offsets.dtype, x.values.dtype) == (torch.int64, torch.int64, torch.float32)
    tensors = data.tensors("train", chosen[rows])
    assert torch.equal(tensors[0], x.dense()) and torch.equal(tensors[1], y)
    streamed = torch.cat([piece for piece, _ in data.stream("train", 2, 29)])
    np.testing.assert_array_equal(streamed.numpy(), dense["train"][0][2:29])
    none, _ = some.take(torch.tensor([], dtype=torch.int64))
    assert none.dense().shape == (0, FEATURES)


def test_an_embedding_bag_over_stacked_tables_is_a_product_per_worker(tmp_path):
    dense = parts()
    workers, batch, hidden = 3, 4, 5
    x, y = opened(tmp_path, dense).samples("train").take(torch.arange(workers * batch))
    assert x.stacked_indices() is x.indices
    x_wbi = x.view(workers, -1, x.shape[1])
    tables = torch.randn(workers, FEATURES, hidden, generator=torch.Generator().manual_seed(0))
    got = F.embedding_bag(
        x_wbi.stacked_indices(),
        tables.view(-1, hidden),
        x_wbi.offsets,
        mode="sum",
        per_sample_weights=x_wbi.values,
        include_last_offset=True,
    )
    wanted = torch.from_numpy(dense["train"][0][: workers * batch]).view(workers, batch, FEATURES) @ tables
    torch.testing.assert_close(got.view(workers, batch, hidden), wanted)
    torch.testing.assert_close((x.csr() @ tables[0]).view(workers, batch, hidden)[0], wanted[0])
    assert torch.equal(x_wbi.dense(), x.dense().view(workers, batch, FEATURES))
    assert y.shape == (workers * batch, MOST)


def test_shapes_are_those_of_a_dense_tensor():
    rows = SparseRows(
        torch.tensor([2, 0]), torch.tensor([0, 1, 1, 2, 2, 2, 2]), torch.tensor([1.0, 2.0]), (6, 3)
    )
    for shape in ((2, -1, 3), (2, 3, 3), (-1, 2, 3), (6, 1, 3), (-1, 3), (1, 6, 3)):
        assert rows.view(*shape).shape == tuple(rows.dense().view(*shape).shape)
        assert torch.equal(rows.view(*shape).dense(), rows.dense().view(*shape))
    assert rows.unsqueeze(0).shape == (1, 6, 3)
    assert rows.view(3, 2, 3).stacked_indices().tolist() == [2, 3]
    for shape in ((4, -1, 3), (6, 4), (2, 3, -1), (3, 3), (2, 3, 1, 3), (0, -1, 3)):
        with pytest.raises(ValueError, match="do not fit"):
            rows.view(*shape)
    with pytest.raises(ValueError, match="unsqueeze"):
        rows.unsqueeze(1)


def test_the_first_samples_of_train(tmp_path):
    data = opened(tmp_path, parts(), data_size=11)
    assert data.sizes["train"] == 11 and len(data.samples("train")) == 11
    assert data.train.x.shape == (11, FEATURES) and len(data.train.y) == 11
    with pytest.raises(IndexError, match=r"0\.\.10"):
        data.samples("train", np.array([11]))
    for wrong in (0, 31):
        with pytest.raises(UserError, match="allowed: 1 to 30"):
            opened(tmp_path, parts(), data_size=wrong)


def test_arrays_stay_on_disk(tmp_path):
    data = opened(tmp_path, parts())
    for table in (data._inputs["train"], data._labels["train"]):
        mapped = table.indices
        while not isinstance(mapped, np.memmap):
            mapped = mapped.base
        assert not table.indices.flags.owndata and not table.indices.flags.writeable


def test_the_order_of_entries_in_a_row_does_not_show(tmp_path):
    """Rows are stored sorted, with their values."""
    rows = scipy_sparse.csr_array((np.array([1.0, 2.0]), np.array([5, 2]), np.array([0, 2])), shape=(1, 6))
    labels = scipy_sparse.csr_array((np.ones(2), np.array([3, 0]), np.array([0, 2])), shape=(1, 4))
    facts = write_splits(tmp_path, dict.fromkeys(SIZES, (rows, labels)))
    data = SparseData(tmp_path, facts | {"name": "toy", "data_hash": ""})
    assert data.train.x.toarray().tolist() == [[0, 0, 2, 0, 0, 1]] and data.train.y.tolist() == [[0, 3]]


def test_splits_that_cannot_be(tmp_path):
    whole = compressed(parts())
    x, y = whole["test"]
    narrow, infinite = x[:, :5], x * np.float32(np.inf)
    empty = y * 0
    empty.eliminate_zeros()
    for changed, said in (
        ({"test": (narrow, y)}, r"of features and classes \[\(5, 9\), \(12, 9\)\]"),
        ({"test": (x[:3], y)}, "test: got 3 samples and 7 rows of labels"),
        ({"test": (x, empty)}, "7 of them empty"),
        ({"test": (infinite, y)}, "test: a value is not finite"),
        ({"more": (x, y)}, "got splits train, valid, test, more"),
    ):
        with pytest.raises(UserError, match=said):
            write_splits(tmp_path, whole | changed)

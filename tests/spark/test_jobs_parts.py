"""What jobs are made of: frames, files of a step in progress, phases, the split of time, failures in words."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError, Py4JNetworkError
from training_runs import point_of

from implementations.errors import UserError
from implementations.spark import nets
from implementations.spark.cluster import Cluster
from implementations.spark.frames import pack, unpack
from implementations.spark.phases import phases
from implementations.spark.scratch import Held, Scratch
from implementations.spark.spans import Spans, split
from implementations.spark.station import Spec

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


@given(
    st.lists(
        st.tuples(
            st.text(max_size=5),
            st.sampled_from(DTYPES),
            st.lists(st.integers(0, 4), max_size=4),
            st.booleans(),
        ),
        max_size=5,
        unique_by=lambda one: one[0],
    )
)
def test_frames_bring_back_any_tensors(wanted):
    tensors = {}
    for name, dtype, shape, turned in wanted:
        tensor = torch.randint(0, 2, shape).to(dtype)
        tensors[name] = tensor.transpose(0, 1) if turned and len(shape) > 1 else tensor
    found = unpack(pack(tensors))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_reading_a_frame_copies_nothing():
    frame = pack({"a": torch.zeros(3), "b": torch.ones(2, 2)})
    unpack(frame)["b"][0, 1] = 7.0
    assert unpack(frame)["b"].tolist() == [[1.0, 7.0], [1.0, 1.0]]
    assert all(
        tensor.data_ptr() % 64 == unpack(frame)["a"].data_ptr() % 64 for tensor in unpack(frame).values()
    )


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    return Scratch("run", 1)


def files(tmp_path):
    return {path for path in tmp_path.rglob("*") if path.is_file() and path.name != "manifest.json"}


def test_what_stays_as_it_is_is_not_written_again(scratch, tmp_path):
    scratch.save(3, Held(1, {"a": torch.ones(4), "b": torch.ones(2)}, {"w": torch.zeros(3)}, loss=0.25))
    first = files(tmp_path)
    held = scratch.load(3)
    assert (held.done, held.loss, held.after) == (1, 0.25, None)
    held.done, held.grads["v"] = 2, torch.full((2,), 5.0)
    del held.saved["b"]
    scratch.save(3, held)
    (new,) = files(tmp_path) - first
    assert set(unpack(bytearray(new.read_bytes()))) == {"grads/v"}
    assert first < files(tmp_path)
    held = scratch.load(3)
    assert {**held.saved, **held.grads}.keys() == {"a", "w", "v"}
    held.done = 3
    held.saved["a"] *= 2  # where it is: the file keeps what it had
    assert scratch.load(3).saved["a"].tolist() == [1.0] * 4
    scratch.save(3, held)
    assert scratch.load(3).saved["a"].tolist() == [2.0] * 4
    assert scratch.load(3).grads["v"].tolist() == [5.0, 5.0]


def test_a_step_ends_with_its_state_and_the_next_forgets_it(scratch, tmp_path):
    frame = pack({"theta": torch.arange(3.0)})
    scratch.save(3, Held(2, after=frame))
    assert scratch.load(3).after == frame
    scratch.save(4, Held(1, {"a": torch.ones(1)}))
    assert scratch.load(3) == Held() and scratch.load(4).done == 1
    assert Scratch("run", 2).load(4) == Held() and Scratch("another", 1).load(4) == Held()


def test_a_task_that_was_cut_off_leaves_nothing(scratch, tmp_path):
    scratch.save(3, Held(1, {"a": torch.ones(1)}))
    folder = next(tmp_path.rglob("step3"))
    (folder / "2-half").write_bytes(b"half")
    (folder / "2-half.partial").write_text("{")
    assert scratch.load(3).done == 1


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_there_is_a_job_for_each_exchange_and_one_to_end_with(workers, groups):
    program = nets.program({"name": "fc", "hidden": [5, 4]}, 6, 3, workers, 8, "auto")
    found = phases(program, groups)
    exchanges = [exchange for exchange in program.exchanges if exchange] if workers > 1 else []
    assert [phase.exchange for phase in found if phase.exchange and not phase.across] == exchanges
    assert [segment for phase in found for segment in phase.segments] == list(range(program.segments))
    assert len(found) == len(exchanges) + 1 + (groups > 1)
    assert found[-1].exchange is None
    if groups > 1:
        assert found[-2].across and not found[-1].segments
        most = max(program.params(place) for place in range(workers))
        assert found[-2].exchange.shape == (most,)


def test_a_wall_is_told_apart_by_what_happened_in_it():
    spans = [
        ("serialise", 11.0, 12.0),
        ("compute", 12.0, 14.0),
        ("compute", 13.0, 15.0),  # another task's
        ("data", 14.5, 15.5),
        ("serialise", 9.0, 10.5),  # a clock that is behind
        ("serialise", 15.0, 30.0),
    ]
    parts = split(spans, 10.0, 20.0)
    assert parts == pytest.approx(
        {
            "serialise": 0.5 + 1.0 + 4.5,
            "compute": 3.0,
            "data": 0.5,
            "schedule": 0.5,
            "receive": 0.0,
            "return": 0.0,
        }
    )
    nothing = {"compute": 0.0, "data": 0.0, "serialise": 0.0, "receive": 0.0, "return": 0.0}
    assert split([], 1.0, 3.0) == nothing | {"schedule": 2.0}
    late = split([("receive", 2.0, 3.0), ("compute", 3.0, 4.0)], 1.0, 6.0)
    assert late == nothing | {"schedule": 1.0, "receive": 1.0, "compute": 1.0, "return": 2.0}


def test_spans_are_those_of_the_block():
    spans = Spans()
    with pytest.raises(KeyError), spans("data"):
        raise KeyError
    ((label, start, stop),) = spans
    assert label == "data" and start <= stop


class Context:
    def broadcast(self, value):
        return None


@pytest.mark.parametrize(
    "error, words",
    [
        (
            Py4JError("Lost task 0.3: Reason: Command exited with code 137"),
            "a Spark executor ran out of memory",
        ),
        (Py4JError("... java.lang.OutOfMemoryError: Java heap space"), "executor_memory_mb"),
        (Py4JError("MemoryError: Unable to allocate 9 GiB"), "lower minibatch, or take more workers"),
        (Py4JNetworkError("Answer from Java side is empty"), "driver_memory_mb"),
        (ConnectionRefusedError("refused"), "driver_memory_mb"),
        (
            Py4JError("Traceback\n implementations.errors.UserError: data set 'x': gone\n\tat org"),
            "^data set 'x': gone$",
        ),
        (
            Py4JError("aborted\nValueError: first\n\tat a\nKeyError: second\n\tat b"),
            "a Spark job failed: KeyError: second$",
        ),
    ],
)
def test_a_failure_is_told_in_one_line(error, words):
    point = dataclasses.replace(point_of("spark", 2), evidence="measured")
    cluster = Cluster(Context(), Spec(point, {}, 4, 2, "results"))

    def fail():
        raise error

    with pytest.raises(UserError, match=words) as found:
        cluster.run(fail)
    assert "\n" not in str(found.value)


def test_a_mistake_of_the_code_stays_one():
    cluster = Cluster(Context(), Spec(point_of("spark", 2), {}, 4, 2, "results"))
    with pytest.raises(ZeroDivisionError):
        cluster.run(lambda: 1 / 0)

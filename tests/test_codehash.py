import ast
import textwrap

from implementations import codehash


def tree_of(tmp_path, text):
    path = tmp_path / f"m{len(list(tmp_path.iterdir()))}.py"
    path.write_text(textwrap.dedent(text))
    return codehash.normalised(path)


BASE = '''
"""Module."""
def f(x):
    """Docstring."""
    return x + 1  # add
'''


def test_comments_docstrings_and_layout_do_not_count(tmp_path):
    other = """
    # a comment


    def f(x):
        return (x
                + 1)
    """
    assert tree_of(tmp_path, BASE) == tree_of(tmp_path, other)


def test_code_counts(tmp_path):
    assert tree_of(tmp_path, BASE) != tree_of(tmp_path, BASE.replace("x + 1", "x + 2"))
    assert tree_of(tmp_path, BASE) != tree_of(tmp_path, BASE.replace("def f", "def g"))


def test_a_point_reaches_its_method_and_harness_but_no_reporting_or_other_method():
    roots = ["implementations.harness", "implementations.averaging.method", "implementations.cluster.mpi"]
    reached = codehash.closure(roots)
    assert {"implementations.clock", "implementations.cluster.volume", "implementations.training"} <= reached
    assert "implementations.baselines.data_parallel" not in reached
    assert not [module for module in reached if module.startswith("implementations.reporting")]
    assert "implementations.run" not in reached


def test_type_checking_imports_are_no_dependency(tmp_path):
    path = tmp_path / "m.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from implementations import run\n"
    )
    assert codehash.imports(path) == ()
    assert ast.parse(path.read_text())


def test_methods_and_evidence_have_hashes_of_their_own():
    hashes = {
        codehash.code_hash(method, evidence)
        for method in ("sequential", "data_parallel", "averaging")
        for evidence in ("measured", "simulated")
    }
    assert len(hashes) == 6


def test_sessions_count_for_the_runs_that_have_one(monkeypatch):
    seen = []
    closure = codehash.closure
    monkeypatch.setattr(codehash, "closure", lambda *a, **k: seen.append(closure(*a, **k)) or seen[-1])
    assert codehash.code_hash("spark", "measured") != codehash.code_hash("spark", "simulated")
    measured, simulated = seen
    joined = {"implementations.cluster.sockets", "implementations.cluster.spark.session"}
    assert joined <= measured
    assert "implementations.cluster.mpi" not in measured
    assert not [name for name in simulated if name.startswith("implementations.cluster.spark.")]

"""The page about one's own network works as it is written."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from implementations.__main__ import main

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def page(root, tmp_path, monkeypatch):
    """The page's files in the current folder, which has results with a calibration; gives its commands."""
    text = (root / "docs/your-own-network.md").read_text()
    blocks = BLOCK.findall(text)
    files = [content for language, content in blocks if language == "python"]
    for name, content in zip(("mynets.py", "mydata.py"), files, strict=True):
        assert f"`{name}`" in text
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", str(root))
    calibration = tmp_path / "results/calibration"
    calibration.mkdir(parents=True)
    reference = root / "results/reference/calibration/this-host.yaml"
    if reference.is_file():
        shutil.copy(reference, calibration)
    shell = "\n".join(content for language, content in blocks if language == "sh").replace("\\\n", " ")
    yield [shlex.split(line) for line in shell.splitlines() if line]
    sys.modules.pop("mynets", None)


def of(commands, verb):
    return [words[3:] for words in commands if words[1:4] == ["-m", "implementations", verb]]


def test_every_command(page, root, capsys):
    subprocess.run([sys.executable, page[0][1]], check=True)
    for arguments in of(page, "train"):
        assert main(arguments) == 0, capsys.readouterr().err
        values = yaml.safe_load(capsys.readouterr().out)
        assert values["status"] == "ok" and values["accuracy"] > 0.4, arguments
    for arguments in of(page, "compare"):
        assert main(arguments) == 0
        assert "none of the 2 runs has a counterpart" in capsys.readouterr().out
    assert {words[3] for words in page[1:]} == {"train", "compare", "advise"}


def test_advice(page, root, capsys):
    (arguments,) = of(page, "advise")
    if not list(Path("results/calibration").glob("*.yaml")):
        arguments[arguments.index("gigabit-cpu")] = "p3-2xlarge"
    assert main([*arguments, "--csv", "out.csv"]) == 0
    told = capsys.readouterr().out
    assert "mynets:Net: convolutional" in told and "an epoch takes on" in told and "How sure: " in told
    assert "not subnets, J=20 on 2, 4, 8, 16: splits hidden units" in told

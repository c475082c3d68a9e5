import contextlib
import errno
import hashlib
import http.server
import io
import logging
import shutil
import socket
import sys
import tarfile
import threading
import time
import zipfile

import pytest

from implementations.data import load, prepare, sources, status
from implementations.data.summary import read_summary
from implementations.errors import UserError


def came_from(toy):
    return read_summary(prepare("toy", **toy.where).parent)["sources"]


@contextlib.contextmanager
def server(folder):
    """The folder over HTTP on this machine; yields the address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as served:
        thread = threading.Thread(target=served.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}"
        finally:
            served.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _no_proxy_no_mirror(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("PARATRAIN_DATA", raising=False)


def test_a_damaged_file_is_refused_and_the_next_source_tried(toy, caplog):
    toy.mirror("first", x=bytes(24))  # the right length, another content
    toy.mirror("second", y=b"short")
    toy.write([{"local": "../first"}, {"local": "../second"}])
    assert came_from(toy) == {"x.bin": "local ../second", "y.bin": "local ../first"}
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "refused a damaged x.bin from local ../first" in warning and "sha256" in warning
    assert load("toy", toy.results_dir).train.x.tolist() == [[2 * n, 2 * n + 1] for n in range(8)]


def test_all_failures_in_one_message_and_nothing_left(toy):
    toy.mirror("first", x=bytes(24), y=None)
    toy.write([{"local": "${PARATRAIN_DATA}/toy"}, {"local": "../first"}, {"manual": "Sign at example.org."}])
    with pytest.raises(UserError) as raised:
        prepare("toy", **toy.where)
    message = str(raised.value)
    digest = toy.card["files"][0]["sha256"]
    assert "'toy': no source delivered x.bin, y.bin" in message
    assert "environment variable PARATRAIN_DATA is not set" in message
    assert (
        f"damaged x.bin: sha256 {'9d908ecfb6b256def8b49a7c504e6c889c4b0e41fe6ce3e01863dd7b61a20aa0'}"
        in message
    )
    assert f"instead of {digest}" in message
    assert "first/y.bin" in message
    assert "by hand: Sign at example.org." in message
    assert "set PARATRAIN_DATA=FOLDER" in message
    assert [path.name for path in (toy.results_dir / "data").iterdir()] == [".toy.lock"]


def test_mirror_by_environment_variable(toy, monkeypatch):
    monkeypatch.setenv("PARATRAIN_DATA", str(toy.mirror("toy").parent))
    toy.write([{"local": "${PARATRAIN_DATA}/toy"}])
    assert set(came_from(toy).values()) == {"local ${PARATRAIN_DATA}/toy"}


def test_download(toy):
    with server(toy.mirror(x=None)) as first, server(toy.mirror("other", y=bytes(10_000_000))) as second:
        toy.write([{"url": first + "/{file}"}, {"url": second + "/{file}"}, {"url": first + "/y.bin?{file}"}])
        came = came_from(toy)
    assert came == {"x.bin": f"url {second}/{{file}}", "y.bin": f"url {first}/y.bin?{{file}}"}


def test_a_server_error_is_told(toy):
    with server(toy.mirror(x=None, y=None)) as address:
        toy.write([{"url": address + "/{file}"}])
        with pytest.raises(UserError, match=r"x\.bin: HTTP status 404"):
            prepare("toy", **toy.where)


def test_addresses_that_cannot_be_reached_fail_fast(toy):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
        toy.mirror()
        toy.write(
            [{"url": closed + "/{file}"}, {"url": "http://name.invalid/{file}"}, {"local": "../mirror"}]
        )
        start = time.monotonic()
        assert set(came_from(toy).values()) == {"local ../mirror"}
        assert time.monotonic() - start < 2 * sources.CONNECT_S


def test_a_server_that_never_answers_is_given_up(toy, monkeypatch):
    monkeypatch.setattr(sources, "READ_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        toy.write([{"url": f"http://127.0.0.1:{silent.getsockname()[1]}/{{file}}"}])
        with pytest.raises(UserError, match=r"x\.bin: no answer"):
            prepare("toy", **toy.where)


def tool(folder, name, script):
    """A stand-in for a package tool, put first on PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport shutil, sys\narguments = sys.argv[1:]\n{script}")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    return tmp_path / "tools"


def test_npm_archive(toy, tools):
    archive = tools.parent / "toy-1.0.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, raw in toy.content.items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    tool(tools, "npm", f"assert 'toy@1.0' in arguments\nshutil.copy({str(archive)!r}, '.')")
    toy.write([{"npm": "toy@1.0", "path": "package/data/{file}"}])
    assert set(came_from(toy).values()) == {"npm toy@1.0"}


def test_pypi_wheel(toy, tools, monkeypatch):
    wheel = tools.parent / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, raw in toy.content.items():
            packed.writestr(f"toy/{name}", raw)
    tool(tools, "python", f"assert arguments[:2] == ['-m', 'pip']\nshutil.copy({str(wheel)!r}, '.')")
    monkeypatch.setattr(sources.sys, "executable", str(tools / "python"))
    toy.write([{"pypi": "toy==1.0", "path": "toy/{file}"}])
    assert set(came_from(toy).values()) == {"pypi toy==1.0"}


def test_a_traversing_archive_is_refused_and_the_next_source_tried(toy, tools):
    wheel = tools.parent / "bad.tgz"
    with tarfile.open(wheel, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../../../outside"))
    tool(tools, "npm", f"shutil.copy({str(wheel)!r}, '.')")
    toy.write([{"npm": "toy@1.0", "path": "package/{file}"}])
    with pytest.raises(
        UserError, match=r"npm toy@1\.0: bad\.tgz: refused: '\.\./\.\./\.\./outside' points outside"
    ):
        prepare("toy", **toy.where)
    assert not list(tools.parent.rglob("outside"))


def test_what_a_tool_says_is_passed_on(toy, tools):
    tool(tools, "npm", "sys.exit('npm error 404 no such package')")
    toy.write(
        [{"npm": "toy@1.0", "path": "package/{file}"}, {"deb": "no-such-package", "path": "usr/{file}"}]
    )
    tool(tools, "apt-get", "sys.exit('E: Unable to locate package no-such-package')")
    tool(tools, "dpkg-deb", "")
    with pytest.raises(UserError) as raised:
        prepare("toy", **toy.where)
    assert "npm toy@1.0: npm: npm error 404 no such package" in str(raised.value)
    assert "deb no-such-package: apt-get: E: Unable to locate package" in str(raised.value)


def test_missing_tools_are_named(toy, tools, monkeypatch):
    monkeypatch.setenv("PATH", str(tools))
    toy.write([{"npm": "toy@1.0", "path": "package/{file}"}, {"deb": "toy", "path": "usr/{file}"}])
    with pytest.raises(UserError, match=r"(?s)command npm not found.*apt-get and dpkg-deb are not both here"):
        prepare("toy", **toy.where)
    assert status("toy", **toy.where)["state"] == "missing"


def test_package_lists_of_our_own_when_the_machines_lack_the_package(toy, tools):
    """As on a machine whose lists were never fetched: the first download fails, the one after ``update`` works."""
    whole = tools.parent / "whole"
    for name, raw in toy.content.items():
        (whole / "usr").mkdir(parents=True, exist_ok=True)
        (whole / "usr" / name).write_bytes(raw)
    tarball = tools.parent / "content.tar"
    with tarfile.open(tarball, "w") as tar:
        tar.add(whole / "usr", arcname="./usr")
    tool(
        tools,
        "apt-get",
        "private = [word for word in arguments if word.startswith('-oDir::State::lists=')]\n"
        "lists = private and private[0].partition('=')[2]\n"
        "if arguments[-1] == 'update': open(lists + '/fetched', 'w')\n"
        "elif not lists: sys.exit('E: Unable to locate package toy')\n"
        "else: open(lists + '/fetched'); open('toy_1_all.deb', 'w')\n",
    )
    tool(tools, "dpkg-deb", f"shutil.copyfileobj(open({str(tarball)!r}, 'rb'), sys.stdout.buffer)")
    toy.write([{"deb": "toy", "path": "usr/{file}"}])
    assert set(came_from(toy).values()) == {"deb toy"}


COMMIT = "5e" * 20


@pytest.fixture
def repository(toy, tmp_path, monkeypatch):
    """A repository's archive as a server makes it, with both raw files in one archive of the card."""
    site = tmp_path / "site"
    place = site / "owner" / "toys" / "tar.gz"
    place.mkdir(parents=True)
    with tarfile.open(place / COMMIT, "w:gz") as tar:
        for name, raw in {**{f"raw/{file}": raw for file, raw in toy.content.items()}, "readme": b""}.items():
            member = tarfile.TarInfo(f"toys-{COMMIT}/{name}")
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    lines = [f"{hashlib.sha256(toy.content[name]).hexdigest()}  raw/{name}\n" for name in ("x.bin", "y.bin")]
    contents = hashlib.sha256("".join(lines).encode()).hexdigest()
    toy.card["files"] = [{"name": "raw.tar.xz", "bytes": 1, "sha256": "0" * 64, "contents": contents}]
    recipe = toy.folder / "prepare.py"
    unpacking = "    from implementations.data.archives import unpack\n    unpack(raw / 'raw.tar.xz', raw)\n"
    text = recipe.read_text().replace("(raw /", "(raw / 'raw' /")
    recipe.write_text(text.replace("card):\n", "card):\n" + unpacking, 1))
    with server(site) as address:
        monkeypatch.setattr(sources, "_GITHUB", address)
        yield place / COMMIT


def test_a_repository_at_a_commit(toy, repository):
    toy.write([{"local": "../mirror"}, {"github": f"owner/toys@{COMMIT}", "folder": "raw"}])
    assert status("toy", **toy.where)["detail"] == f"download of github.com/owner/toys@{COMMIT} (not tried)"
    assert came_from(toy) == {"raw.tar.xz": f"github owner/toys@{COMMIT}"}
    assert load("toy", toy.results_dir).train.x.tolist() == [[2 * n, 2 * n + 1] for n in range(8)]


def test_contents_count_not_their_packing(toy, repository, tmp_path):
    """A mirror's archive may be packed by anybody."""
    for name, raw in toy.content.items():
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / name).write_bytes(raw)
    (toy.datasets_dir.parents[1] / "mirror").mkdir()
    with tarfile.open(toy.datasets_dir.parents[1] / "mirror" / "raw.tar.xz", "w:bz2") as tar:
        tar.add(tmp_path / "raw", "raw")
    toy.write([{"local": "../mirror"}])
    assert status("toy", **toy.where)["state"] == "can be had"
    assert came_from(toy) == {"raw.tar.xz": "local ../mirror"}


def test_another_content_of_a_repository_is_refused(toy, repository):
    toy.card["files"][0]["contents"] = "1" * 64
    toy.write([{"github": f"owner/toys@{COMMIT}", "folder": "raw"}])
    with pytest.raises(
        UserError, match=rf"damaged raw\.tar\.xz: contents [0-9a-f]{{64}} instead of {'1' * 64}"
    ):
        prepare("toy", **toy.where)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"github": f"owner/toys@{'0' * 40}", "folder": "raw"}, "archive: HTTP status 404"),
        ({"github": f"owner/toys@{COMMIT}", "folder": "wav"}, "holds no files below wav/"),
    ],
)
def test_a_repository_that_fails_names_the_ways_out(toy, repository, source, message):
    toy.card["stand_in"] = "teacher"
    toy.write([source, {"manual": "Ask owner."}])
    with pytest.raises(UserError, match=message) as raised:
        prepare("toy", **toy.where)
    assert "by hand: Ask owner." in str(raised.value) and "set PARATRAIN_DATA=FOLDER" in str(raised.value)
    assert str(raised.value).endswith("'teacher' can stand in for it.")


def test_a_repository_cut_short_is_not_taken(toy, repository):
    repository.write_bytes(repository.read_bytes()[:-30])
    toy.write([{"github": f"owner/toys@{COMMIT}", "folder": "raw"}])
    with pytest.raises(UserError, match=r"repository\.tar\.gz: not a whole archive"):
        prepare("toy", **toy.where)


def test_a_full_disk_is_not_blamed_on_a_source(toy, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device", "x.bin")

    toy.mirror()
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(
        UserError, match=r"cannot prepare data set 'toy' in .*results/data/toy: .*No space left"
    ):
        prepare("toy", **toy.where)


def test_a_full_disk_met_by_a_tool_is_not_blamed_on_its_source(toy, tools):
    tool(tools, "npm", "sys.exit('npm error ENOSPC: No space left on device, write')")
    toy.mirror()
    toy.write([{"npm": "toy@1.0", "path": "{file}"}, {"local": "../mirror"}])
    with pytest.raises(UserError, match=r"cannot prepare data set 'toy' in .*No space left"):
        prepare("toy", **toy.where)


def test_outlook_without_files(toy):
    toy.card["files"] = []
    toy.write([])
    assert status("toy", **toy.where)["detail"] == "computed here, nothing to fetch"
    toy.write([{"manual": "Sold by example.org."}])
    assert status("toy", **toy.where) == {"name": "toy", "state": "missing", "detail": "Sold by example.org."}
    toy.write([{"local": "../mirror"}])
    assert status("toy", **toy.where)["state"] == "missing"


def test_the_licensed_corpus_is_not_said_to_be_computed(tmp_path):
    found = status("switchboard", tmp_path)
    assert found["state"] == "missing" and "LDC97S62" in found["detail"]
    assert status("teacher", tmp_path)["state"] == "can be had"


def test_outlook(toy, tools, monkeypatch):
    def state():
        return status("toy", **toy.where)

    toy.write([{"local": "${PARATRAIN_DATA}/toy"}, {"manual": "Sign at example.org."}])
    assert state() == {"name": "toy", "state": "missing", "detail": "Sign at example.org."}
    monkeypatch.setenv("PARATRAIN_DATA", str(toy.mirror("toy").parent))
    assert state()["state"] == "can be had"
    toy.write([{"url": "https://example.org/{file}"}])
    assert state()["detail"] == "download from https://example.org/{file} (not tried)"
    toy.write([{"deb": "toy", "path": "usr/{file}"}])
    for name, words in (
        ("apt-get", ""),
        ("dpkg-deb", ""),
        ("apt-cache", "print('toy:\\n  Candidate: 1.0-1')"),
    ):
        tool(tools, name, words)
    assert state()["detail"] == "Debian package toy"
    tool(tools, "apt-cache", "print('toy:\\n  Candidate: (none)')")
    assert state()["detail"] == "Debian package toy, once package lists are fetched"

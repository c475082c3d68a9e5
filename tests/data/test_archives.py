import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import zipfile

import pytest

from implementations.data.archives import contents_hash, pack_folder, unpack
from implementations.errors import UserError


def tar_of(path, *members):
    """A tar with (name, type, link) members; regular ones hold b'content'."""
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            member.size = 7 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"content") if member.size else None)
    return path


def everything_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_plain_files_come_out_of_a_tar(tmp_path):
    archive = tar_of(
        tmp_path / "a.tgz",
        ("./a/b", tarfile.REGTYPE, ""),
        ("c", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "c"),  # within the folder: allowed, and left out
    )
    assert unpack(archive, tmp_path / "all") == [tmp_path / "all/a/b", tmp_path / "all/c"]
    assert everything_below(tmp_path / "all") == ["a/b", "c"]
    assert unpack(archive, tmp_path / "one", only=["a/b"]) == [tmp_path / "one/a/b"]
    assert (tmp_path / "one/a/b").read_bytes() == b"content"


@pytest.mark.parametrize(
    "member",
    [
        ("../outside", tarfile.REGTYPE, ""),
        ("a/../../outside", tarfile.REGTYPE, ""),
        ("/tmp/outside", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "../outside"),
        ("link", tarfile.SYMTYPE, "/etc"),
        ("link", tarfile.LNKTYPE, "../outside"),
        ("device", tarfile.CHRTYPE, ""),
    ],
)
def test_a_tar_that_points_outside_is_refused(tmp_path, member):
    inside = tmp_path / "deep" / "into"
    archive = tar_of(tmp_path / "bad.tar.gz", member)
    with pytest.raises(UserError, match=r"bad\.tar\.gz: refused"):
        unpack(archive, inside)
    assert everything_below(tmp_path) == ["bad.tar.gz"]


@pytest.mark.parametrize(
    "name", ["../outside", "a/../../outside", "/tmp/outside", "..\\outside", "C:/outside"]
)
def test_a_zip_that_points_outside_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
        packed.writestr(name, "content")
    with pytest.raises(UserError, match=r"bad\.zip: refused"):
        unpack(tmp_path / "bad.zip", tmp_path / "deep" / "into")
    assert everything_below(tmp_path) == ["bad.zip"]


def test_plain_files_come_out_of_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as packed:
        packed.writestr("a/b", "content")
        packed.writestr("c", "more")
    assert unpack(tmp_path / "a.whl", tmp_path / "one", only=["c"]) == [tmp_path / "one/c"]
    unpack(tmp_path / "a.whl", tmp_path / "all")
    assert everything_below(tmp_path / "all") == ["a/b", "c"]


@pytest.mark.parametrize("end", ["tgz", "zip", "tar", "tar.xz"])
@pytest.mark.parametrize("cut", [0, 30, 50_000])
def test_a_damaged_archive_is_named(tmp_path, end, cut):
    (tmp_path / "a").write_bytes(os.urandom(100_000))
    whole = tmp_path / f"whole.{end}"
    if end == "zip":
        with zipfile.ZipFile(whole, "w") as packed:
            packed.write(tmp_path / "a", "a")
    else:
        with tarfile.open(
            whole, f"w:{end.removeprefix('tar').removeprefix('.').replace('tgz', 'gz')}"
        ) as tar:
            tar.add(tmp_path / "a", "a")
    (tmp_path / f"cut.{end}").write_bytes(whole.read_bytes()[:cut])
    with pytest.raises(UserError, match=rf"cut\.{end}: not a whole archive"):
        unpack(tmp_path / f"cut.{end}", tmp_path / "into")


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg-deb is not here")
def test_debian_package(tmp_path):
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/share").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: toy\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: toy\n"
    )
    (tree / "usr/share/data").write_text("content")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, tmp_path / "toy.deb"], check=True)
    unpack(tmp_path / "toy.deb", tmp_path / "into", only=["usr/share/data"])
    assert everything_below(tmp_path / "into") == ["usr/share/data"]
    (tmp_path / "bad.deb").write_bytes(b"not a package")
    with pytest.raises(UserError, match=r"bad\.deb: not a whole Debian package"):
        unpack(tmp_path / "bad.deb", tmp_path / "into")


def test_contents_are_those_of_sha256sum_however_they_are_packed(tmp_path):
    files = {"d/b": b"two", "d/a": b"one", "d/a b": b"", "e": b"three"}
    for name, content in files.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    tool = subprocess.run(
        ["sha256sum", *sorted(files)], cwd=tmp_path / "tree", capture_output=True, check=True
    )
    expected = hashlib.sha256(tool.stdout).hexdigest()
    for suffix, names in (("xz", ["d", "e"]), ("gz", ["./e", "./d"])):
        archive = tmp_path / f"a.tar.{suffix}"
        subprocess.run(["tar", "-caf", archive, *names], cwd=tmp_path / "tree", check=True)
        assert contents_hash(archive) == expected
    (tmp_path / "tree/d/a").write_bytes(b"One")
    subprocess.run(["tar", "-caf", archive, "d", "e"], cwd=tmp_path / "tree", check=True)
    assert contents_hash(archive) != expected
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"a\.tar\.gz: not a whole archive"):
        contents_hash(archive)


def test_a_folder_of_a_repository_is_packed_without_the_top_folder(tmp_path):
    archive = tar_of(
        tmp_path / "a.tgz",
        ("repository-1f/sounds/x/one", tarfile.REGTYPE, ""),
        ("repository-1f/sounds/two", tarfile.REGTYPE, ""),
        ("repository-1f/sounds/link", tarfile.SYMTYPE, "/etc/passwd"),
        ("repository-1f/soundsets/three", tarfile.REGTYPE, ""),
        ("repository-1f/readme", tarfile.REGTYPE, ""),
    )
    pack_folder(archive, "sounds", tmp_path / "packed.tar")
    unpack(tmp_path / "packed.tar", tmp_path / "out")
    assert everything_below(tmp_path / "out") == ["sounds/two", "sounds/x/one"]
    assert (tmp_path / "out/sounds/two").read_bytes() == b"content"
    with pytest.raises(UserError, match=r"a\.tgz: holds no files below data/"):
        pack_folder(archive, "data", tmp_path / "none.tar")
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"a\.tgz: not a whole archive"):
        pack_folder(archive, "sounds", tmp_path / "none.tar")

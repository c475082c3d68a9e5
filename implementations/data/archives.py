"""Archives unpacked without leaving their folder: tar, zip (wheels too) and Debian packages; tars known by content.

Only plain files come out. A member whose name or link points outside is refused together with its archive, as
nobody makes such an archive by accident.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath, PureWindowsPath

from implementations.errors import UserError

_DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


def unpack(archive: str | Path, into: str | Path, only: Collection[str] | None = None) -> list[Path]:
    """Unpack plain files below ``into`` and return their paths; ``only`` picks members by name.

    UserError for a format that is none of the three, a damaged archive, or a member that points outside.
    """
    archive, into = Path(archive), Path(into)
    into.mkdir(parents=True, exist_ok=True)
    wanted = None if only is None else {_normal(name) for name in only}
    try:
        if archive.suffix == ".deb":
            with tempfile.NamedTemporaryFile(dir=into.parent, suffix=".tar") as content:
                tool = ["dpkg-deb", "--fsys-tarfile", archive]
                english = os.environ | {"LC_ALL": "C"}
                subprocess.run(tool, stdout=content, stderr=subprocess.PIPE, check=True, env=english)
                return _untar(Path(content.name), into, wanted)
        if zipfile.is_zipfile(archive):
            return _unzip(archive, into, wanted)
        return _untar(archive, into, wanted)
    except _Outside as error:
        raise UserError(f"{archive.name}: refused: {error} points outside the archive's folder") from error
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.decode(errors="replace").split())
        raise UserError(f"{archive.name}: not a whole Debian package: {said}") from error
    except (*_DAMAGE, zipfile.BadZipFile) as error:
        raise UserError(f"{archive.name}: not a whole archive: {error}") from error
    except FileNotFoundError as error:
        if error.filename == "dpkg-deb":
            raise UserError("dpkg-deb not found") from error
        raise


def contents_hash(archive: Path) -> str:
    """Hash of what a tar archive holds, however it is packed: of a line ``SHA256  PATH`` a file, sorted by path.

    As ``sha256sum`` writes them. Folders, links and file modes do not count. UserError for a damaged archive.
    """
    try:
        with tarfile.open(archive) as tar:
            held = {_normal(one.name): _member_hash(tar, one) for one in tar if one.isreg()}
    except _DAMAGE as error:
        raise UserError(f"{archive.name}: not a whole archive: {error}") from error
    lines = (f"{digest}  {name}\n" for name, digest in sorted(held.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def pack_folder(archive: Path, folder: str, into: Path) -> None:
    """Write the files below ``folder`` of a repository's archive, whose own top folder is left out, as a plain tar.

    UserError for a damaged archive, and for one without such files.
    """
    packed = 0
    try:
        with tarfile.open(archive) as tar, tarfile.open(into, "w") as out:
            for member in tar:
                name = _normal(member.name).partition("/")[2]
                if member.isreg() and name.startswith(f"{folder}/"):
                    plain = tarfile.TarInfo(name)
                    plain.size = member.size
                    out.addfile(plain, tar.extractfile(member))
                    packed += 1
    except _DAMAGE as error:
        raise UserError(f"{archive.name}: not a whole archive: {error}") from error
    if not packed:
        raise UserError(f"{archive.name}: holds no files below {folder}/")


def _member_hash(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    with tar.extractfile(member) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


class _Outside(Exception):
    pass


def _normal(name: str) -> str:
    return str(PurePosixPath(name))  # './a//b' and 'a/b' are one member


def _check_name(name: str) -> None:
    _check_anchor(name)
    if ".." in PureWindowsPath(name).parts:
        raise _Outside(repr(name))


def _untar(archive: Path, into: Path, wanted: set[str] | None) -> list[Path]:
    unpacked = []
    with tarfile.open(archive) as tar:
        for member in tar:
            _check_name(member.name)
            _check_link(member)
            if member.isreg() and (wanted is None or _normal(member.name) in wanted):
                target = into / _normal(member.name)
                os.makedirs(target.parent, exist_ok=True)
                with tar.extractfile(member) as source, open(target, "wb") as sink:
                    shutil.copyfileobj(source, sink)
                unpacked.append(target)
    return unpacked


def _check_link(member: tarfile.TarInfo) -> None:
    """Refuse links that lead out of the folder, and devices. Not every Python 3.11 has tarfile's own filters."""
    if member.isdev():
        raise _Outside(repr(member.name))
    if member.issym() or member.islnk():
        _check_anchor(member.linkname)
        start = PurePosixPath(member.name).parent if member.issym() else PurePosixPath()
        depth = 0
        for part in (start / member.linkname).parts:
            depth += -1 if part == ".." else part != "."
            if depth < 0:
                raise _Outside(repr(member.name))


def _check_anchor(name: str) -> None:
    if PureWindowsPath(name).anchor:  # knows both slashes, and drives
        raise _Outside(repr(name))


def _unzip(archive: Path, into: Path, wanted: set[str] | None) -> list[Path]:
    unpacked = []
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            _check_name(member.filename)
            if not member.is_dir() and (wanted is None or _normal(member.filename) in wanted):
                target = into / _normal(member.filename)
                os.makedirs(target.parent, exist_ok=True)
                with packed.open(member) as source, open(target, "wb") as sink:
                    shutil.copyfileobj(source, sink)
                unpacked.append(target)
    return unpacked

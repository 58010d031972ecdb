"""`metergate compile`: makes the compiled form of the request's path (`gateway/compiled.py`).

It needs mypy (`pip install 'metergate[compile]'`) and a C compiler, takes a minute or two, and is done once an installation.
The work is a process of its own (`python -m gateway.compiling FOLDER`): setuptools wants a working directory to itself.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gateway.compiled import MODULES, ROOT, digest, folder, source_of

_UNREAD: Final = (
    "alembic asyncpg babel click httpx jinja2 litestar prometheus_client pyreqwest redis rich sqlalchemy uvicorn"
)
"""Packages whose types decide nothing about the modules that are compiled: reading them would take half of the time."""


class CannotCompile(Exception):
    """The message says what is missing, or shows the end of what the compiler said."""


def compile_path(*, again: bool = False) -> Path:
    """The folder of the compiled modules, made now unless it is there (`again`: in any case).

    Raises `CannotCompile`; whatever was compiled before stays in use as far as it fits the sources.
    """
    final = folder(digest())
    if final.is_dir() and not again:
        return final
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        raise CannotCompile("mypy and setuptools are needed: pip install 'metergate[compile]'")
    if shutil.which(os.environ.get("CC", "cc")) is None and shutil.which("gcc") is None:
        raise CannotCompile("a C compiler is needed: apt-get install gcc (and the headers of Python, python3-dev)")
    try:
        final.parent.mkdir(exist_ok=True)
        lock = (final.parent / "lock").open("w")
    except OSError as error:
        raise CannotCompile(f"{final.parent} cannot be written: {error.strerror}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time: the second finds what the first has made
        if again or not final.is_dir():
            _replace(final)
    return final


def _replace(final: Path) -> None:
    """Compiles into `final`. The last one before it stays, for gateways that run it; older ones are deleted."""
    with tempfile.TemporaryDirectory(prefix="metergate-compile-") as made:
        command = [sys.executable, "-m", "gateway.compiling", made]
        environment = {**os.environ, "METERGATE_COMPILED": "off", "PYTHONPATH": str(ROOT)}
        run = subprocess.run(command, cwd=made, env=environment, capture_output=True, text=True, check=False)
        if run.returncode:
            raise CannotCompile(f"compiling failed:\n{(run.stdout + run.stderr)[-3000:]}")
        if folder(digest()) != final:
            raise CannotCompile("the sources were changed meanwhile; run it again")
        others = [each for each in final.parent.iterdir() if each.is_dir() and each != final]
        for older in sorted(others, key=lambda each: each.stat().st_mtime)[:-1]:
            shutil.rmtree(older, ignore_errors=True)
        shutil.rmtree(final, ignore_errors=True)
        moved = final.with_suffix(".new")
        shutil.copytree(Path(made) / "lib", moved, dirs_exist_ok=True)
        os.rename(moved, final)


def _build(made: Path) -> None:
    from mypyc.build import mypycify
    from setuptools import setup

    copied = made / "sources"  # alone in a folder: beside other packages mypy would take those for ours
    for package in ("billing", "gateway"):
        shutil.copytree(ROOT / package, copied / package, ignore=shutil.ignore_patterns("__compiled__", "__pycache__"))
    os.chdir(copied)  # names of modules are made from paths relative to it
    sources = [str(source_of(module).relative_to(ROOT)) for module in MODULES]
    unread = ",".join(f"{package}.*" for package in _UNREAD.split())
    settings = made / "mypy.ini"
    settings.write_text(
        f"[mypy]\nfollow_imports = silent\nignore_missing_imports = True\n[mypy-{unread}]\nfollow_imports = skip\n"
    )
    flags = [f"--config-file={settings}", f"--cache-dir={made / 'types'}"]
    extensions = mypycify(
        [*flags, *sources], opt_level="1", debug_level="0", multi_file=True, target_dir=str(made / "c")
    )
    places = ["--build-lib", str(made / "lib"), "--build-temp", str(made / "objects")]
    setup(name="metergate-compiled", packages=[], ext_modules=extensions, script_args=["-q", "build_ext", *places])


if __name__ == "__main__":
    _build(Path(sys.argv[1]))

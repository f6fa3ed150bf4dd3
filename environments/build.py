"""Build the pinned environments of the tests and the demo, once, in the user's cache.

Each lives under ``$XDG_CACHE_HOME/muon-toolkit`` in a folder named after a digest of its pinned
requirements, so that every clone with the same pins shares it. Standard library only: this runs
before anything is installed.

    python3 environments/build.py toolkit     prints the Python of the 3.11 environment
    python3 environments/build.py maxtext     prints the Python of the 3.12 environment
    python3 environments/build.py maxtext-tpu prints the Python of the same with the TPU compiler
    python3 environments/build.py releases    prints the folder with one MaxText wheel per subfolder
    python3 environments/build.py browser     prints the headless browser that the page's test uses
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMPLETE = ".complete"


class SetUpError(Exception):
    """The machine lacks something; the message says what to install."""


def main(argv: list[str]) -> int:
    builders = {
        "toolkit": toolkit,
        "maxtext": maxtext,
        "maxtext-tpu": maxtext_tpu,
        "releases": releases,
        "browser": browser,
    }
    if len(argv) != 1 or argv[0] not in builders:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(builders[argv[0]]())
    except (SetUpError, subprocess.CalledProcessError) as error:
        print(f"environments: {error}", file=sys.stderr)
        return 2
    return 0


def toolkit() -> Path:
    """Toolkit, CPU torch and Megatron-Core; the older Megatron-Core lies in ``megatron-older``."""
    pins = ("toolkit.txt", "megatron.txt", "megatron-older.txt")
    with _claimed("toolkit-3.11", pins) as (home, is_new):
        if is_new:
            python = _new_venv(home, "3.11")
            torch = next(pin for pin in _pins("toolkit.txt") if pin.startswith("torch=="))
            # torch first and alone: its index may offer a CPU build for this very pin only.
            _pip(python, torch)
            _pip(python, "-r", str(HERE / "toolkit.txt"))
            _pip(python, *_METADATA_IGNORED, "-r", str(HERE / "megatron.txt"))
            older = ["--target", str(home / "megatron-older")]
            _pip(python, *_METADATA_IGNORED, *older, "-r", str(HERE / "megatron-older.txt"))
    return home / "bin" / "python"


def maxtext() -> Path:
    """What released MaxText imports on a CPU, without MaxText."""
    with _claimed("maxtext-3.12", ("maxtext.txt",)) as (home, is_new):
        if is_new:
            _pip(_new_venv(home, "3.12"), "--no-deps", "-r", str(HERE / "maxtext.txt"))
    return home / "bin" / "python"


def maxtext_tpu() -> Path:
    """The same plus libtpu, on demand: it is large, and JAX looks for a TPU wherever it is."""
    base = maxtext()
    with _claimed("maxtext-tpu-3.12", ("maxtext.txt", "maxtext-tpu.txt")) as (home, is_new):
        if is_new:
            subprocess.run([str(base), "-m", "venv", "--without-pip", str(home)], check=True)
            site = next(home.glob("lib/python*/site-packages"))
            _pip(base, "--no-deps", "--target", str(site), "-r", str(HERE / "maxtext-tpu.txt"))
            below = next(base.parents[1].glob("lib/python*/site-packages"))
            (site / "maxtext.pth").write_text(f"{below}\n")
    return home / "bin" / "python"


def releases() -> Path:
    """Every pinned MaxText wheel, unpacked."""
    with _claimed("maxtext-releases", ("releases.txt",)) as (home, is_new):
        if is_new:
            home.mkdir(parents=True)
            for pin in _pins("releases.txt"):
                _unpack_wheel(pin, home)
    return home


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser() -> Path:
    """A Chromium on PATH; as root on a Debian that lacks one, it is installed first.

    Raises:
      SetUpError: there is none, and it cannot be installed.
    """
    found = _on_path(BROWSERS)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        print("environments: installing chromium", file=sys.stderr)
        quiet, no_questions = ["apt-get", "-qq"], os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
            # What goes wrong here, apt-get says itself; what is missing is said below.
            subprocess.run([*quiet, *words], check=False, stdout=sys.stderr, env=no_questions)
        found = _on_path(BROWSERS)
    if found is None:
        raise SetUpError(
            "a headless browser is missing: install the package chromium (or google-chrome) "
            f"so that one of {', '.join(BROWSERS)} is on PATH"
        )
    return found


def _on_path(names: tuple[str, ...]) -> Path | None:
    return next((Path(path) for name in names if (path := shutil.which(name))), None)


_METADATA_IGNORED = ("--ignore-requires-python", "--no-deps")


def _unpack_wheel(pin: str, home: Path) -> None:
    wheels = home / "wheels"
    download = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run(
        [str(maxtext()), *download, "-d", str(wheels), pin], check=True, stdout=sys.stderr
    )
    version = pin.partition("==")[2]
    (wheel,) = wheels.glob(f"*-{version}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(home / version)
    shutil.rmtree(wheels)


@contextmanager
def _claimed(name: str, pin_files: tuple[str, ...]) -> Iterator[tuple[Path, bool]]:
    """The environment's folder, locked; a half-built one is removed and built again."""
    digest = hashlib.sha256("\n".join(p for f in pin_files for p in _pins(f)).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muon-toolkit"
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / f"{name}-{digest.hexdigest()[:12]}"
    with open(cache / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_new = not (home / COMPLETE).exists()
        if is_new:
            shutil.rmtree(home, ignore_errors=True)
            print(f"environments: building {home} (once; takes some minutes)", file=sys.stderr)
        yield home, is_new
        (home / COMPLETE).touch()


def _pins(name: str) -> list[str]:
    lines = (line.strip() for line in (HERE / name).read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _new_venv(home: Path, version: str) -> Path:
    subprocess.run([str(find_python(version)), "-m", "venv", str(home)], check=True)
    return home / "bin" / "python"


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], check=True, stdout=sys.stderr)


def find_python(version: str) -> Path:
    """A Python of that minor version, from PATH or from pyenv.

    Raises:
      SetUpError: there is none.
    """
    for candidate in _candidates(version):
        probe = [str(candidate), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(probe, capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return candidate
    raise SetUpError(
        f"Python {version} is missing: put python{version} on PATH or install it with pyenv"
    )


def _candidates(version: str) -> Iterator[Path]:
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}*/bin/python{version}"), reverse=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

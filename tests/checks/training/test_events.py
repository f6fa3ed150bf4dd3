"""TensorBoard events, written by TensorBoard's own protocol in another library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checks.training.errors import RunError
from checks.training.events import masked_crc, scalars
from checks.training.loss_formats import FORMATS
from checks.training.losses import read_losses

ROOT = Path(__file__).parents[3]
WRITE = """
import sys
from tensorboardX import SummaryWriter
first = int(sys.argv[2])
writer = SummaryWriter(sys.argv[1], filename_suffix=sys.argv[3])
for n in range(first, first + 5):
    writer.add_scalar("lm loss", 5.5 - n / 8, n)
    writer.add_scalar("lm loss vs samples", 9.0, 4 * n)
    writer.add_scalar("grad-norm", 1.0, n)
writer.add_text("args", "x", 1)
writer.add_histogram("h", [1.0, 2.0], 1)
writer.close()
"""


def write(folder: Path, first: int, suffix: str) -> None:
    """Through tensorboardX, which lies in MaxText's environment."""
    build = [sys.executable, str(ROOT / "environments/build.py"), "maxtext"]
    python = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    subprocess.run([python, "-c", WRITE, str(folder), str(first), suffix], check=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tensorboard")
    write(folder, 1, ".a")
    return folder


def event_file(folder: Path) -> Path:
    (file,) = folder.glob("events.out.tfevents.*")
    return file


def test_checksum() -> None:
    """CRC-32C of "123456789" is 0xE3069283, from RFC 3720's polynomial; then masked."""
    crc = 0xE3069283
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars_of_a_real_file(folder: Path) -> None:
    found = list(scalars(folder))
    assert (1, "lm_loss", 5.375) in found
    assert (3, "grad-norm", 1.0) in found
    assert {tag for _, tag, _ in found} == {"lm_loss", "lm_loss_vs_samples", "grad-norm"}


@pytest.mark.parametrize("whole_folder", [True, False])
def test_losses_of_a_folder_or_a_file(folder: Path, whole_folder: bool) -> None:
    path = folder if whole_folder else event_file(folder)
    losses = read_losses(path, 0, FORMATS)
    assert losses.first_step == 0
    assert losses.values.tolist() == [5.5 - n / 8 for n in range(1, 6)]
    assert "'lm_loss'" in losses.notes[0]


def test_a_file_that_still_grows_is_read_to_its_last_whole_record(
    folder: Path, tmp_path: Path
) -> None:
    whole = event_file(folder).read_bytes()
    cut = tmp_path / "events.out.tfevents.cut"
    cut.write_bytes(whole[:-9])
    assert set(scalars(cut)) <= set(scalars(folder))


def test_damage_is_named(folder: Path, tmp_path: Path) -> None:
    whole = bytearray(event_file(folder).read_bytes())
    for place, what in ((14, "checksum of a record"), (1, "checksum of a record's length")):
        bad = tmp_path / "events.out.tfevents.bad"
        changed = bytearray(whole)
        changed[place] ^= 0x40
        bad.write_bytes(bytes(changed))
        with pytest.raises(RunError, match=what):
            list(scalars(bad))

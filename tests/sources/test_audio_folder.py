"""AudioFolder: what soundfile reads, cut at a place drawn by sample, padded, its sampling rate checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import AudioFolder
from penstock.errors import CorruptSample, InvalidOption, MissingSample

soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed: pip install soundfile")
pytestmark = pytest.mark.native
RATE = 1000
LENGTHS = (2000, 1500, 400, 1000)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        for number, frames in enumerate(LENGTHS):
            ramp = np.arange(frames * 2).reshape(frames, 2) / 4096
            name = f"{number}.flac" if number == 1 else f"{number}.wav"
            soundfile.write(tmp_path / kind / name, ramp, RATE, "PCM_16")
    return tmp_path


def test_whole_sounds(root: Path) -> None:
    sounds = AudioFolder(root)
    assert (len(sounds), sounds.classes, sounds.class_to_idx) == (8, ["cat", "dog"], {"cat": 0, "dog": 1})
    assert (sounds.labels, sounds.sampling_rate) == ([0] * 4 + [1] * 4, RATE)
    for position, path in enumerate(sounds.paths):
        waveform, label = sounds[position]
        wanted = torch.from_numpy(soundfile.read(path, dtype="float32")[0].T)
        assert torch.equal(waveform, wanted) and waveform.is_contiguous()
        assert label == position // 4
    assert torch.equal(sounds[-1][0], sounds[7][0])
    with pytest.raises(IndexError, match="8"):
        sounds[8]
    assert repr(sounds) == "AudioFolder(8 files, 1,000 frames a second)"


def test_parts_of_one_length(root: Path) -> None:
    sounds = AudioFolder(root, seconds=1.2, transform=lambda waveform: waveform[:1])
    starts = set()
    for _ in range(20):
        for position, frames in enumerate(LENGTHS):
            waveform = (sounds[position][0] * 2048).long()
            assert waveform.shape == (1, 1200)
            assert waveform[0, min(frames, 1200) :].eq(0).all()
            kept = waveform[0, : min(frames, 1200)]
            start = int(kept[0])
            assert torch.equal(kept, start + torch.arange(len(kept)))
            assert 0 <= start <= max(frames - 1200, 0)
            starts.add((position, start))
    assert len(starts) > 20


WAYS: list[Any] = [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}]


@pytest.mark.parametrize("options", WAYS)
def test_places_are_drawn_by_sample(root: Path, options: Any) -> None:
    sounds = AudioFolder(root, seconds=0.1)

    def epochs(**others: Any) -> list[Any]:
        loader = penstock.DataLoader(sounds, 3, shuffle=True, seed=5, **others)
        return [torch.cat([waveforms for waveforms, _ in loader]) for _ in range(2)]

    wanted = epochs()
    assert all(map(torch.equal, epochs(**options), wanted))
    assert not torch.equal(*wanted)
    assert "AudioFolder: its files are read natively" in penstock.DataLoader(sounds, **options).explain()


def test_a_list_of_files(root: Path) -> None:
    paths: list[Any] = [root / "cat" / "0.wav", str(root / "dog" / "2.wav")]
    assert [one.shape for one in AudioFolder(paths)] == [(2, 2000), (2, 400)]  # type: ignore[attr-defined]
    labelled = AudioFolder(paths, ["a", "b"], target_transform=str.upper)
    assert [label for _, label in labelled] == ["A", "B"]  # type: ignore[attr-defined]
    with pytest.raises(InvalidOption, match="1 labels for 2 files"):
        AudioFolder(paths, [1])
    for wrong in ({"seconds": 0}, {"seconds": -1.0}, {"seconds": float("nan")}):
        with pytest.raises(InvalidOption, match="above zero"):
            AudioFolder(paths, **wrong)
    with pytest.raises(InvalidOption, match="a file at least"):
        AudioFolder([])


def test_errors(root: Path) -> None:
    sounds = AudioFolder(root)
    soundfile.write(root / "cat" / "0.wav", np.zeros((5, 2)), 44100)
    with pytest.raises(CorruptSample, match="44,100 frames a second, not 1,000"):
        sounds[0]
    (root / "cat" / "2.wav").write_bytes(b"RIFFnothing")
    with pytest.raises(CorruptSample, match="cannot be read"):
        sounds[2]
    (root / "cat" / "3.wav").unlink()
    with pytest.raises(MissingSample, match=r"3\.wav"):
        sounds[3]
    with pytest.raises(FileNotFoundError, match="AudioFolder needs one folder a class"):
        AudioFolder(root / "dog")
    (root / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty[^*]*\.flac"):
        AudioFolder(root)

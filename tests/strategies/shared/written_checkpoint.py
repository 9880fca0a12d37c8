"""What a trainer writes: a directory of safetensors files, with what else lies in such directories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from small_state import State

from wsm.strategies.files.safetensors import write_safetensors


def write_checkpoint(
    directory: Path, state: State, *, files: int = 2, index: bool = True, leave_out: Sequence[str] = ()
) -> Path:
    """Write `state` into so many files, as trainers do; of those in `leave_out` only the index speaks."""
    directory.mkdir(parents=True, exist_ok=True)
    names = sorted(state)
    weight_map: dict[str, str] = {}
    for number in range(files):
        file = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        held = names[number::files]
        weight_map |= dict.fromkeys(held, file)
        write_file(directory / file, {name: state[name] for name in held if name not in leave_out})
    if index:
        text = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
        (directory / "model.safetensors.index.json").write_text(text)
    (directory / "config.json").write_text("{}")
    return directory


def write_file(path: Path, state: Mapping[str, tuple[object, bytes]]) -> None:
    """Write one safetensors file as other programs do: no word of wsm in it."""
    path.unlink(missing_ok=True)
    specs = [spec for spec, _ in state.values()]
    data = (memoryview(content) for _, content in state.values())
    write_safetensors(path, specs, data, {"format": "pt"}, durable=False)  # type: ignore[arg-type] # specs


def overwrite_in_place(path: Path) -> None:
    """Change the last byte of a file, and leave it the file that it is."""
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 0xFF]))

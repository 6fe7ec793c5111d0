"""The sizes of a run: the full benchmark, or a smoke test that only shows that every subject runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "bench"
SEED = 20260917


class Scale(msgspec.Struct, frozen=True):
    """Sizes and counts of one run; `folder` holds the corpus and all scratch files."""

    folder: str
    large_mb: float = 1000
    middle_mb: float = 100
    small_mb: float = 10
    tiny_mb: float = 1
    rounds: int = 15
    heavy_rounds: int = 5
    appends: int = 1000  # in one round
    few: int = 1_000
    many: int = 1_000_000
    syncs: int = 64  # in one round
    processes: int = 8
    process_appends: int = 400  # of each process in one round
    clients: int = 64  # of the gateway, concurrently
    keys: int = 10_000  # in the full store of the gateway
    load_seconds: float = 2.0  # of one round of turns at maximum speed
    steady_seconds: float = 10.0  # of one round of turns at a steady rate
    peers: bool = False  # whether installed peers take part

    @property
    def sizes(self) -> tuple[float, ...]:
        """Return the sizes of all sessions, largest first."""
        return tuple(dict.fromkeys((self.large_mb, self.middle_mb, self.small_mb, self.tiny_mb)))

    def scratch(self) -> Path:
        """Return the folder for temporary files of a subject."""
        folder = Path(self.folder, "scratch")
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def smoke(folder: str) -> Scale:
    """Return the smallest scale that runs every subject once."""
    return Scale(
        folder=folder,
        large_mb=4,
        middle_mb=3,
        small_mb=2,
        tiny_mb=1,
        rounds=1,
        heavy_rounds=1,
        appends=20,
        few=20,
        many=200,
        syncs=8,
        processes=2,
        process_appends=10,
        clients=4,
        keys=40,
        load_seconds=0.2,
        steady_seconds=0.3,
    )

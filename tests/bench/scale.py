"""How much a run does: the full bench, or a smoke test that only shows that every subject still runs."""

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
    clients: int = 64  # of the gateway, at once
    keys: int = 10_000  # that its store is full with
    load_seconds: float = 2.0  # of one round of turns, as fast as they go
    steady_seconds: float = 10.0  # of one round of turns at a steady rate
    peers: bool = False  # whether those that are installed take part

    @property
    def sizes(self) -> tuple[float, ...]:
        """Of all sessions, the largest first."""
        return tuple(dict.fromkeys((self.large_mb, self.middle_mb, self.small_mb, self.tiny_mb)))

    def scratch(self) -> Path:
        """The folder for files that do not outlive a subject."""
        folder = Path(self.folder, "scratch")
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def smoke(folder: str) -> Scale:
    """Every subject once, on next to nothing."""
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

"""Ready settings for `tokencredit train --config NAME`."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
CONFIGS = sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def find_config(name: str) -> Path:
    """The file of that path, or else the ready one of that name; it need not be there."""
    path = Path(name)
    return _FOLDER / f"{name}.yaml" if name in CONFIGS and not path.exists() else path

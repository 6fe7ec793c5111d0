"""The configuration file that a verb goes by: the one that was named, else that in the root of the store, else none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from sessile.errors import InvalidConfig, NotFound, storage_failures

if TYPE_CHECKING:
    from sessile.cli.app import App
    from sessile.config import Config

_NAMES = ("config.toml", "config.json")


class Settings(NamedTuple):
    """A configuration, the keys of its file that have no effect, and the file, if there is one."""

    config: Config
    unknown: list[str]
    path: str | None

    def token_file(self, root: str) -> str:
        """Where the token of the gateway lies; a name in the file is meant from the folder of the file."""
        named = self.config.gateway.token_file
        if named is None or self.path is None:
            return f"{root}/gateway.token"
        return os.path.abspath(os.path.join(os.path.dirname(self.path), os.path.expanduser(named)))


def config_path(app: App, named: str | None = None) -> str | None:
    """The file that holds; `None` if everything has its default."""
    if named is not None:
        path = os.path.abspath(os.path.join(app.here, os.path.expanduser(named)))
        if not os.path.isfile(path):
            raise NotFound("there is no such file", path=path, hint="--config FILE names a file of TOML or JSON")
        return path
    found = [path for name in _NAMES if os.path.lexists(path := f"{app.places.root}/{name}")]
    if len(found) > 1:
        hint = "take one of them away, or say --config FILE"
        raise InvalidConfig(f"there are both {_NAMES[0]} and {_NAMES[1]}", path=app.places.root, hint=hint)
    return found[0] if found else None


def load_settings(app: App, named: str | None = None) -> Settings:
    """The configuration that holds; raises `InvalidConfig` with the key or the line that is wrong."""
    from sessile.config import Config, load_config

    path = config_path(app, named)
    if path is None:
        return Settings(Config(), [], None)
    with storage_failures(path, "read the configuration"), open(path, "rb") as file:
        data = file.read()
    loaded = load_config(data, path)
    return Settings(loaded.config, loaded.unknown, path)


def warn_of_unknown(app: App, settings: Settings) -> None:
    """Say which keys of the file nobody reads."""
    for key in settings.unknown:
        app.out.note(f"note: {key} in {app.tilde(settings.path or '')} is not known, and has no effect")

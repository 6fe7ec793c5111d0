"""The frame that every verb runs in: options for all verbs, help with examples first, errors as messages and exit codes.

0 done   1 nothing found, or something found that should not be there   2 used wrongly   3 there is no such thing
4 ambiguous   5 damaged   6 busy   7 refused for safety   8 the storage failed   130 interrupted   141 pipe closed

Where the sessions of a person are: one's own store, other agents' folders, the cache.

Environment variables say where they are (`core/variables` lists them). With a database as one's own store, what belongs to this
machine, such as the configuration and the token of the gateway, stays in ~/.sessile.

Nothing is created here.

The configuration file that a verb goes by: the one that was named, else that in the root of the store, else none.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sessile import __version__, errors
from sessile.agents.registry import AGENTS
from sessile.cli.main import ALIASES, VERBS
from sessile.cli.output import Output
from sessile.errors import InvalidConfig, NotFound, storage_failures
from sessile.storage.backing import is_database
from sessile.storage.layout import Source

if TYPE_CHECKING:
    from sessile.config import Config
    from sessile.library import Library
    from sessile.store import Store


# --- app

INTERRUPTED = 130
BROKEN_PIPE = 141  # as shells report a process that died of a closed pipe

_HELP_NAMES = {"help_option_names": ["-h", "--help"]}
_MODULES = {verb: module for group in VERBS.values() for verb, (module, _) in group.items()}


class App:
    """What a verb has to work with: where things are, the library, and the way out."""

    def __init__(self) -> None:
        self.json = False
        self.plain = False
        self.color = "auto"
        self.no_pager = False
        self.demo = False
        self.root: str | None = None
        self.tz: str | None = None

    @cached_property
    def out(self) -> Output:
        """Where output goes."""
        return Output(json=self.json, plain=self.plain, color=self.color, pager=not self.no_pager, zone=self.tz)

    @cached_property
    def places(self) -> Places:
        """The folders of this person."""

        return find_places(os.environ, root=self.root, demo=self.demo)

    @cached_property
    def store(self) -> Store:
        """One's own store, or the demo's."""
        from sessile.store import Store

        store = Store(self.places.store, cache=self.places.cache, blobs=self.places.blobs)
        if self.demo:
            self._make_demo(store)
        return store

    def _make_demo(self, store: Store) -> None:
        from sessile.demo.corpus import make_demo

        written = make_demo(store)
        if written:
            self.out.note(f"wrote {written} made-up sessions to {self.places.root}")

    @cached_property
    def library(self) -> Library:
        """All sessions of this person."""
        from sessile.library import Library

        return Library(self.store, self.places.sources(self.store), cache=self.places.cache, auto_catch_up=False)

    def say_notices(self) -> None:
        """Say what did not work while the catalog was brought up to date: a folder that cannot be read, a full cache."""
        for notice in self.library.notices:
            self.out.note(f"note: {notice}")

    @property
    def command(self) -> str:
        """How this very store is called up again, for whoever copies what a verb suggests."""
        if self.demo or self.root is None:
            return "sessile --demo" if self.demo else "sessile"
        import shlex

        from sessile.storage.backing import is_database

        return f"sessile --root {shlex.quote(self.store.name if is_database(self.root) else self.root)}"

    def tilde(self, path: str) -> str:
        """A path as a person writes it."""
        home = self.places.home
        return f"~{path[len(home) :]}" if path == home or path.startswith(f"{home}/") else path

    @cached_property
    def here(self) -> str:
        """The folder that the command was started in."""
        try:
            return os.getcwd()
        except FileNotFoundError:
            return os.environ.get("PWD", "/")  # somebody removed it


def _set(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        setattr(context.ensure_object(App), str(parameter.name), value)


_COMMON = (
    click.option("--json", is_flag=True, expose_value=False, callback=_set, help="One JSON document."),
    click.option("--plain", is_flag=True, expose_value=False, callback=_set, help="For screen readers."),
    click.option(
        "--color", type=click.Choice(["auto", "always", "never"]), expose_value=False, callback=_set, help="Colours."
    ),
    click.option("--no-pager", is_flag=True, expose_value=False, callback=_set, help="Print, do not page."),
    click.option("--tz", metavar="ZONE", expose_value=False, callback=_set, help="Time zone, such as Europe/Berlin."),
    click.option(
        "--root", metavar="PATH|URL", expose_value=False, callback=_set, help="Another store than ~/.sessile."
    ),
    click.option("--demo", is_flag=True, expose_value=False, callback=_set, help="The made-up store of sessile demo."),
)


class Verb(click.Command):
    """A command whose help begins with examples."""

    examples: Sequence[str] = ()

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What it does, then how it is used, then the options."""
        super().format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                first = " " * formatter.current_indent
                for example in self.examples:  # what does not fit is further in, so that it is not taken for a command
                    formatter.write(click.wrap_text(example, formatter.width, first, first + " " * 8) + "\n")


def verb(*examples: str, name: str) -> Callable[[Callable[..., Any]], Verb]:
    """Make a function a verb that gets the `App` first and has the options of all verbs."""

    def make(function: Callable[..., Any]) -> Verb:
        command = click.command(name, cls=Verb, context_settings=_HELP_NAMES)(click.pass_obj(function))
        for option in reversed(_COMMON):
            option(command)
        command.examples = examples
        return command

    return make


class _SeenEnough(Exception):
    """Whoever reads stdout has closed it. Not an `OSError`, of which click would make an exit code of its own."""


class Verbs(click.Group):
    """The table of verbs: a module is imported when its verb is used."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb that was asked for."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _SeenEnough from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of the table."""
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of that name, or its alias."""
        name = ALIASES.get(cmd_name, cmd_name)
        if name == "help":
            return _help
        if name not in _MODULES:
            return None
        command: click.Command = getattr(import_module(f"sessile.cli.{_MODULES[name]}"), f"{name}_verb")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that is meant; an unknown one is answered with those that sound like it."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], [*_MODULES, *ALIASES], 3)
            hint = f"did you mean {' or '.join(near)}?" if near else "sessile --help lists the verbs"
            raise errors.InvalidQuery(f"there is no verb {args[0][:40]!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs by group, from the table alone."""
        for group, verbs in VERBS.items():
            with formatter.section(group):
                formatter.write_dl([(name, text) for name, (_, text) in verbs.items()])


@click.command("help", help="What a verb does, with examples.")
@click.argument("verb", required=False)
@click.pass_context
def _help(context: click.Context, verb: str | None) -> None:
    parent = context.parent
    assert parent is not None and isinstance(parent.command, Verbs)
    if verb is None:
        click.echo(parent.get_help())
        return
    name, command, _ = parent.command.resolve_command(parent, [verb])
    assert command is not None
    click.echo(command.get_help(click.Context(command, parent, name)))


def _version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        click.echo(__version__)
        context.exit()


_EPILOG = "sessile help VERB shows examples. Without sessions of your own, begin with: sessile demo"


@click.group(cls=Verbs, invoke_without_command=True, context_settings=_HELP_NAMES, epilog=_EPILOG)
@click.option(
    "--version", "-V", is_flag=True, expose_value=False, is_eager=True, help="Print the version.", callback=_version
)
@click.pass_context
def sessile(context: click.Context) -> None:
    """Every session of your agents: find, read, search, branch, resume, export, clean."""
    context.ensure_object(App)
    if context.invoked_subcommand is None:
        from sessile.cli.starting import welcome

        welcome(context.obj)


for _option in reversed(_COMMON):
    _option(sessile)


def run(arguments: list[str]) -> int:
    """Run one verb; whatever goes wrong becomes a message and an exit code."""
    app = App()
    app.json = "--json" in arguments or "--jsonl" in arguments  # errors before the options are read obey it too
    _prepare_streams()
    try:
        return _perform(app, arguments)
    except errors.SessileError as error:
        return app.out.fail(error, command="sessile --demo" if app.demo else "sessile")
    except click.ClickException as error:
        usage = error.ctx.get_usage() if isinstance(error, click.UsageError) and error.ctx else None
        return app.out.fail(errors.Invalid(error.format_message(), hint=usage))
    except (BrokenPipeError, _SeenEnough):
        _give_up_stdout()
        return BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        app.out.note("interrupted; what was finished is kept")
        return INTERRUPTED
    except OSError as error:
        if error.filename is not None:
            return app.out.fail(errors.storage_failure(error, os.fsdecode(error.filename), "do that"))
        _give_up_stdout()
        return app.out.fail(errors.storage_failure(error, "stdout", "write the output"))
    except MemoryError:
        hint = "ask for less: --tail, --since, one session"
        return app.out.fail(errors.StorageFailure("there is not enough memory for that", hint=hint))


def _perform(app: App, arguments: list[str]) -> int:
    try:
        code = sessile.main(arguments, prog_name="sessile", standalone_mode=False, obj=app)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    finally:
        if "library" in vars(app):
            app.library.close()
        if "store" in vars(app):
            app.store.close()


def _prepare_streams() -> None:
    """Make all three streams usable: one that is closed reads and writes nothing, and every character can be written."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal of another alphabet cannot show


def _give_up_stdout() -> None:
    """Nothing can be written to stdout any more, not even at exit, when Python would try once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- places


class Places(NamedTuple):
    """The folders of one person."""

    home: str
    store: str  # one's own: a folder, or the address of a database
    root: str  # the folder of what belongs to this machine; that of the store, if it is one
    cache: str
    blobs: str | None  # the address of an object store for large content
    family: Sequence[Source]  # those of other agents, whether they exist or not

    def sources(self, store: Store) -> list[Source]:
        """The folders of other agents that exist, and those that the person has added."""
        from sessile.library import added_sources

        added = [source_at(path) for path in added_sources(store).names()]
        return [source for source in (*self.family, *added) if os.path.isdir(source.sessions)]


def source_at(folder: str) -> Source:
    """A folder that somebody has named: the root of a store, or a folder with session files."""
    sessions = f"{folder}/sessions"
    return Source("folder", folder, sessions if os.path.isdir(sessions) else folder)


def find_places(environ: Mapping[str, str], *, root: str | None, demo: bool) -> Places:
    """The folders that this environment names."""
    home = environ.get("HOME") or os.path.expanduser("~")
    if not os.path.isabs(home):
        raise InvalidConfig("HOME is not set to an absolute path", hint="set HOME, or say --root PATH")
    cache = environ.get("SESSILE_CACHE") or _cache_folder()
    if demo:
        made_up = f"{cache}/demo-{__version__}"
        return Places(home, made_up, made_up, f"{cache}/demo-cache", None, ())
    given = root or environ.get("SESSILE_ROOT") or f"{home}/.sessile"
    own = f"{home}/.sessile" if is_database(given) else os.path.abspath(os.path.expanduser(given))
    family = [source for source in AGENTS.sources(home, environ, _names) if source.root != own]
    store = given if is_database(given) else own
    blobs = environ.get("SESSILE_BLOBS") or None
    return Places(home, store, own, os.path.abspath(os.path.expanduser(cache)), blobs, family)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _cache_folder() -> str:
    if sys.platform == "linux":  # the answer of platformdirs, without the twenty modules that it loads
        caches = os.environ.get("XDG_CACHE_HOME", "").strip()
        return f"{caches if os.path.isabs(caches) else os.path.expanduser('~/.cache')}/sessile"
    import platformdirs

    return platformdirs.user_cache_dir("sessile", appauthor=False)


# --- settings

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

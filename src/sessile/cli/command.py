"""The command that every verb is part of: common options, help with examples, errors and exit codes.

Also where a verb finds things: the folders of the user (`Places`) and the configuration file (`Settings`).

Exit codes: 0 success, 1 nothing found or a problem found, 2 usage error, 3 not found, 4 ambiguous, 5 damaged data, 6 busy,
7 refused for safety, 8 storage failure, 130 interrupted, 141 pipe closed.
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
from sessile.errors import InvalidConfig, NotFound, PermissionRefused, storage_failures
from sessile.storage.backing import is_database
from sessile.storage.layout import Source

if TYPE_CHECKING:
    from sessile.config import Config
    from sessile.library import Library
    from sessile.store import Store

INTERRUPTED = 130
BROKEN_PIPE = 141  # as shells report a process that SIGPIPE killed

_HELP_NAMES = {"help_option_names": ["-h", "--help"]}
_MODULES = {verb: module for group in VERBS.values() for verb, (module, _) in group.items()}


class App:
    """The state of one run: common options, places, store, library and output."""

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
        """The output streams."""
        return Output(json=self.json, plain=self.plain, color=self.color, pager=not self.no_pager, zone=self.tz)

    @cached_property
    def places(self) -> Places:
        """The folders of the user."""
        return find_places(os.environ, root=self.root, demo=self.demo)

    @cached_property
    def store(self) -> Store:
        """The user's own store, or the demo store."""
        from sessile.store import Store

        store = Store(self.places.store, cache=self.places.cache, blobs=self.places.blobs)
        if self.demo:
            self._make_demo(store)
        return store

    def _make_demo(self, store: Store) -> None:
        from sessile.demo.corpus import make_demo

        written = make_demo(store)
        if written:
            self.out.note(f"created {written} made-up sessions in {self.places.root}")

    @cached_property
    def library(self) -> Library:
        """All sessions on this machine."""
        from sessile.library import Library

        return Library(self.store, self.places.sources(self.store), cache=self.places.cache, auto_catch_up=False)

    def say_notices(self) -> None:
        """Print problems of the last catalog update, such as an unreadable folder or a full cache."""
        for notice in self.library.notices:
            self.out.note(f"note: {notice}")

    @property
    def command(self) -> str:
        """The command that opens this store, for suggestions that the user can copy."""
        if self.demo or self.root is None:
            return "sessile --demo" if self.demo else "sessile"
        return f"sessile --root {quoted(self.store.name if is_database(self.root) else self.root)}"

    def tilde(self, path: str) -> str:
        """Return a path with the home folder shortened to `~`."""
        home = self.places.home
        return f"~{path[len(home) :]}" if path == home or path.startswith(f"{home}/") else path

    @cached_property
    def here(self) -> str:
        """The current folder."""
        try:
            return os.getcwd()
        except FileNotFoundError:
            return os.environ.get("PWD", "/")  # it was removed


def _set(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        setattr(context.ensure_object(App), str(parameter.name), value)


_COMMON = (
    click.option("--json", is_flag=True, expose_value=False, callback=_set, help="Print one JSON document."),
    click.option("--plain", is_flag=True, expose_value=False, callback=_set, help="Plain words, for screen readers."),
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        expose_value=False,
        callback=_set,
        help="When to use colors.",
    ),
    click.option("--no-pager", is_flag=True, expose_value=False, callback=_set, help="Do not use a pager."),
    click.option("--tz", metavar="ZONE", expose_value=False, callback=_set, help="Time zone, e.g. Europe/Berlin."),
    click.option(
        "--root", metavar="PATH|URL", expose_value=False, callback=_set, help="Store to use instead of ~/.sessile."
    ),
    click.option(
        "--demo", is_flag=True, expose_value=False, callback=_set, help="Use the made-up store of sessile demo."
    ),
)


class Verb(click.Command):
    """A command with examples in its help."""

    examples: Sequence[str] = ()

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description and the examples; click writes the options after them."""
        super().format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                first = " " * formatter.current_indent
                for example in self.examples:  # continuation lines are indented deeper
                    formatter.write(click.wrap_text(example, formatter.width, first, first + " " * 8) + "\n")


def verb(*examples: str, name: str) -> Callable[[Callable[..., Any]], Verb]:
    """Turn a function into a verb with the common options; its first argument is the `App`."""

    def make(function: Callable[..., Any]) -> Verb:
        command = click.command(name, cls=Verb, context_settings=_HELP_NAMES)(click.pass_obj(function))
        for option in reversed(_COMMON):
            option(command)
        command.examples = examples
        return command

    return make


class _StdoutClosed(Exception):
    """The reader of stdout closed it. Not an `OSError`, which click would turn into its own exit code."""


class Verbs(click.Group):
    """The group of all verbs; a verb's module is imported when it is used."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _StdoutClosed from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the table."""
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb of this name or alias."""
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
        """Return the verb; raise with similar names if it is unknown."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], [*_MODULES, *ALIASES], 3)
            hint = f"did you mean {' or '.join(near)}?" if near else "run `sessile --help` for a list"
            raise errors.InvalidQuery(f"unknown verb {args[0][:40]!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by group, without importing their modules."""
        for group, verbs in VERBS.items():
            with formatter.section(group):
                formatter.write_dl([(name, text) for name, (_, text) in verbs.items()])


@click.command("help", help="Show the help of a verb.")
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


_EPILOG = "Run `sessile help VERB` for examples. No sessions yet? Try `sessile demo`."


@click.group(cls=Verbs, invoke_without_command=True, context_settings=_HELP_NAMES, epilog=_EPILOG)
@click.option(
    "--version", "-V", is_flag=True, expose_value=False, is_eager=True, help="Print the version.", callback=_version
)
@click.pass_context
def sessile(context: click.Context) -> None:
    """Find, read, search, branch, resume, export and clean up the sessions of your agents."""
    context.ensure_object(App)
    if context.invoked_subcommand is None:
        from sessile.cli.welcome import welcome

        welcome(context.obj)


for _option in reversed(_COMMON):
    _option(sessile)


def run(arguments: list[str]) -> int:
    """Run a verb and return its exit code; errors become messages."""
    app = App()
    app.json = "--json" in arguments or "--jsonl" in arguments  # also for errors in the options themselves
    _prepare_streams()
    try:
        return _perform(app, arguments)
    except errors.SessileError as error:
        return app.out.fail(error, command="sessile --demo" if app.demo else "sessile")
    except click.ClickException as error:
        usage = error.ctx.get_usage() if isinstance(error, click.UsageError) and error.ctx else None
        return app.out.fail(errors.Invalid(error.format_message(), hint=usage))
    except (BrokenPipeError, _StdoutClosed):
        _give_up_stdout()
        return BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        app.out.note("interrupted; finished work is kept")
        return INTERRUPTED
    except OSError as error:
        if error.filename is not None:
            return app.out.fail(errors.storage_failure(error, os.fsdecode(error.filename), "access the file"))
        _give_up_stdout()
        return app.out.fail(errors.storage_failure(error, "stdout", "write the output"))
    except MemoryError:
        hint = "limit the output: --tail, --since, or a single session"
        return app.out.fail(errors.StorageFailure("out of memory", hint=hint))


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
    """Replace closed streams with the null device, and escape characters that the encoding lacks."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _give_up_stdout() -> None:
    """Send stdout to the null device, because Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# -- places


class Places(NamedTuple):
    """The folders of the user. They are not created here.

    With a database as the store, files of this machine (configuration, gateway token) stay in ~/.sessile.
    """

    home: str
    store: str  # the user's own store: a folder or the URL of a database
    root: str  # the folder for files of this machine: the store, if that is a folder
    cache: str
    blobs: str | None  # URL of an object store for large content
    family: Sequence[Source]  # folders of other agents, whether they exist or not

    def sources(self, store: Store) -> list[Source]:
        """Return the existing folders of other agents, and those that the user added."""
        from sessile.library import added_sources

        added = [source for path in added_sources(store).names() for source in sources_at(path)]
        found = {source.sessions: source for source in reversed((*self.family, *added))}
        return [source for source in reversed(found.values()) if os.path.exists(source.sessions)]


def sources_at(folder: str) -> list[Source]:
    """Return the sources in a folder: those of agents, if it is a home folder or an agent's; else the folder with its files."""
    sessions = f"{folder}/sessions"
    plain = Source("folder", folder, sessions if os.path.isdir(sessions) else folder)
    return AGENTS.sources_at(folder, _names) or [plain]


def find_places(environ: Mapping[str, str], *, root: str | None, demo: bool) -> Places:
    """Return the places for these environment variables and options."""
    home = environ.get("HOME") or os.path.expanduser("~")
    if not os.path.isabs(home):
        raise InvalidConfig("HOME is not an absolute path", hint="set HOME, or pass --root PATH")
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


# -- configuration

_CONFIG_FILES = ("config.toml", "config.json")


class Settings(NamedTuple):
    """A configuration, the unknown keys of its file, and the path of the file if there is one."""

    config: Config
    unknown: list[str]
    path: str | None

    def token_file(self, root: str) -> str:
        """Return the path of the gateway token; a path in the file is relative to the file's folder."""
        named = self.config.gateway.token_file
        if named is None or self.path is None:
            return f"{root}/gateway.token"
        return os.path.abspath(os.path.join(os.path.dirname(self.path), os.path.expanduser(named)))


def config_path(app: App, named: str | None = None) -> str | None:
    """Return the configuration file: the named one, else the one in the store, else `None`."""
    if named is not None:
        path = os.path.abspath(os.path.join(app.here, os.path.expanduser(named)))
        if not os.path.isfile(path):
            raise NotFound("configuration file not found", path=path, hint="pass a TOML or JSON file to --config")
        return path
    found = [path for name in _CONFIG_FILES if os.path.lexists(path := f"{app.places.root}/{name}")]
    if len(found) > 1:
        hint = "remove one of them, or pass --config FILE"
        raise InvalidConfig(f"both {' and '.join(_CONFIG_FILES)} exist", path=app.places.root, hint=hint)
    return found[0] if found else None


def load_settings(app: App, named: str | None = None) -> Settings:
    """Load the configuration; raise `InvalidConfig` with the invalid key or line."""
    from sessile.config import Config, load_config

    path = config_path(app, named)
    if path is None:
        return Settings(Config(), [], None)
    with storage_failures(path, "read the configuration"), open(path, "rb") as file:
        owner = os.fstat(file.fileno()).st_uid
        data = file.read()
    if owner not in (os.geteuid(), 0):  # it names programs to run and places to connect to
        hint = "copy it, so that you own it, and check what it says"
        raise PermissionRefused("the configuration belongs to another user", path=path, hint=hint)
    loaded = load_config(data, path)
    return Settings(loaded.config, loaded.unknown, path)


def warn_of_unknown(app: App, settings: Settings) -> None:
    """Print the unknown keys of the file."""
    for key in settings.unknown:
        app.out.note(f"note: unknown key {key} in {app.tilde(settings.path or '')} is ignored")


def quoted(text: str) -> str:
    """Return a text as one word of a shell command."""
    import shlex  # saves start-up time: most listings print no command

    return shlex.quote(text)

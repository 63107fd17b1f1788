"""The ``chatkeep`` command: its commands, their help, and how it ends.

Each command's module is imported when the command runs: help and usage errors come without chatkeep, rich and drivers.
"""

# ruff: noqa: PLC0415, D301 - imports as said above; \b is typer's mark for lines that stay as they are

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .demo import DEFAULT_URL, Part, run
from .failures import Code, PipeClosedError, report, say, without_secrets

URL_HELP = "The store, such as sqlite:///chat.db. Without it: $CHATKEEP_URL, else sqlite:///chatkeep.db."

URL = Annotated[str | None, typer.Argument(metavar="URL", help=URL_HELP, show_default=False)]
SessionId = Annotated[str | None, typer.Argument(metavar="SESSION", help="The session's id.", show_default=False)]
App = Annotated[str | None, typer.Option("--app", help="The app of the scope.", show_default=False)]
Tenant = Annotated[str | None, typer.Option("--tenant", help="The tenant of the scope.", show_default=False)]
User = Annotated[str | None, typer.Option("--user", help="The user of the scope.", show_default=False)]
LogName = Annotated[
    str | None, typer.Option("--log", metavar="NAME", help="A further log of the session.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs, and nothing else, on standard output.")]

app = typer.Typer(
    name="chatkeep",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


class SessionCommand(TyperCommand):
    """A command on ``[URL] SESSION``: an argument that may be left out before one that may not, which typer has not.

    Both are optional for typer; `store.place` sorts them out.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", "[URL]", "SESSION"]


EXIT_CODES = """\b
Exit codes:
  0    done
  1    there is no such session
  2    the command line, a URL, an option or the input is wrong; nothing was written
  3    the database cannot be reached, opened or used; nothing was written
  4    something that is stored cannot be read
  5    a write was not answered: it may be stored; repeat it with the same --batch-id
  70   unforeseen: please report it; chatkeep --debug shows where it comes from
  130  interrupted by Ctrl-C
  141  the reader of the output has gone, as with | head
"""


class _Flags:
    """What was said before the command."""

    debug = False


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"chatkeep {version('chatkeep-cli')}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog=EXIT_CODES)
def chatkeep(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """The conversations of AI agents, in the database that a URL names.

    \b
    A first look, with real conversations in a file of its own:
      chatkeep demo
    \b
    Your own:
      chatkeep sessions sqlite:///chat.db --below
      chatkeep show sqlite:///chat.db support-42 --tenant acme --user alice
      export CHATKEEP_URL=sqlite:///chat.db      # then the URL may be left out
    """
    _Flags.debug = debug
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(Code.USAGE)


@app.command()
def demo(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help="Where to keep them. Without it: sqlite:///chatkeep-demo.db; $CHATKEEP_URL is left alone.",
            show_default=False,
        ),
    ] = None,
    part: Annotated[
        Part | None, typer.Option("--part", help="Run one of its two processes alone.", show_default=False)
    ] = None,
) -> None:
    """Store, resume and show real conversations.

    One process stores three conversations turn by turn and ends. The next one, which knows nothing but the URL, resumes
    one of them, adds its last turn and shows it, with a window that fits a token budget, the state, and what each step
    cost. Run it again: nothing is doubled.

    \b
      chatkeep demo
      chatkeep demo sqlite:////tmp/demo.db
      chatkeep demo --part resume                # once more, in yet another process
    """
    url = url or DEFAULT_URL
    if part is None:
        raise typer.Exit(run(url, debug=_Flags.debug))
    if part is Part.STORE:
        from .demo_store import store

        asyncio.run(store(url))
    else:
        from .demo_resume import resume

        asyncio.run(resume(url))


@app.command()
def backends(json: Json = False) -> None:
    """List the backends: installed, to be had, planned.

    One that is installed and does not load is listed with the cause; with --json as JSON Lines.

    \b
      chatkeep backends
      chatkeep backends --json | jq -r .name
    """
    from .backends import show_backends

    show_backends(json=json)


@app.command()
def ping(url: URL = None, json: Json = False) -> None:
    """Ask whether the database answers.

    A file that is not there is not made: the answer then is exit code 3. With --json the answer is one JSON object.

    \b
      chatkeep ping sqlite:///chat.db
      chatkeep ping && echo up
    """
    from .ping import ping as ask

    asyncio.run(ask(url, json=json))


@app.command()
def sessions(
    url: URL = None,
    app: App = None,
    tenant: Tenant = None,
    user: User = None,
    below: Annotated[bool, typer.Option("--below", help="Also the sessions of the scopes below.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            help="How many at most. Without it: 100 in a table, all with --json.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the sessions of a scope, last written first.

    With --json as JSON Lines, one session a line. A scope is an exact address: without --app, --tenant and --user it is
    the store itself.

    \b
      chatkeep sessions sqlite:///chat.db --below
      chatkeep sessions sqlite:///chat.db --tenant acme --user alice
      chatkeep sessions sqlite:///chat.db --below --json | jq -r .id
    """
    from .sessions import list_sessions
    from .store import Address

    address = Address(app, tenant, user)
    asyncio.run(list_sessions(url, address=address, below=below, limit=limit, json=json))


@app.command(cls=SessionCommand)
def show(
    url: URL = None,
    session: SessionId = None,
    app: App = None,
    tenant: Tenant = None,
    user: User = None,
    log: LogName = None,
    last: Annotated[
        int | None,
        typer.Option("--last", metavar="N", min=0, help="Only so many of the newest messages.", show_default=False),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Instructions, tool calls and results at full length.")] = False,
    json: Json = False,
) -> None:
    """Show one conversation, oldest message first.

    With --json it is JSON Lines, one message a line in OpenAI's form: what `chatkeep add` takes. A message that nobody
    here can read is shown by its role with a note; with --json the exit code then is 4.

    \b
      chatkeep show sqlite:///chat.db support-42 --last 20
      chatkeep show sqlite:///chat.db support-42 --tenant acme --user alice --full
      chatkeep show sqlite:///chat.db support-42 --json > support-42.jsonl
      chatkeep show support-42                   # in the store of $CHATKEEP_URL
    """
    from . import store as words
    from .show import show_session

    where = words.place(url, session, words.Address(app, tenant, user), log, command="show")
    asyncio.run(show_session(where, last=last, full=full, json=json))


@app.command(cls=SessionCommand)
def add(
    url: URL = None,
    session: SessionId = None,
    app: App = None,
    tenant: Tenant = None,
    user: User = None,
    log: LogName = None,
    batch_id: Annotated[
        str | None,
        typer.Option("--batch-id", metavar="ID", help="Store this input once, however often it is sent."),
    ] = None,
) -> None:
    """Append messages from standard input, or none of them.

    Each line is one message in OpenAI's form, or an object with a list of them, {"messages": [...]}. A message with an
    "id" that is stored already is not stored again; for messages without ids --batch-id does the same.

    \b
      echo '{"role": "user", "content": "Where is my bag?"}' | chatkeep add sqlite:///chat.db support-42
      chatkeep add sqlite:///chat.db support-42 --batch-id monday < support-42.jsonl
      chatkeep show support-42 --json | chatkeep add sqlite:///copy.db support-42
    """
    from . import store as words
    from .add import add_messages, read_input

    where = words.place(url, session, words.Address(app, tenant, user), log, command="add")
    asyncio.run(add_messages(where, read_input(), batch_id=batch_id))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and give the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return _flushed(_run(given))


def _run(given: list[str]) -> int:
    _Flags.debug = False
    try:
        code = typer.main.get_command(app).main(given, prog_name="chatkeep", standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "chatkeep"
        reason = error.format_message().rstrip(".")
        say(without_secrets(f"{reason}; `{path} --help` shows how it is used", given))
        return Code.USAGE
    except (PipeClosedError, SystemExit):  # The latter is what typer makes of a closed pipe.
        return Code.PIPE_CLOSED
    except (KeyboardInterrupt, typer.Abort):
        return Code.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - whatever it was, it is told in one line
        return report(error, given, debug=_Flags.debug)
    return int(code or Code.DONE)


def _flushed(code: int) -> int:
    """The exit code, once everything is out. If nobody reads it any more, what is left goes nowhere, quietly."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or Code.PIPE_CLOSED
    if code == Code.PIPE_CLOSED:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code

"""The command line. Results go to stdout, everything else to stderr.

Exit codes: 0 done; 1 our bug; 2 the user's mistake (one clear line); 3 stopped on purpose,
resumable; 4 ran, but a check failed; 5 a self-check stopped the run; 130 second Ctrl-C.
An error is one line: the message, and the command that says more about its kind.
"""

from __future__ import annotations

import io
import logging
import sys
import traceback
from typing import NoReturn

import click

from dapo import __version__
from dapo.cli.browse import browse
from dapo.cli.compare import compare
from dapo.cli.completion import complete_words, completion
from dapo.cli.data import data
from dapo.cli.evaluate import evaluate
from dapo.cli.explain import explain
from dapo.cli.grade import grade
from dapo.cli.inspect import config, doctor
from dapo.cli.plan import plan
from dapo.cli.progress import progress
from dapo.cli.recipe import recipe
from dapo.cli.report import report
from dapo.cli.train import train
from dapo.cli.use import chat, export, sample
from dapo.errors import DapoError, Stopped, UserError
from dapo.out_of_memory import in_command, ran_out
from dapo.printable import printable


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dapo")
@click.option("-v", "--verbose", is_flag=True, help="Show what the parts log.")
def group(verbose: bool) -> None:
    """Train language models by reinforcement learning with verifiable rewards, after DAPO.

    Begin with:  dapo train quickstart
    """
    logging.raiseExceptions = False  # a log that can't be written must not bury the error that is told
    root = logging.getLogger("dapo")
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    root.handlers = [handler]


for command in (
    train,
    evaluate,
    compare,
    progress,
    report,
    browse,
    sample,
    chat,
    grade,
    data,
    config,
    doctor,
    explain,
    plan,
    export,
    recipe,
    completion,
):
    group.add_command(command)
complete_words(group)


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits with its code."""
    for stream in (sys.stdout, sys.stderr):  # what the encoding lacks must not end a command
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        group.main(args=arguments, prog_name="dapo", standalone_mode=False)
    except DapoError as error:
        _end(in_command(error) if ran_out(error) else error)
    except SystemExit:
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):  # click's sign: nobody reads stdout any more
            sys.exit(0)
        raise
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        sys.exit(UserError.exit_code)
    except click.ClickException as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        sys.exit(UserError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:
        if ran_out(error):
            _end(in_command(error))
        traceback.print_exc()
        print("error: this is a bug in dapo; please report it with the lines above", file=sys.stderr)
        sys.exit(1)


def _end(error: DapoError) -> NoReturn:
    """Tells the error in one line, and ends with its exit code."""
    kind = "stopped" if isinstance(error, Stopped) else "error"
    print(f"{kind}: {printable(' '.join(error.message.split()))}  [dapo explain {error.code}]", file=sys.stderr)
    sys.exit(error.exit_code)

"""`tidemill dlq`: failures that are not retried automatically."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.cli import main, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemill.cli.session import StoreSession
    from tidemill.client import Tidemill
    from tidemill.engine.index_rows import DeadLetterRow
    from tidemill.engine.services.dead_letters import Reprocessed


dlq = options.new_group("dlq")

of_code = options.option("--code", metavar="CODE", about="Only failures with this error code.")


query = options.argument(
    "query", "[QUERY]...", "workflow:NAME, code:CODE, node:NODE or run:RUN; a run or @last.", nargs=-1, required=False
)
NAMES = ("run", "workflow", "node", "code")
NAMED_MAX = 5


def _wanted(session: StoreSession, words: tuple[str, ...], given: dict[str, str | None]) -> dict[str, str | None]:
    """What the options and the words of a query say. Raises Rejected."""
    from tidemill.errors import offered, rejected

    found = dict(given)
    for word in words:
        name, colon, value = word.partition(":")
        if not colon:
            name, value = "run", word
        if name not in NAMES:
            hint = offered(name, NAMES)
            raise rejected("query_term_unknown", f"`{word}` is not a condition for dead letters", hint=hint)
        if found.get(name) is not None:
            if not colon:
                raise rejected("option_invalid", f"`{word}` is a second run", hint=f"did you mean node:{word}?")
            raise rejected("option_invalid", f"{name} is given twice", hint="give it once")
        found[name] = session.run_id(value) if name == "run" else value
    return found


@dlq.command("list")
@query
@options.of_run
@options.of_workflow
@of_code
@options.option("--status", metavar="STATUS", default="open", about="open, reprocessed, discarded or all.")
@options.page
@options.on_store()
def list_command(
    session: StoreSession, query: tuple[str, ...], status: str, limit: int, after: str | None, **wanted: str | None
) -> int:
    """List open dead letters, newest first; --status shows others."""
    from tidemill.cli.render.lists import list_page

    terms = options.status_terms(status, _wanted(session, query, wanted))
    return list_page(session, "dead_letters", lambda mill: mill.dead_letters(terms, after=after, limit=limit))


@dlq.command("show")
@options.run
@options.argument("node", "[NODE]", "The id of a node. Default: the only one with an open dead letter.", required=False)
@options.visit
@options.item
@options.on_store()
def show_command(session: StoreSession, run: str, node: str | None, visit: int | None, item: int | None) -> int:
    """Show a dead letter and the input it failed with."""
    from tidemill.cli.render.lists import print_dead_letter

    final: list[bool] = []

    def ask(mill: Tidemill) -> Any:
        view = mill.show(run)
        final.append(view.status == "COMPLETED" or view.rollback["status"] != "none")
        return mill.dead_letter(run, node or _only_node(mill, run), visit=visit, index=item)

    return session.ask_and_print(ask, lambda letter: print_dead_letter(session, letter, final=final[0]))


def _only_node(mill: Tidemill, run: str) -> str:
    """The node of the run that has dead letters, the open ones if there are any. Raises Rejected."""
    from tidemill.errors import rejected

    letters, _ = mill.dead_letters([f"run:{run}"])
    nodes = list(dict.fromkeys(each.node for each in letters if each.status == "open" or not _is_open(letters)))
    if len(nodes) == 1:
        return nodes[0]
    if not nodes:
        raise rejected("dead_letter_unknown", "this run has no dead letter", hint=f"see `tidemill why {run}`")
    message = f"{len(nodes)} nodes of this run have a dead letter: {', '.join(nodes[:NAMED_MAX])}"
    raise rejected("dead_letter_unknown", message, hint=f"name one: `tidemill dlq show {run} {nodes[0]}`")


def _is_open(letters: Sequence[DeadLetterRow]) -> bool:
    return any(each.status == "open" for each in letters)


@dlq.command("retry")
@query
@options.of_run
@options.option("--node", metavar="NODE", about="Of this node.")
@options.of_workflow
@of_code
@options.option("--patch", metavar="FILE", about="A JSON Patch to apply to every run first.", type=str)
@options.sets
@options.option("--config", metavar="VALUE", about="A corrected config for --node: JSON or @file.", type=str)
@options.dry_run
@options.did_not_happen
@options.option(
    "--limit",
    metavar="N",
    type=options.Integers(1, 100_000),
    default=1000,
    about="Maximum number of dead letters to retry.",
)
@options.reason
@options.actor
@options.on_store()
def retry_command(
    session: StoreSession,
    query: tuple[str, ...],
    patch: str | None,
    sets: tuple[str, ...],
    config: str | None,
    dry_run: bool,
    **given: Any,
) -> int:
    """Retry dead letters.

    Select them by a query, or by --run, --workflow, --node or --code. --patch, --set or --config repairs the runs
    first.
    """
    from tidemill.cli.inputs import read_edits, read_value
    from tidemill.cli.render.runs import print_reprocessed

    def ask(mill: Tidemill) -> Reprocessed:
        corrected = {} if config is None else {"config": read_value("--config", config)}
        # What is set need not be in every document yet.
        operations = read_edits(patch, sets, lambda: None) if patch is not None or sets else None
        return mill.reprocess(**corrected, run_id=run, operations=operations, dry_run=dry_run, **{**given, **wanted})

    wanted = _wanted(session, query, {name: given.pop(name) for name in NAMES})
    run = wanted.pop("run")

    def ends(outcome: Reprocessed) -> int:
        return main.REFUSED if outcome.matched and not outcome.handled else main.OK

    return session.ask_and_print(ask, lambda outcome: print_reprocessed(outcome, dry_run=dry_run), ends=ends)


@dlq.command("discard")
@options.activation
@options.who
@options.on_store()
def discard_command(session: StoreSession, run: str, node: str, visit: int | None, item: int | None, **who: Any) -> int:
    """Close a dead letter without retrying it."""
    from tidemill.cli.commands.run_actions import act

    done = f"dead letter {node} discarded"
    return act(session, run, done, lambda mill: mill.discard(run, node, visit=visit, index=item, **who))

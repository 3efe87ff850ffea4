"""`tidemill blobs`: large values and files by their content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidemill.cli.groups import new_group
from tidemill.cli.options import DEFAULT_STORE, PAGE, AsJson, Cursor, DryRun, Limit, Store

if TYPE_CHECKING:
    from tidemill.blobs.contract import BlobInfo
    from tidemill.engine.collecting import Collected
    from tidemill.front import Tidemill

blobs = new_group("blobs", "Store, read and collect large values and files.")

GRACE_HOURS = 24.0
Digest = Annotated[str, typer.Argument(metavar="DIGEST", help="sha256: and 64 digits.")]


@blobs.command("put")
def put_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of any kind; - reads standard input.")],
    keep: Annotated[bool, typer.Option("--keep", help="Never collect it, even when nothing refers to it.")] = False,
    media_type: Annotated[
        str | None, typer.Option("--media-type", metavar="TYPE", help="What it is. Default: by the file's name.")
    ] = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Store a file and print its digest.

    With --json it prints the description by which runs refer to it. What nothing refers to within a day is collected.
    """
    from tidemill.cli.asking import Asking
    from tidemill.cli.bytestreams import guessed_type, read_source

    def ask(mill: Tidemill) -> dict[str, Any]:
        data, name = read_source(file)
        return mill.put_blob(data, media_type=media_type or guessed_type(name), name=name, keep=keep)

    return Asking(store, as_json, creates=True).answer(ask, lambda described: print(described["$blob"]))


@blobs.command("get")
def get_command(
    digest: Digest,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - is standard output.")
    ] = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Write the bytes of a blob to a file, or to standard output unless that is a terminal."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.bytestreams import writing

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> dict[str, Any]:
        mill.blob(digest)
        with writing(output, as_json=as_json) as (file, name):
            return {"digest": digest, "size": mill.save_blob(digest, file), "file": name}

    def tell(written: dict[str, Any]) -> None:
        if written["file"]:
            print(f"{written['size']} bytes written to {written['file']}")

    return asking.answer(ask, tell)


@blobs.command("show")
def show_command(digest: Digest, store: Store = DEFAULT_STORE, as_json: AsJson = False) -> int:
    """Show what is known of a blob."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.stocks import tell_blob

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> BlobInfo:
        return mill.blob(digest)

    return asking.answer(ask, lambda info: tell_blob(asking, info))


@blobs.command("list")
def list_command(
    state: Annotated[
        Literal["active", "grace"] | None, typer.Option("--state", help="Only those in use, or those on their way out.")
    ] = None,
    limit: Limit = PAGE,
    after: Cursor = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """List blobs in the order of their digests."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.rosters import Page
    from tidemill.cli.stocks import tell_blobs

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> Page:
        return Page("blobs", *mill.blobs(state=state, after=after, limit=limit))

    return asking.answer(ask, lambda page: tell_blobs(asking, page))


@blobs.command("gc")
def gc_command(
    grace: Annotated[
        float, typer.Option("--grace", metavar="HOURS", min=0, help="How long what is not needed stays for safety.")
    ] = GRACE_HOURS,
    dry_run: DryRun = False,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Collect blobs that nothing refers to: set aside first, deleted when their grace period is over."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.stocks import tell_collected

    def ask(mill: Tidemill) -> Collected:
        return mill.collect_blobs(dry_run=dry_run, grace_s=grace * 3600)

    return Asking(store, as_json).answer(ask, tell_collected)

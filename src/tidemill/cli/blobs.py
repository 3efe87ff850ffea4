"""`tidemill blobs`: large values and files by their content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from tidemill.cli import options
from tidemill.cli.groups import new_group

if TYPE_CHECKING:
    from tidemill.cli.asking import Asking
    from tidemill.front import Tidemill

blobs = new_group("blobs")

GRACE_HOURS = 24.0
digest_argument = options.argument("digest", "DIGEST", "sha256: and 64 digits.")


@blobs.command("put")
@options.argument("file", "FILE", "A file of any kind; - reads standard input.", type=str)
@options.flag("--keep", about="Never collect it, even when nothing refers to it.")
@options.option("--media-type", metavar="TYPE", about="What it is. Default: by the file's name.")
@options.on_store(creates=True)
def put_command(asking: Asking, file: str, keep: bool, media_type: str | None) -> int:
    """Store a file and print its digest.

    With --json it prints the description by which runs refer to it. What nothing refers to within a day is collected.
    """
    from tidemill.cli.bytestreams import guessed_type, read_source

    def ask(mill: Tidemill) -> dict[str, Any]:
        data, name = read_source(file)
        return mill.put_blob(data, media_type=media_type or guessed_type(name), name=name, keep=keep)

    return asking.answer(ask, lambda described: print(described["$blob"]))


@blobs.command("get")
@digest_argument
@options.option("--output", "-o", metavar="FILE", about="Where to write it; - is standard output.", type=str)
@options.on_store()
def get_command(asking: Asking, digest: str, output: str | None) -> int:
    """Write the bytes of a blob to a file, or to standard output unless that is a terminal."""
    from tidemill.cli.bytestreams import writing

    def ask(mill: Tidemill) -> dict[str, Any]:
        mill.blob(digest)
        with writing(output, as_json=asking.as_json) as (file, name):
            return {"digest": digest, "size": mill.save_blob(digest, file), "file": name}

    def tell(written: dict[str, Any]) -> None:
        if written["file"]:
            print(f"{written['size']} bytes written to {written['file']}")

    return asking.answer(ask, tell)


@blobs.command("show")
@digest_argument
@options.on_store()
def show_command(asking: Asking, digest: str) -> int:
    """Show what is known of a blob."""
    from tidemill.cli.stocks import tell_blob

    return asking.answer(lambda mill: mill.blob(digest), lambda info: tell_blob(asking, info))


@blobs.command("list")
@options.option(
    "--state", type=click.Choice(["active", "grace"]), about="Only those in use, or those on their way out."
)
@options.limit
@options.after
@options.on_store()
def list_command(asking: Asking, state: Literal["active", "grace"] | None, limit: int, after: str | None) -> int:
    """List blobs in the order of their digests."""
    from tidemill.cli.rosters import Page
    from tidemill.cli.stocks import tell_blobs

    def ask(mill: Tidemill) -> Page:
        return Page("blobs", *mill.blobs(state=state, after=after, limit=limit))

    return asking.answer(ask, lambda page: tell_blobs(asking, page))


@blobs.command("gc")
@options.option(
    "--grace",
    metavar="HOURS",
    type=options.numbers(0),
    default=GRACE_HOURS,
    about="How long what is not needed stays for safety.",
)
@options.dry_run
@options.on_store()
def gc_command(asking: Asking, grace: float, dry_run: bool) -> int:
    """Collect blobs that nothing refers to: set aside first, deleted when their grace period is over."""
    from tidemill.cli.stocks import tell_collected

    return asking.answer(lambda mill: mill.collect_blobs(dry_run=dry_run, grace_s=grace * 3600), tell_collected)

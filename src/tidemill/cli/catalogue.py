"""`tidemill publish` and `tidemill start`, and how publications and tags are told."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tidemill.cli.asking import Asking, plain
from tidemill.cli.documents import tell_document
from tidemill.cli.problems import counted, print_problems
from tidemill.cli.sources import read_inputs, read_pairs, read_source
from tidemill.cli.tables import print_facts
from tidemill.cli.verdicts import say
from tidemill.engine.catalog import Published, Tagged
from tidemill.engine.versions import LATEST, split_reference
from tidemill.front import Tidemill


def publish(asking: Asking, file: str, *, author: str, message: str) -> int:
    """Publish a document."""

    def ask(mill: Tidemill) -> Published:
        return mill.publish(read_source(file).document, author=author, message=message)

    return asking.answer(ask, tell_published)


def tell_published(published: Published) -> None:
    """Print which version something has become, or was already."""
    reference = f"{published.name}@{published.version}"
    say(f"{reference} is published" if published.created else f"{reference} has this content already")
    print_facts([("digest", published.digest)], indent=2)
    if published.warnings:
        title = f"! {counted(len(published.warnings), 'warning')}"
        print_problems(title, published.warnings, sys.stderr, warning=True)


def show_version(mill: Tidemill, reference: str) -> dict[str, Any]:
    """A version with its document."""
    document = mill.workflow_document(reference)
    name, _, rest = split_reference(reference)
    tags = mill.tags(name)
    number = tags[rest or LATEST] if rest in tags or not rest else int(rest)
    return {**plain(mill.versions(name)[number - 1]), "document": document}


def tell_version(found: dict[str, Any]) -> None:
    """Print the document of a version."""
    tell_document(f"{found['name']}@{found['version']}, {found['digest']}", found["document"])


def tell_tagged(moved: Tagged) -> None:
    """Print where a tag points now."""
    was = f", it was @{moved.was}" if moved.was else ""
    if not moved.version:
        say(f"{moved.name}:{moved.tag} is taken away{was}" if moved.moved else f"{moved.name}:{moved.tag} is not there")
    elif moved.moved:
        say(f"{moved.name}:{moved.tag} is {moved.name}@{moved.version} now{was}")
    else:
        say(f"{moved.name}:{moved.tag} is {moved.name}@{moved.version} already")


def start(
    asking: Asking,
    workflow: str,
    given: Sequence[str],
    *,
    labels: Sequence[str],
    key: str | None,
    actor: str,
    correlation_id: str,
) -> int:
    """Start a run of a published workflow and print its id."""

    def ask(mill: Tidemill) -> dict[str, Any]:
        run_id = mill.start(
            workflow,
            read_inputs(given),
            key=key,
            labels=read_pairs("--label", labels),
            submitted_by=actor,
            correlation_id=correlation_id,
        )
        return {"run_id": run_id}

    return asking.answer(ask, lambda found: print(found["run_id"]))

"""The transcript of an agent, in text: what it was asked, and turn by turn what it said, called and spent."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.agents.transcript import FailedCall, Transcript, TranscriptCall, TranscriptTurn
from tidemill.cli.render.progress import error_in, error_words
from tidemill.cli.render.tables import dotted, file_words, print_facts, print_hint, print_title, snippet
from tidemill.cli.render.terminal import (
    BOLD,
    CYAN,
    DIM,
    GREEN,
    RED,
    YELLOW,
    Styler,
    columns,
    sanitize,
    text_lines,
)
from tidemill.handlers.llm.structured_output import CUT_SHORT

INDENT = 2
CALL_INDENT = 4
TEXT_LINES_MAX = 200
_MARKS = {"done": ("ok", GREEN), "failed": ("failed", RED), "waiting": ("waits", YELLOW), "running": ("runs", CYAN)}


def print_transcript(transcript: Transcript) -> None:
    place = f"{transcript.node}[{transcript.index}]" if transcript.index >= 0 else transcript.node
    visit = f"visit {transcript.visit}" if transcript.visit > 1 else ""
    print_title(place, *filter(None, (visit, f"run {transcript.run_id}")))
    print_facts(_facts(transcript))
    if transcript.prompt:
        _print_text("asked", transcript.prompt)
    for turn in transcript.turns:
        print()
        _print_turn(turn)
    for note in transcript.open_notes:
        _print_text("engine", note)
    for failed in transcript.open_failures:
        _print_failed(failed)
    if not transcript.turns and not transcript.open_failures:
        print_hint("the model has not answered yet")


def _facts(transcript: Transcript) -> Iterator[tuple[str, str]]:
    usage = transcript.usage
    yield "status", transcript.status
    if transcript.error is not None:
        yield "error", f"{transcript.error['code']}: {transcript.error['message']}"
        yield "hint", transcript.error.get("hint", "")
    yield "turns", dotted(str(len(transcript.turns)), f"{transcript.tool_calls} calls of tools")
    if usage:
        cached = f"{usage['cached_tokens']:,} cached ({_cached_share(usage):.0%})" if usage.get("cached_tokens") else ""
        yield "tokens", dotted(f"{usage['input_tokens']:,} in", f"{usage['output_tokens']:,} out", cached)
    if transcript.cost is not None:
        yield "cost", f"{transcript.cost:.6f}"
    yield "work", f"{transcript.duration_ms / 1_000:.1f} s" if transcript.duration_ms else ""
    if transcript.lost_calls:
        yield "lost", f"{transcript.lost_calls} calls of the model were lost with their workers"
    if transcript.next_nodes:
        yield "route", dotted(", ".join(transcript.next_nodes), transcript.reason)
    if transcript.memory:
        yield "session", f"{len(transcript.memory)} earlier messages"


def _print_turn(turn: TranscriptTurn) -> None:
    paint = Styler()
    for note in turn.notes:
        _print_text("engine", note)
    for failed in turn.failed:
        _print_failed(failed)
    usage = turn.usage or {}
    used = f"{usage.get('input_tokens', 0):,} + {usage.get('output_tokens', 0):,} tokens" if usage else ""
    cost = "" if turn.cost is None else f"{turn.cost:.6f}"
    cut = "cut short by max_tokens" if turn.finish_reason == CUT_SHORT else ""
    facts = dotted(sanitize(turn.model), used, cost, f"{turn.duration_ms} ms", f"event {turn.seq}", cut)
    print(f"{paint(f'turn {turn.number}', BOLD)}  {paint(facts, DIM)}")
    if turn.text:
        _print_text("", turn.text)
    if turn.refusal:
        _print_text("refused", turn.refusal)
    for call in turn.calls:
        _print_call(call)


def _print_failed(failed: FailedCall) -> None:
    said = dotted(failed.model or failed.provider, f"{failed.code}: {failed.message}")
    print(f"{' ' * INDENT}{Styler()('failed', RED)}  {sanitize(said)}")


def _print_call(call: TranscriptCall) -> None:
    paint, width = Styler(), columns() - CALL_INDENT - INDENT
    mark, colour = _MARKS.get(call.status, ("pending", DIM))
    name = sanitize(call.name)
    arguments = snippet(call.arguments, max(20, width - len(name) - 2))
    print(f"{' ' * INDENT}{paint(name, CYAN)}  {arguments}")
    if call.status == "waiting":
        said = f"for {call.waits_for}"
    elif call.error:
        said = error_words(error_in(call.result, call.error))
    elif call.reference is not None:
        said = dotted(file_words(call.reference), snippet(call.preview, width // 2))
    else:
        said = "" if call.result is None and call.status != "done" else snippet(call.result, width - len(mark))
    unknown = paint("its outcome is unknown", YELLOW) if call.unknown_outcome else ""
    child = f"run {call.child}" if call.child else ""
    taken = f"{call.duration_ms} ms" if call.duration_ms else ""
    print(f"{' ' * CALL_INDENT}{paint(mark, colour)}  {dotted(sanitize(said), unknown, child, taken)}".rstrip())


def _print_text(label: str, text: str) -> None:
    paint, margin = Styler(), " " * INDENT
    lines = text_lines(text, INDENT)
    if label:
        print(f"{margin}{paint(label, DIM)}")
    for line in lines[:TEXT_LINES_MAX]:
        print(f"{margin}{line}".rstrip())
    if len(lines) > TEXT_LINES_MAX:
        print(f"{margin}{paint(f'… {len(lines) - TEXT_LINES_MAX} more lines; --json has all', DIM)}")


def _cached_share(usage: dict[str, int]) -> float:
    """The share of the input that came from the provider's cache."""
    total = usage.get("input_tokens", 0)
    return usage.get("cached_tokens", 0) / total if total else 0.0

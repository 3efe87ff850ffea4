"""The guards of the kernel over states and records: whoever decides changes nothing, and nothing is misread."""

from __future__ import annotations

from tests.mutants.guard import Guard

STATE = "kernel/state.py"
EVOLVE = "kernel/evolve.py"
CODEC = "kernel/codec.py"

KEPT: tuple[Guard, ...] = (
    Guard(
        name="decide-works-on-a-draft",
        why="A decision whose commit is refused would stay in the cached state.",
        file="kernel/pen.py",
        snippet="self.state = draft_of(state)",
        sabotage="self.state = state",
        test="tests/mutants/test_kernel_guards.py::test_deciding_changes_nothing",
    ),
    Guard(
        name="draft-leaves-commands-alone",
        why="A command whose commit lost a race would be taken for known, and acknowledged without being carried out.",
        file=STATE,
        snippet="if state.behind is not None and type(book) is not Layer:",
        sabotage='if state.behind is not None and type(book) is not Layer and name != "commands":',
        test="tests/mutants/test_kernel_guards.py::test_deciding_changes_nothing",
    ),
    Guard(
        name="draft-copies-edges",
        why="An arrival whose commit is refused would stay at its join.",
        file=STATE,
        snippet="own.edges = cell.edges.copy() if",
        sabotage="own.edges = cell.edges if",
        test="tests/mutants/test_kernel_guards.py::test_deciding_changes_nothing",
    ),
    Guard(
        name="draft-layers-wide-joins",
        why="An arrival at a wide join whose commit is refused would stay there.",
        file=STATE,
        snippet="else Layer(cell.edges)",
        sabotage="else cell.edges",
        test="tests/kernel/test_joins.py::test_a_wide_join_fires_once[all-40]",
    ),
    Guard(
        name="draft-copies-maps",
        why="The count of a map's items would grow with every decision that is refused.",
        file=STATE,
        snippet="own.map = _twin(cell.map)",
        sabotage="own.map = cell.map",
        test="tests/mutants/test_kernel_guards.py::test_deciding_changes_nothing",
    ),
    Guard(
        name="draft-layers-items",
        why="The result of an item whose commit is refused would stay in the cached state.",
        file=STATE,
        snippet="own.map.at = Layer(cell.map.at)",
        sabotage="pass",
        test="tests/mutants/test_kernel_guards.py::test_deciding_changes_nothing",
    ),
    Guard(
        name="untouched-cell-never-written",
        why="What happens to one node would be seen as the state of every node that nothing has happened to.",
        file=STATE,
        snippet="cell = self.cells[node] = Cell() if known is None else _fork(known)",
        sabotage="cell = self.cells[node] = UNTOUCHED if known is None else _fork(known)",
        test="tests/mutants/test_kernel_guards.py::test_what_is_shared_is_never_written",
    ),
    Guard(
        name="queued-item-never-written",
        why="What happens to one item would be seen as the state of every queued item of every run.",
        file="kernel/items.py",
        snippet="own = (self.get(index) or QUEUED_ITEM).__copy__()",
        sabotage="own = self.get(index) or QUEUED_ITEM",
        test="tests/mutants/test_kernel_guards.py::test_what_is_shared_is_never_written",
    ),
    Guard(
        name="adopted-edges-are-merged",
        why="A wide join would forget all arrivals but the latest once its draft has become the state.",
        file=STATE,
        snippet="cell.edges = merged(cell.edges)",
        sabotage="pass",
        test="tests/kernel/test_joins.py::test_a_wide_join_fires_once[all-40]",
    ),
    Guard(
        name="adopted-items-are-merged",
        why="A map would forget all items but the latest once its draft has become the state.",
        file=STATE,
        snippet="cell.map.at = merged(cell.map.at)",
        sabotage="pass",
        test="tests/kernel/test_maps.py::test_a_list_is_expanded_run_and_assembled_in_the_freed_slot",
    ),
    Guard(
        name="items-with-a-story-are-kept-whole",
        why="An item that failed before it completed would forget how often, and what was discarded of it.",
        file="kernel/items.py",
        snippet="if item != _plain(facts, item.output):",
        sabotage="if False:",
        test="tests/kernel/test_items.py::test_an_item_with_a_story_is_kept_whole[{'failures': 1}]",
    ),
    Guard(
        name="result-remembers-its-token",
        why="A worker that never got the answer to its commit would be recorded as late.",
        file="kernel/fold_visits.py",
        snippet="    note_token(act, event.token)\n    if event.undoable:",
        sabotage="    if event.undoable:",
        test="tests/mutants/test_kernel_guards.py::test_a_repeated_assembly_leaves_nothing",
    ),
    Guard(
        name="replay-stops-where-asked",
        why="Time travel would show a later moment than the one asked for.",
        file=EVOLVE,
        snippet="if until is not None and state.seq >= until:",
        sabotage="if until is not None and state.seq > until:",
        test="tests/mutants/test_kernel_guards.py::test_time_travel_stops_where_asked",
    ),
    Guard(
        name="event-of-a-newer-version",
        why="An old worker would misread what a newer one has written, and decide on it.",
        file=CODEC,
        snippet="if fields[1] > present:",
        sabotage="if False:",
        test="tests/mutants/test_kernel_guards.py::test_an_event_of_a_newer_version_is_refused",
    ),
    Guard(
        name="event-format-looked-at",
        why="An event of another format that happens to fit would be read without being lifted.",
        file=CODEC,
        snippet="if event.v != FORMATS.get(type(event).__name__, 1):",
        sabotage="if False:",
        test="tests/mutants/test_kernel_guards.py::test_an_event_of_an_older_format_is_lifted",
    ),
)

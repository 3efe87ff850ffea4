"""The guards of worker processes: how they stop, what they leave to others, and who counts as alive."""

from __future__ import annotations

from tests.mutants.guard import Guard

WORKER = "engine/worker.py"
RETURNS = "engine/returns.py"
REGISTRY = "engine/registry.py"
SCENE = "kernel/explain/scene.py"
ROSTER = "engine/roster.py"

IN_RETURNS = "tests/engine/test_returns.py::"
IN_LEASES = "tests/engine/test_leases.py::"
IN_REGISTRY = "tests/engine/test_registry.py::"
KILLED = "tests/processes/test_drain.py::test_a_killed_worker_is_dead_at_once"
STANDING = IN_RETURNS + "test_a_standing_worker_waits_for_one_that_has_the_function"

WORKERS: tuple[Guard, ...] = (
    Guard(
        name="cancelled-claim-gives-back",
        why="What a claim brings when its worker is stopping would be locked up until its leases expire.",
        file="stores/sqlite/store.py",
        snippet="                claim.add_done_callback(self._unclaimed)\n",
        sabotage="                pass\n",
        test="tests/stores/test_sqlite_writer.py::test_who_has_gone_away_wants_nothing_any_more",
    ),
    Guard(
        name="result-kept-while-the-store-is-away",
        why="A handler would be called again, without a trace in the log, whenever the store is out of reach for long.",
        file=WORKER,
        snippet="if isinstance(answer.error, Unavailable) and isinstance(ask.command, Result) and not self.draining:",
        sabotage="if False:",
        test="tests/engine/test_kept_results.py::test_a_store_that_is_out_of_reach_for_long[at_least_once]",
    ),
    Guard(
        name="result-kept-while-blobs-are-away",
        why="A handler with a large output would be called again, without a trace, until there is room for it.",
        file="engine/attempt.py",
        snippet="await surely(lambda: self._tools.blobs.put(self.lease.stream.tenant, text))",
        sabotage="await self._tools.blobs.put(self.lease.stream.tenant, text)",
        test="tests/engine/test_kept_results.py::test_a_place_for_blobs_that_is_out_of_reach[a long value]",
    ),
    Guard(
        name="call-on-record-when-it-cannot-be-stored",
        why="A handler whose bytes could not be stored would be called again under the same attempt.",
        file=WORKER,
        snippet="if hand.attempt is None or not hand.attempt.called:",
        sabotage="if True:",
        test="tests/engine/test_kept_results.py::test_bytes_that_were_given_only_once_fail_the_attempt",
    ),
    Guard(
        name="function-left-to-those-who-have-it",
        why="A worker without a function would fail the runs of those that have it.",
        file="engine/attempt.py",
        snippet='        if self._node.delivery != "at_most_once":\n            assert',
        sabotage="        if False:\n            assert",
        test=IN_RETURNS + "test_a_function_that_only_another_worker_has_is_left_to_it",
    ),
    Guard(
        name="late-hand-over-is-given-back",
        why="A worker that should stop would begin with the next node of every run it works on.",
        file=WORKER,
        snippet="        if self.draining:\n            # They were kept",
        sabotage="        if False:\n            # They were kept",
        test=IN_RETURNS + "test_what_a_commit_hands_over_after_the_drain_began_is_given_back",
    ),
    Guard(
        name="drain-waits-for-commits",
        why="What a slow store is just writing down would be done a second time by another worker.",
        file=WORKER,
        snippet="not any(hand.settling for hand in self._hands.values())",
        sabotage="True",
        test=IN_RETURNS + "test_a_result_that_is_being_committed_is_not_given_back",
    ),
    Guard(
        name="drain-can-be-hurried",
        why="An operator who cannot wait for the grace period would have to kill the process.",
        file=WORKER,
        snippet="self._hurried or not self._hands",
        sabotage="not self._hands",
        test=IN_RETURNS + "test_a_second_word_ends_the_grace_period",
    ),
    Guard(
        name="unable-workers-stand-back",
        why="Workers that lack a node type would pass its jobs to and fro, and the one that has it be late every time.",
        file=RETURNS,
        snippet="return min(wanted_ms, max(0, STEP_MS - self._clock() % STEP_MS - 1))",
        sabotage="return wanted_ms",
        test=IN_RETURNS + "test_whoever_becomes_able_gets_it_within_a_second",
    ),
    Guard(
        name="unable-workers-leave-room",
        why="Whoever can run a job would have no more than a few milliseconds to be quicker than those who cannot.",
        file=RETURNS,
        snippet="return max(0, moment + ROOM_MS - now)",
        sabotage="return 0",
        test=IN_RETURNS + "test_what_is_met_again_comes_due_at_a_full_second",
    ),
    Guard(
        name="unknown-types-rest-longer",
        why="A queue full of jobs that nobody can run would leave its worker no time for those that it can.",
        file=RETURNS,
        snippet="steps = 1 + min(len(self._resting) * EACH_MS, REST_MS_MAX - STEP_MS) // STEP_MS",
        sabotage="steps = 1",
        test=IN_RETURNS + "test_a_queue_full_of_unknown_types_starves_nobody",
    ),
    Guard(
        name="dead-workers-do-not-count",
        why="A run would be said to wait for a free worker when all of them have died.",
        file=REGISTRY,
        snippet="if now_ms - self.beat_ms > self.dead_after_ms:",
        sabotage="if False:",
        test=IN_REGISTRY + "test_why_knows_of_a_dead_worker_that_it_is_none",
    ),
    Guard(
        name="draining-workers-do-not-count",
        why="A run would be said to wait for a worker that takes on nothing any more.",
        file=REGISTRY,
        snippet='return "draining" if self.draining else "alive"',
        sabotage='return "alive"',
        test=IN_REGISTRY + "test_a_worker_that_drains_is_nobody_to_wait_for",
    ),
    Guard(
        name="beats-outlast-an-outage",
        why="After the first outage a worker at work would be taken for dead for the rest of its life.",
        file=REGISTRY,
        snippet="        except TidemillError:\n            return False\n",
        sabotage="        except TidemillError:\n            raise\n",
        test=IN_REGISTRY + "test_an_outage_stops_no_beat_and_is_told_once",
    ),
    Guard(
        name="type-and-queue-go-together",
        why="A run would be said to wait for a free worker although nobody who serves its queue knows the type.",
        file=SCENE,
        snippet="for able in self.each if able.serves(queue)))",
        sabotage="for able in self.each))",
        test="tests/kernel/test_explain.py::test_whoever_knows_a_type_must_serve_the_queue_too",
    ),
    Guard(
        name="cancelled-handler-keeps-its-place",
        why="Handlers that ignore their cancellation would run beside more others than the worker may have at a time.",
        file="engine/calls.py",
        snippet="        if stop.args != (LEASE_LOST,):\n",
        sabotage="        if True:\n",
        test=IN_LEASES + "test_what_comes_after_the_cancellation_is_on_record_and_kept_its_place",
    ),
    Guard(
        name="nothing-comes-of-a-drained-attempt",
        why="Half a result, which a handler returned because its worker stops, would be taken for the whole.",
        file="engine/calls.py",
        snippet="        if stop.args != (LEASE_LOST,):\n",
        sabotage="        if False:\n",
        test=IN_LEASES + "test_what_a_drain_cut_short_is_no_result",
    ),
    Guard(
        name="standing-workers-leave-what-they-lack",
        why="Runs would fail for good because the one worker that has their function is starting again.",
        file=ROSTER,
        snippet="if self.registry.stands and not lacking.retryable:",
        sabotage="if False:",
        test=STANDING,
    ),
    Guard(
        name="what-may-pass-is-not-left",
        why="A process that can never be started would be tried for ever, and the run would not fail.",
        file=ROSTER,
        snippet="if self.registry.stands and not lacking.retryable:",
        sabotage="if self.registry.stands:",
        test=IN_RETURNS + "test_what_may_pass_is_tried_again_where_nobody_else_is",
    ),
    Guard(
        name="compensators-are-left-too",
        why="A rollback would leave something undone because a worker without the function was quicker.",
        file="engine/undoing.py",
        snippet="        if isinstance(error, Lacking):\n",
        sabotage="        if False:\n",
        test=STANDING,
    ),
    Guard(
        name="a-lack-is-said-once",
        why="A log would fill with one line for every try at a job that nobody can do.",
        file="engine/lacks.py",
        snippet="        if lack.message not in self._said:\n",
        sabotage="        if True:\n",
        test=STANDING,
    ),
    Guard(
        name="why-says-what-all-lack",
        why="A run that waits for a function would be said to go on by itself.",
        file=SCENE,
        snippet="            if self.lacking(job, type_) is not None:\n",
        sabotage="            if False:\n",
        test=STANDING,
    ),
    Guard(
        name="a-process-that-is-gone-is-dead",
        why="A killed worker would be listed as alive until it has been silent for long.",
        file=ROSTER,
        snippet='"dead" if row.name != mine and _is_gone(row, there) else row.state(now)',
        sabotage="row.state(now)",
        test=KILLED,
    ),
    Guard(
        name="leases-of-the-dead-are-void",
        why="People would be told that a killed worker works on a node which another one may take at once.",
        file="stores/sqlite/jobs.py",
        snippet="void=holder in gone",
        sabotage="void=False",
        test=KILLED,
    ),
    Guard(
        name="what-lasts-is-told",
        why="A worker would be listed as idle for a whole heartbeat while it works.",
        file=REGISTRY,
        snippet="if lasting - told or",
        sabotage="if",
        test=IN_REGISTRY + "test_what_lasts_is_told_before_the_next_beat",
    ),
    Guard(
        name="put-aside-waits-since-it-was-made",
        why="People would be told that a job waits since a moment in the future.",
        file="kernel/explain/active.py",
        snippet="    later = job.ready_at_ms > scene.now\n",
        sabotage='    later = need == "later"\n',
        test=IN_REGISTRY + "test_why_says_when_no_live_worker_knows_a_type",
    ),
)

"""The words of other engines for what a document says, and what to write here instead.

A word that has one counterpart maps to our key; what it means depends on the mapping, so a word may have several. One
without a counterpart maps to a sentence, by the mapping in which it is refused. No word of ours stands here, and words
that a document may use belong into the tables of `fields`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping


def _words(ours: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Our keys by the words of others, which `ours` lists with spaces between them."""
    found: dict[str, tuple[str, ...]] = {}
    for key, words in ours.items():
        for word in words.split():
            found[word] = (*found.get(word, ()), key)
    return found


KEYS = _words(
    {
        "nodes": "activities jobs stages states steps tasks",
        "id": "key name node step task_id",
        "name": "id workflow_id dag_id",
        "type": "kind operator uses",
        "dependencies": "after depends depends_on needs upstream",
        "dependents": "downstream next then",
        "config": "args params parameters with",
        "inputs": "params params_schema parameters schema",
        "timeout_seconds": "deadline timeout timeout_s execution_timeout schedule_to_close_timeout"
        " start_to_close_timeout",
        "deadline_seconds": "deadline timeout timeout_seconds",
        "retry": "attempts max_attempts retries retry_policy",
        "when": "condition if only_if run_if",
        "map": "each for_each foreach matrix with_items",
        "loop": "repeat until while",
        "branch": "case choice switch",
        "on_error": "catch on_failure",
        "compensator": "compensate undo",
        "join": "trigger_rule wait_for",
        "queue": "pool task_queue",
        # Of a branch and its rules, an edge, a loop, a retry policy and a map.
        "rules": "cases choices conditions",
        "default": "else otherwise",
        "condition": "expression if until when while",
        "next_nodes": "goto next target then to",
        "from": "source src",
        "to": "dest destination target",
        "delay_seconds": "delay interval sleep",
        "max_iterations": "count iterations limit max times",
        "max_attempts": "attempts count limit max maximum_attempts retries times",
        "backoff_seconds": "backoff delay initial_interval interval",
        "multiplier": "backoff_coefficient factor",
        "max_backoff_seconds": "max_delay max_interval maximum_interval",
        "over": "in items list values",
        "max_parallel": "concurrency max_concurrency parallel parallelism",
    }
)

CONFIG_KEYS = _words(
    {
        "argv": "args cmd command run script",
        "statement": "query sql",
        "database": "connection dsn url",
        "workflow": "name workflow_id",
        "inputs": "args input params",
        "pipeline": "steps",
        "rows": "data input source",
        "function": "callable func handler",
        "args": "arguments input inputs kwargs params",
        "approvers": "assignee assignees reviewers",
        "rejection_path": "on_reject on_rejected",
        "changes_path": "on_changes",
        "timeout_seconds": "timeout",
        "seconds": "delay duration",
        "body": "data form json payload",
        "title": "message prompt question subject",
        "text": "body content message",
    }
)
"""Keys of a node's `config`."""

_TIMES = "a schedule has them: `tidemill schedules create NAME WORKFLOW --cron … --start-at … --end-at … --catch-up …`"
_BACKOFF = "write retry: {max_attempts: …, backoff_seconds: …}"
_SCHEDULE = "a published workflow gets one with `tidemill schedules create NAME WORKFLOW --cron …`"
_CONSTANTS = "what differs by run is declared in `inputs`; a constant is a node of type `value`"
_WHOLE = "write `name` and `nodes` at the top of the document"
_CONFIG_INPUTS = "values are passed in `config`, for example {{ inputs.NAME }} or {{ NODE.output }}"
_REJECTED = "a `human` node has it in its `config`: rejection_path: [node]"

OF_DOCUMENT = {
    "version": "leave it out: `tidemill publish` numbers the versions",
    **dict.fromkeys(("cron", "on", "schedule", "trigger", "triggers"), _SCHEDULE),
    **dict.fromkeys(
        ("deadline", "deadline_seconds", "timeout", "timeout_seconds"),
        "write limits: {deadline_seconds: …} for the run, or defaults: {timeout_seconds: …} for each attempt of a node",
    ),
    **dict.fromkeys(("max_retries", "retries", "retry"), "write defaults: {retry: {max_attempts: …}}"),
    **dict.fromkeys(("concurrency", "max_parallel", "parallelism"), "write limits: {max_parallel: …}"),
    **dict.fromkeys(("constants", "variables", "vars"), _CONSTANTS),
    **dict.fromkeys(("env", "environment"), f"{_CONSTANTS}; `shell` has `env` in its `config`"),
    **dict.fromkeys(("dag", "spec", "workflow"), _WHOLE),
    **dict.fromkeys(("catchup", "end_date", "start_date"), _TIMES),
    **dict.fromkeys(("labels", "owner", "tags"), "runs have labels: `tidemill start NAME --label team=shop`"),
}
OF_LIMITS = {
    "max_descendants": "the operator sets it for all workflows: `max_descendants` under `[limits]` in tidemill.toml",
}
OF_NODE = {
    "function": "write type: python with config: {function: …}",
    "name": "use `id`: it is the name of a node",
    "run": "write type: shell with config: {argv: [echo, hi]}",
    "goto": "the nodes that depend on this one follow it; `branch` chooses among them, `loop` goes back",
    **dict.fromkeys(("output", "outputs"), "what a node returns is its output, read as {{ ID.output }}"),
    **dict.fromkeys(("cache", "memoize"), "there is no cache: a run is started once per `key`, and keeps its outputs"),
    **dict.fromkeys(("backof", "backoff", "backoff_seconds"), _BACKOFF),
    **dict.fromkeys(("allow_failure", "continue_on_error", "ignore_errors"), "write on_error: continue"),
    **dict.fromkeys(("max_parallel", "over", "tolerate"), "it belongs into `map`: map: {over: …}"),
    **dict.fromkeys(("env", "environment"), "a `shell` node has `env` in its `config`; others read {{ inputs.NAME }}"),
    **dict.fromkeys(("input", "inputs"), _CONFIG_INPUTS),
    **dict.fromkeys(
        ("concurrency", "parallel"),
        "nodes that do not depend on one another run side by side; `map` runs a node once per element of a list",
    ),
    **dict.fromkeys(
        ("always", "ensure", "finally"),
        "a node that depends on others runs also after they fail if these have on_error: continue",
    ),
    **dict.fromkeys(("cron", "schedule"), f"{_SCHEDULE}; a node waits with type `sleep` or `wait_until`"),
    **dict.fromkeys(("on_reject", "on_rejected", "rejection_path"), _REJECTED),
}
OF_EDGE = dict.fromkeys(
    ("condition", "if", "when"), "write it as a rule in the `branch` of the first node, or as `when` of the second"
)
OF_LOOP = {"until": "`condition` is true to go back for another pass: write the opposite of `until`"}

TYPES = _words(
    {
        "shell": "bash cmd command exec script sh",
        "http": "api curl http_request request rest",
        "sleep": "delay timer wait",
        "human": "approval approve gate manual user_task",
        "workflow": "call child call_workflow subflow sub_workflow subworkflow",
        "llm": "chat gpt openai prompt",
        "value": "const constant echo log noop print set",
        "sql": "database postgres query",
        "transform": "jinja jq",
        "python": "activity lambda py",
        "email": "mail smtp",
        "signal": "event receive",
    }
)
KEYS_AS_TYPES = _words(
    {
        "branch": "branch choice condition gateway if switch",
        "map": "for_each foreach map",
        "loop": "loop repeat while",
        "join": "join",
    }
)
"""What is a node elsewhere and a key of a node here."""
OF_TYPE = {
    **dict.fromkeys(("container", "docker"), "write type: shell with config: {argv: [docker, run, --rm, IMAGE]}"),
    **dict.fromkeys(("fork", "parallel"), "nodes that do not depend on one another run side by side"),
}
OF_TEMPLATE = {
    **dict.fromkeys(("args", "input", "param", "params", "parameters", "vars"), "an input is `inputs.{0}`"),
    **dict.fromkeys(
        ("activities", "jobs", "needs", "states", "steps", "tasks"), "the output of a node is `{0}.output`"
    ),
    **dict.fromkeys(("env", "environ"), "workflows read no environment: pass an input, or a secret, `secrets.{0}`"),
    **dict.fromkeys(
        ("ds", "execution_date", "logical_date", "now", "ts"),
        "declare the input `scheduled_at`: a schedule gives it its time",
    ),
}
"""Names that templates and conditions of others begin with; {0} is the name that follows."""


def our_key(word: str, known: Container[str], words: Mapping[str, tuple[str, ...]] = KEYS) -> str:
    """Our key for a word among those that a mapping may have; empty if there is none."""
    return next((key for key in words.get(word, ()) if key in known), "")

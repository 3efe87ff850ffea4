"""Attacks that want to run code, read files or the environment, or reach an address, through a document or its data."""

from __future__ import annotations

import json
from typing import Any

from tests.attacks.review import (
    GETOUTPUT,
    NOT_ALLOWED,
    Command,
    Completes,
    Ending,
    Ends,
    Fails,
    Refused,
    Row,
    Run,
    document,
    node,
    once,
)


def calls(function: str, ending: Ending, grants: str = "", **more: Any) -> Run:
    return Run(
        f"code: {function}"[:70], (document(once("python", {"function": function, **more})),), ending, grants=grants
    )


FUNCTIONS: tuple[Row, ...] = (
    calls("builtins:eval", NOT_ALLOWED, args={"source": "1"}),
    calls("posix:system", NOT_ALLOWED, args={"command": "id"}),
    calls("tidemill.bootstrap:engine_at", NOT_ALLOWED),
    calls("shopevil:run", NOT_ALLOWED, 'imports = ["shop.*", "shop"]'),
    calls("json.tool:main", NOT_ALLOWED, 'imports = ["json"]'),
    calls("json:loads", NOT_ALLOWED, 'imports = ["json:dumps"]'),
    calls("JSON:loads", NOT_ALLOWED, 'imports = ["json"]'),
    calls("json:codecs.open", Refused("function_unknown"), 'imports = ["json"]'),
    calls("json:codecs", Fails("function_unknown"), 'imports = ["json"]'),
    calls("json:__builtins__", Fails("function_unknown"), 'imports = ["json"]'),
    calls("json.__loader__:get_data", NOT_ALLOWED, 'imports = ["json"]'),
    calls("json:JSONDecoder.decode", Refused("function_unknown"), 'imports = ["json"]'),
    calls("json:dumps:loads", Refused("function_unknown"), 'imports = ["json"]'),
    calls("statistics:random.seed", Refused("function_unknown"), 'imports = ["statistics"]'),
    calls("statistics:namedtuple", Fails("function_unknown"), 'imports = ["statistics"]', args={"typename": "x"}),
    calls("../evil:run", Refused("function_unknown")),
    calls("evil/../../os:getcwd", Refused("function_unknown"), 'imports = ["json"]'),
    calls("os\u200b:getcwd", Refused("function_unknown")),
    calls("o\uff53:getcwd", NOT_ALLOWED, 'imports = ["os"]'),
    Run("code: another spelling", (document(node("task", GETOUTPUT)),), NOT_ALLOWED),
    Run(
        "code: the action of a compensator",
        (document(node("value", 1, compensator={"action": "subprocess:getoutput"})),),
        NOT_ALLOWED,
    ),
    Run(
        "code: behind an alias",
        (),
        NOT_ALLOWED,
        text=f"""
x: &x {json.dumps(GETOUTPUT)}
name: attack
nodes: [{{id: a, type: python, config: *x}}]
""".replace("x: &x", "description: ''\ndefaults: {}\nx: &x"),
    ),
    Run(
        "code: after a duplicate key",
        (),
        Refused("duplicate_key"),
        text="""
name: attack
nodes: [{id: a, type: value, type: python, config: {function: "os:getcwd"}}]
""",
    ),
    Run(
        "code: a YAML tag",
        (),
        Refused("not_json"),
        text="""
name: attack
nodes: [{id: a, type: value, config: !!python/object/apply:os.getcwd []}]
""",
    ),
    Run(
        "code: a custom YAML tag",
        (),
        Refused("not_json"),
        text="""
name: attack
nodes: [{id: a, type: value, config: !include /etc/passwd}]
""",
    ),
    *(
        Run(f"code: a node type {type_[:30]!r}", (document(node(type_, {})),), Refused(code))
        for type_, code in (
            ("tidemill.handlers:shell", "bad_name"),
            ("../python", "bad_name"),
            ("python@99", "unknown_type_version"),
            ("{{ inputs.type }}", "bad_name"),
            ("python\n", "bad_name"),
        )
    ),
    Run(
        "code: a command",
        (document(node("shell", {"argv": ["id"]})),),
        Refused("shell_disabled"),
    ),
    Run(
        "code: a command as a compensator",
        (document(node("value", 1, compensator={"type": "shell", "config": {"argv": ["id"]}})),),
        Refused("shell_disabled"),
    ),
    Run(
        "code: patched into a live run",
        (document(node("signal", {})),),
        NOT_ALLOWED,
        act=lambda mill, run: mill.patch(
            run, [{"op": "add", "path": "/nodes/-", "value": node("python", GETOUTPUT, "y", dependencies=["x"])}]
        ),
    ),
    Run(
        "code: patched into a workflow",
        (document(node("value", 1)),),
        NOT_ALLOWED,
        act=lambda mill, run: mill.patch_workflow(
            "attack", [{"op": "add", "path": "/nodes/-", "value": node("python", GETOUTPUT, "y")}]
        ),
    ),
    Run(
        "code: patched into a fork",
        (document(node("value", 1)),),
        NOT_ALLOWED,
        act=lambda mill, run: (
            mill.result(run),
            mill.fork(run, node="x", patch=[{"op": "replace", "path": "/nodes/x", "value": node("python", GETOUTPUT)}]),
        ),
    ),
    Run(
        "code: patched into a dead letter",
        (document(once("fail", {"message": "no"})),),
        Completes(lambda tried: "import_not_allowed" in str(tried)),
        act=lambda mill, run: (
            mill.result(run).status,
            mill.reprocess(
                run_id=run, operations=[{"op": "replace", "path": "/nodes/x", "value": node("python", GETOUTPUT)}]
            ),
        ),
    ),
    Run(
        "code: in a stored configuration",
        (document(node("signal", {})),),
        NOT_ALLOWED,
        act=lambda mill, run: mill.publish(
            {
                "name": "other",
                "nodes": [
                    {"id": "a", "type": "python", "config_ref": mill.put_blob(json.dumps(GETOUTPUT).encode())["$blob"]}
                ],
            }
        ),
    ),
    *(
        Run(f"code: a child {name[:30]!r}", (document(once("workflow", {"workflow": name})),), ending)
        for name, ending in (
            ("../../etc/passwd", Ends(("child_failed", "config_invalid"))),
            ("attack@99999999999999999999999", Ends(("child_failed", "config_invalid"))),
            ("attack@-1", Ends(("child_failed", "config_invalid"))),
            ("x' OR '1'='1", Ends(("child_failed", "config_invalid"))),
            ("a" * 100_000, Ends(("child_failed", "config_invalid"))),
        )
    ),
)

TEMPLATES: tuple[Row, ...] = tuple(
    Run(f"template: {template}"[:60], (document(once("value", template)),), ending, inputs={"a": "x"})
    for template, ending in (
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", Refused("template_syntax")),
        ("{{ inputs['__class__'] }}", Fails("template_failed")),
        ("{{ inputs.a | attr('__class__') }}", Refused("template_syntax")),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", Refused("template_syntax")),
        ("{{ lipsum }}", Refused("unknown_reference")),
        ("{{ '{0.__class__}'.format(1) }}", Fails("template_failed")),
        ("{{ '%(__class__)s' | format(a=1) }}", Fails("template_failed")),
        ("{{ [inputs.a] | map(attribute='__class__') | list }}", Fails("template_failed")),
        ("{{ [inputs.a] | map('attr', '__class__') | list }}", Fails("template_failed")),
        ("{{ [inputs.a] | groupby('__class__.__name__') | list }}", Fails("template_failed")),
        ("{{ self }}", Refused("template_syntax")),
        ("{{ range.__self__ }}", Refused("template_syntax")),
        ("{% import '/etc/passwd' as p %}{{ p }}", Refused("template_syntax")),
        ("{% include '/etc/passwd' %}", Refused("template_syntax")),
        (
            "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns }}",
            Ends(("template_syntax", "template_failed"), may_complete=False),
        ),
        ("{{ '2026-01-01' | date_zone('../../../../../../etc/passwd') }}", Fails("template_failed")),
        ("{{ '2026-01-01' | date_zone('/etc/localtime') }}", Fails("template_failed")),
        ("{{ ''.join.__func__ }}", Refused("template_syntax")),
        ("{{ inputs.a.format_map({}) }}", Fails("template_failed")),
        ("{{ inputs.a.encode('utf-8') }}", Fails("template_failed")),
    )
)

ANSWER = Completes(lambda outputs: "root:" not in str(outputs) and "PATH" not in str(outputs))


def jq(program: str, ending: Ending, **more: Any) -> Run:
    step = {"step": "jq_transform", "program": program, "timeout_seconds": 2}
    return Run(
        f"jq: {program}"[:60], (document(once("pipeline", {"rows": [{"a": 1}], "pipeline": [step]})),), ending, **more
    )


def sandbox(code: str, ending: Ending, **more: Any) -> Run:
    condition = {"type": "python_sandbox", "code": f"def evaluate(output, context):\n    {code}", "timeout_ms": 1000}
    rules = [{"condition": condition, "next_nodes": ["y"]}]
    flow = document(
        node("value", {"n": 1}, branch={"rules": rules, "default": ["z"]}), node("value", 2, "y"), node("value", 3, "z")
    )
    return Run(f"sandbox: {code}"[:60], (flow,), ending, **more)


NO_ANSWER = Ends(("condition_failed", "condition_syntax"), may_complete=False)

PROGRAMS: tuple[Row, ...] = (
    jq("[{a: env}]", ANSWER),
    jq("[{a: $ENV.PATH}]", ANSWER),
    jq('import "/etc/passwd" as $p; [{a: $p}]', Refused("config_invalid")),
    jq('include "x" {search: "/etc"}; .', Refused("config_invalid")),
    jq("[{a: input_filename}]", ANSWER),
    jq("[{a: input}]", Ends(("step_failed",))),
    jq('[{a: ("x" * 1000000000)}]', Ends(("step_failed",)), neighbours=True),
    jq("[range(1e9)] | map({a: .})", Ends(("step_failed", "out_of_memory")), neighbours=True),
    jq("def f: f; f", Ends(("step_failed",)), neighbours=True),
    jq("def f: [f]; f", Ends(("step_failed",)), neighbours=True),
    jq('[{a: ("a" * 50000 | test("(a*)*b"))}]', Ends(("step_failed",)), neighbours=True),
    jq("halt_error", Ends(("step_failed",))),
    jq("$__prog_args", Refused("config_invalid")),
    sandbox("return open('/etc/passwd').read() != ''", NO_ANSWER),
    sandbox("import os\n    return os.listdir('/') != []", NO_ANSWER),
    sandbox("return __import__('os').system('id') == 0", NO_ANSWER),
    sandbox("return len(().__class__.__base__.__subclasses__()) > 0", NO_ANSWER),
    sandbox("return eval('open(1)') == 1", NO_ANSWER),
    sandbox("import sys\n    return 'os' in sys.modules", NO_ANSWER),
    sandbox("import pathlib\n    return pathlib.Path('/etc/passwd').exists()", NO_ANSWER),
    sandbox("while True: pass", NO_ANSWER, neighbours=True),
    sandbox("return len('a' * 10 ** 10) > 0", NO_ANSWER, neighbours=True),
    sandbox("return evaluate(output, context)", NO_ANSWER),
    sandbox("return 2 ** 10 ** 9 > 0", NO_ANSWER, neighbours=True),
    sandbox("return sorted([[i] * 1000 for i in range(10 ** 6)]) != []", NO_ANSWER, neighbours=True),
)

REFERENCE = {"$ref": "{url}/schema"}
FILE_REFERENCE = {"$ref": "file:///etc/passwd"}

REFERENCES: tuple[Row, ...] = (
    *(
        Run(f"schema: {place} refers to {schema['$ref'][:6]}", (flow(schema),), Refused(code), visits=())
        for schema in (REFERENCE, FILE_REFERENCE)
        for place, flow, code in (
            ("inputs", lambda schema: document(node("value", 1), inputs=schema), "schema_invalid"),
            ("a form", lambda schema: document(node("human", {"form": schema})), "config_invalid"),
            ("an input", lambda schema: document(node("input", {"schema": schema})), "config_invalid"),
            (
                "a condition",
                lambda schema: document(node("value", 1, when={"type": "schema_validation", "schema": schema})),
                "schema_invalid",
            ),
            (
                "an answer",
                lambda schema: document(
                    node("llm", {"provider": "scripted", "prompt": "a", "answers": ["1"], "schema": schema})
                ),
                "config_invalid",
            ),
        )
    ),
    Run(
        "schema: a dynamic reference",
        (document(node("value", 1), inputs={"$dynamicRef": "{url}/schema"}),),
        Refused("schema_invalid"),
        visits=(),
    ),
    Run(
        "schema: a metaschema elsewhere",
        (document(node("value", 1), inputs={"$schema": "{url}/schema", "type": "object"}),),
        Refused("schema_invalid"),
        visits=(),
    ),
)

SANDBOXED = '{"type": "python_sandbox", "code": "def evaluate(output, context):\\n    return True"}'
PUBLISHED = ("publish", "{safe}/v.yaml", "--store", "{store}")
STARTED = ("start", "v", "--key", "one", "--store", "{store}")

TRAPS: tuple[Row, ...] = (
    *(
        Command(
            f"trap: {' '.join(arguments)}"[:70],
            (*arguments, "--store", "{store}"),
            prepared=(PUBLISHED, STARTED),
            code=code,
        )
        for arguments, code in (
            (("runs", "events", "one"), 0),
            (("runs", "logs", "one"), 0),
            (("runs", "path", "one"), 0),
            (("runs", "why", "one"), 0),
            (("runs", "document", "one"), 0),
            (("runs", "state", "one", "--at", "1"), 0),
            (("runs", "compare", "one", "one"), 0),
            (("runs", "pause", "one"), 0),
            (("runs", "cancel", "one"), 0),
            (("runs", "relabel", "one", "--label", "a=b"), 0),
            (("dlq", "list"), 0),
            (("workers",), 0),
            (("workflows", "show", "v"), 0),
            (("workflows", "versions", "v"), 0),
            (("workflows", "diff", "v@1", "v@1"), 0),
            (("blobs", "list"), 0),
            (("blobs", "put", "{folder}/evilmod.py"), 0),
            (("blobs", "gc", "--dry-run"), 0),
            (("reindex",), 0),
            (("archive", "sweep", "--dry-run"), 0),
        )
    ),
    Command("trap: eval in a child process", ("eval", "--condition", SANDBOXED, "--output", "1"), words="true"),
    Command("trap: a long render", ("render", "{{ range(90000) | map('string') | join | length }}"), words="0"),
    Command("trap: nodes show", ("nodes", "show", "python")),
    Command("trap: version", ("version",)),
    Command("trap: run in the folder", ("run", "{folder}/v.yaml", "--store", "memory://")),
    Command("trap: run a condition in a child process", ("run", "{folder}/sandbox.yaml", "--store", "memory://")),
    Command("trap: run a program of jq", ("run", "{folder}/jq.yaml", "--store", "memory://")),
    Command(
        "trap: a configuration beside the document",
        ("validate", "{folder}/shell.yaml"),
        words="ignored",
        code=2,
    ),
    Command(
        "trap: a configuration in the current folder",
        ("run", "shell.yaml", "--store", "memory://"),
        words="ignored",
        code=2,
    ),
)

CODE_ROWS: tuple[Row, ...] = (*FUNCTIONS, *TEMPLATES, *PROGRAMS, *REFERENCES, *TRAPS)

"""Attacks through what is given to runs and done to them: inputs, signals, forms, patches, names, blobs, archives."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from tests.attacks.review import Command, Completes, Ending, Ends, Fails, Refused, Row, Run, document, node, once

WAITS = document(node("signal", {}))
VALUE = document(node("value", "{{ inputs }}"))
FORGED = {"$blob": "sha256:" + "0" * 64, "size": 1, "media_type": "text/plain", "name": "../../etc/passwd"}
ESCAPE = "a\x1b[2J\nb"


def nested(levels: int) -> Any:
    return reduce(lambda inner, _: [inner], range(levels), 1)


def act(name: str, ending: Ending, do: Callable[[Any, str], Any], flow: dict[str, Any] = WAITS, **more: Any) -> Run:
    return Run(f"act: {name}", (flow,), ending, act=do, **more)


def given(name: str, ending: Ending, inputs: Any, **more: Any) -> Run:
    return act(f"inputs, {name}", ending, lambda mill, run: mill.result(mill.start("attack", inputs)), VALUE, **more)


INPUTS: tuple[Row, ...] = (
    given("deep", Refused("inputs_not_json"), {"a": nested(50_000)}),
    given("deeper than a result", Ends(("template_failed", "output_invalid")), {"a": nested(190)}),
    given("an integer of many digits", Refused("inputs_not_json"), {"a": 10**5_000}),
    given("half a pair", Refused("inputs_not_json"), {"a": "\ud800"}),
    given("a key that is half a pair", Refused("inputs_not_json"), {"\ud800": 1}),
    given("no number", Refused("inputs_not_json"), {"a": float("nan")}),
    given("an object", Refused("inputs_not_json"), {"a": object()}),
    given("a list", Completes(), [1]),
    given("a blob that is not there", Refused("blob_unknown"), {"a": FORGED}),
    given("a blob that is none", Ends(("blob_unknown",)), {"a": {"$blob": 7}}),
    given("control characters", Completes(), {"a": "".join(map(chr, range(32))), "\x1b[2J": 1}),
    given("many keys", Completes(), {f"k{n}": n for n in range(50_000)}, neighbours=True),
    given("names of the language", Completes(), {"__class__": 1, "items": 2, "secrets": 3, "get": 4}),
    given("a template", Completes(lambda outputs: "{{" in str(outputs)), {"a": "{{ secrets.CRM }}{{ 7 * 7 }}"}),
)

CYCLE: list[Any] = []
CYCLE.append(CYCLE)

NAMES: tuple[Row, ...] = (
    act("a cycle as inputs", Refused("inputs_not_json"), lambda mill, run: mill.start("attack", {"a": CYCLE})),
    act("a key with a path", Ends(()), lambda mill, run: mill.show(mill.start("attack", {}, key="../../etc/passwd"))),
    act("a key with an escape", Refused("run_key_invalid"), lambda mill, run: mill.start("attack", {}, key=ESCAPE)),
    act("a long key", Refused("run_key_invalid"), lambda mill, run: mill.start("attack", {}, key="a" * 5_000)),
    act("a label", Refused("labels_invalid"), lambda mill, run: mill.start("attack", {}, labels={"k": ESCAPE})),
    act(
        "a name of a label", Refused("labels_invalid"), lambda mill, run: mill.start("attack", {}, labels={ESCAPE: "v"})
    ),
    act("labels afterwards", Refused("labels_invalid"), lambda mill, run: mill.relabel(run, {"k": ESCAPE})),
    act("a submitter", Refused("text_invalid"), lambda mill, run: mill.start("attack", {}, submitted_by=ESCAPE)),
    act("a correlation", Refused("text_invalid"), lambda mill, run: mill.start("attack", {}, correlation_id=ESCAPE)),
    act("a reason", Refused("text_invalid"), lambda mill, run: mill.cancel(run, reason="a\x1b[2J")),
    act("an actor", Refused("text_invalid"), lambda mill, run: mill.pause(run, actor=ESCAPE)),
    act("an author", Refused("text_invalid"), lambda mill, run: mill.publish(VALUE, author=ESCAPE)),
    act("a message", Refused("text_invalid"), lambda mill, run: mill.publish(VALUE, message="a\x1b[2J")),
    act("a command id", Refused("command_id_invalid"), lambda mill, run: mill.pause(run, command_id=ESCAPE)),
    act("a tag", Refused("tag_invalid"), lambda mill, run: mill.tag("attack", "../x", 1)),
    act("a workflow", Refused("workflow_unknown"), lambda mill, run: mill.start("../../x")),
    act("a run", Refused("run_unknown"), lambda mill, run: mill.show("x' OR 1=1 --")),
    act("a term", Completes(lambda found: found == ([], None)), lambda mill, run: mill.find(["label:a' OR '1'='1=b"])),
    act("a cursor", Refused("bad_cursor"), lambda mill, run: mill.find([], after="' OR 1=1")),
    act("a page without end", Ends(()), lambda mill, run: mill.find([], limit=10**12)),
)

SIGNALS: tuple[Row, ...] = (
    act("a deep signal", Refused("payload_not_json"), lambda mill, run: mill.signal(run, "x", nested(50_000))),
    act("a forged blob in a signal", Refused("blob_unknown"), lambda mill, run: mill.signal(run, "x", FORGED)),
    act("the name of a signal", Refused("text_invalid"), lambda mill, run: mill.signal(run, ESCAPE, 1)),
    act("a long name of a signal", Refused("text_invalid"), lambda mill, run: mill.signal(run, "x" * 5_000, 1)),
    act("an id of a signal", Refused("text_invalid"), lambda mill, run: mill.signal(run, "x", 1, signal_id=ESCAPE)),
    act(
        "a large signal",
        Refused("inputs_too_large"),
        lambda mill, run: mill.signal(run, "x", [[]] * 1_000_000),
        neighbours=True,
    ),
    act(
        "many signals",
        Refused("signals_full"),
        lambda mill, run: [mill.signal(run, "y", n) for n in range(1_100)],
        document(node("signal", {}), node("signal", {"name": "y"}, "z", dependencies=["x"])),
        neighbours=True,
    ),
    act("a deep override", Refused("value_not_json"), lambda mill, run: mill.override(run, "x", value=nested(50_000))),
    act("a forged override", Refused("blob_unknown"), lambda mill, run: mill.override(run, "x", value=FORGED)),
)


def asks(**config: Any) -> dict[str, Any]:
    return document(once("human", config))


def decided(mill: Any, run: str, **more: Any) -> Any:
    next(event for event in mill.follow(run) if event["type"] == "ApprovalRequested")
    mill.decide(run, "x", "approve", **{"actor": "ada", **more})
    return mill.result(run)


TEXT_FORM = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}}}

FORMS: tuple[Row, ...] = (
    act(
        "a deep form", Refused("form_invalid"), lambda mill, run: decided(mill, run, form=nested(50_000)), asks(form={})
    ),
    act(
        "a large form",
        Refused("form_too_large"),
        lambda mill, run: decided(mill, run, form={"a": "x" * 1_000_000}),
        asks(form={"type": "object"}),
    ),
    act(
        "a forged blob in a form",
        Refused("blob_unknown"),
        lambda mill, run: decided(mill, run, form={"a": FORGED}),
        asks(form={"type": "object"}),
    ),
    act(
        "a pattern that backtracks",
        Refused("form_invalid"),
        lambda mill, run: decided(mill, run, form={"a": "a" * 60_000}),
        asks(form=TEXT_FORM),
        neighbours=True,
    ),
    act("an actor who decides", Refused("text_invalid"), lambda mill, run: decided(mill, run, actor=ESCAPE), asks()),
    act("comments", Refused("text_invalid"), lambda mill, run: decided(mill, run, comments="a\x1b[2J"), asks()),
    act("a role", Refused("text_invalid"), lambda mill, run: decided(mill, run, roles=[ESCAPE]), asks()),
    act(
        "a form that pretends to be allowed",
        Refused("approver_not_allowed"),
        lambda mill, run: decided(mill, run, actor="user:user:bob", roles=["user:bob", "anyone"]),
        asks(approvers=["user:bob", "role:finance"]),
    ),
    act("a title with an escape", Completes(), decided, asks(title=ESCAPE)),
    Run("act: a title of data", (asks(title="{{ inputs.a }}"),), Fails("config_invalid"), inputs={"a": "a\nb" * 1_000}),
)


def patched(*operations: dict[str, Any]) -> Callable[[Any, str], Any]:
    return lambda mill, run: mill.patch(run, list(operations))


BEHIND = document(node("signal", {}), node("value", {"a": ["x" * 1_000] * 10}, "y", dependencies=["x"]))
DOUBLES = [
    {"op": "copy", "from": "/nodes/y/config", "path": f"/nodes/y/config/{'a' if n % 2 else 'b'}{n}"} for n in range(40)
]

DEEP = reduce(
    lambda inner, _: {"type": "composite", "operator": "NOT", "conditions": [inner]},
    range(5_000),
    {"type": "python_sandbox", "code_ref": "sha256:" + "0" * 64},
)

PATCHES: tuple[Row, ...] = (
    act("a patch that doubles", Refused("document_too_large"), patched(*DOUBLES), BEHIND, neighbours=True),
    act("a patch of much text", Refused("document_too_large"), patched(*DOUBLES[:16]), BEHIND, neighbours=True),
    act("a patch of the name", Refused("patch_name"), patched({"op": "replace", "path": "/name", "value": "b"})),
    act(
        "a patch of a type", Refused("patch_path_missing"), patched({"op": "replace", "path": "/__class__", "value": 1})
    ),
    act("a patch of an index", Refused("patch_path_missing"), patched({"op": "remove", "path": "/nodes/-1"})),
    act(
        "a deep patch",
        Refused("too_deep"),
        patched({"op": "replace", "path": "/nodes/y/config", "value": nested(50_000)}),
        BEHIND,
    ),
    act(
        "many patches", Refused("patch_invalid"), patched(*[{"op": "test", "path": "/name", "value": "attack"}] * 2_000)
    ),
    act("a long path", Refused("patch_invalid"), patched({"op": "test", "path": "/a" * 100_000, "value": 1})),
)

BLOBS: tuple[Row, ...] = (
    act("a blob by path", Refused("digest_invalid"), lambda mill, run: mill.blob("sha256:../../../etc/passwd")),
    act("a blob by nothing", Refused("digest_invalid"), lambda mill, run: mill.blob("../../../etc/passwd")),
    act("a blob with a path", Refused("blob_invalid"), lambda mill, run: mill.put_blob(b"a", name="../../x")),
    act("a blob with an escape", Refused("blob_invalid"), lambda mill, run: mill.put_blob(b"a", name=ESCAPE)),
    act("a media type", Refused("blob_invalid"), lambda mill, run: mill.put_blob(b"a", media_type="a/b\r\nx: y")),
    act(
        "an archive entry", Refused("archived_run_unknown"), lambda mill, run: mill.archive_show("../../../etc/passwd")
    ),
    act(
        "a restored entry",
        Refused("archived_run_unknown"),
        lambda mill, run: mill.archive_restore("runs/../../x.jsonl.gz"),
    ),
    *(
        Run(
            f"file: {name}",
            (document(once(type_, config)),),
            Ends(("blob_unknown", "blob_invalid", "blob_unavailable", "config_invalid")),
            visits=(),
        )
        for name, type_, config in (
            ("a body", "http", {"url": "{url}/a", "body": FORGED}),
            ("a body with a path", "http", {"url": "{url}/a", "body": {"$blob": "/etc/passwd"}}),
            ("a value", "value", FORGED),
            (
                "an attachment",
                "email",
                {
                    "from": "a@b.c",
                    "to": "a@b.c",
                    "text": "a",
                    "attachments": [{"name": "a", "media_type": "a/b", "content": FORGED}],
                    "server": {"host": "127.0.0.1", "port": 2525, "tls": "none"},
                },
            ),
        )
    ),
    *(
        Run(
            f"mail: {name}",
            (
                document(
                    once(
                        "email",
                        {
                            "from": "a@b.c",
                            "to": "a@b.c",
                            "text": "a",
                            "server": {"host": "127.0.0.1", "port": 2525},
                            **config,
                        },
                    )
                ),
            ),
            Ends(("header_invalid", "config_invalid", "egress_refused", "request_invalid")),
            inputs={"a": "a@b.c\r\nBcc: evil@example.com"},
        )
        for name, config in (
            ("a subject", {"subject": "{{ inputs.a }}"}),
            ("a recipient", {"to": "{{ inputs.a }}"}),
            ("a sender", {"from": "{{ inputs.a }}"}),
            ("a header", {"headers": {"x-a": "{{ inputs.a }}"}}),
            ("a name of a header", {"headers": {"x\r\nBcc": "a"}}),
            ("a reply", {"reply_to": "{{ inputs.a }}"}),
        )
    ),
    *(
        Run(
            f"http: {name}",
            (document(once("http", {"url": "{url}/a", "timeout_seconds": 3, **config})),),
            Ends(("request_invalid", "url_invalid", "config_invalid", "egress_refused")),
            inputs={"a": "b\r\nx-evil: 1"},
            visits=(),
        )
        for name, config in (
            ("a header with a line end", {"headers": {"x-a": "{{ inputs.a }}"}}),
            ("a header of the connection", {"headers": {"Host": "evil.test"}}),
            ("a header of a length", {"headers": {"Content-Length": "0"}}),
            ("a header of an encoding", {"headers": {"Transfer-Encoding": "chunked"}}),
            ("an address with a line end", {"url": "{url}/a\r\nx-evil: 1"}),
            ("an address with a blank", {"url": "{url}/a HTTP/1.1"}),
            ("a file", {"url": "file:///etc/passwd"}),
            ("another scheme", {"url": "gopher://127.0.0.1/"}),
            ("the metadata", {"url": "http://169.254.169.254/latest"}),
            ("the metadata as a number", {"url": "http://2852039166/latest"}),
            ("the metadata in octal", {"url": "http://0251.0376.0251.0376/"}),
            ("the metadata in six", {"url": "http://[::ffff:a9fe:a9fe]/"}),
            ("the machine itself", {"url": "http://0.0.0.0/"}),
            ("a user", {"url": "http://a:b@127.0.0.1/"}),
        )
    ),
)

WAITING: tuple[Row, ...] = tuple(
    Run(f"wait: {type_} {config}"[:60], (document(once(type_, config)),), ending)
    for type_, config, ending in (
        ("sleep", {"seconds": 1e308}, Refused("config_invalid")),
        ("sleep", {"seconds": -1}, Refused("config_invalid")),
        ("sleep", {"ms": "{{ 10 ** 400 }}"}, Fails("config_invalid")),
        ("wait_until", {"at": "99999-01-01"}, Refused("config_invalid")),
        ("wait_until", {"at": "{{ 'x' * 100000 }}"}, Fails("config_invalid")),
        ("wait_until", {"at_ms": 10**40}, Refused("config_invalid")),
    )
)

PUBLISHED = ("publish", "{safe}/v.yaml", "--store", "{store}")
COMMANDS: tuple[Row, ...] = (
    Command(
        "terminal: an actor of a run",
        ("run", "{safe}/v.yaml", "--as", "a\x1b[2J", "--store", "{store}"),
        "text_invalid",
        "\x1b",
        2,
    ),
    Command(
        "terminal: an unknown run", ("runs", "show", "a\x1b[2Jb", "--store", "{store}"), "", "\x1b", 2, (PUBLISHED,)
    ),
    Command("terminal: an unknown workflow", ("start", "a\x1b[2Jb", "--store", "{store}"), "", "\x1b", 2, (PUBLISHED,)),
    Command("terminal: a file that is missing", ("validate", "{safe}/a\x1b[2Jb"), "", "\x1b", 2),
    Command(
        "terminal: a term",
        ("runs", "list", "--label", "a\x1b[2J=b", "--store", "{store}"),
        "",
        "\x1b",
        None,
        (PUBLISHED,),
    ),
    Command("terminal: a condition", ("eval", "--condition", "'\x1b[2J' == output", "--output", "1"), "", "\x1b", 0),
    Command("terminal: an output", ("render", "{{ '\\x1b[2J' ~ '\\u202e' }}"), "", "\x1b", 0),
    Command("terminal: an error of a template", ("render", "{{ a['\x1b[2J'] }}", "--scope", "{}"), "", "\x1b", 1),
    Command(
        "terminal: inputs that are none",
        ("run", "{safe}/v.yaml", "-i", "\x1b[2J", "--store", "memory://"),
        "",
        "\x1b",
        2,
    ),
    Command(
        "terminal: a reason",
        ("runs", "cancel", "one", "--reason", "\x1b[2J", "--store", "{store}"),
        "text_invalid",
        "\x1b",
        2,
        (PUBLISHED, ("start", "v", "--key", "one", "--store", "{store}")),
    ),
    Command("terminal: a store", ("runs", "list", "--store", "x\x1b[2J://u:pw-canary@h"), "", "pw-canary", 2),
    Command(
        "terminal: a password of another store",
        ("runs", "list", "--store", "mysql://u:pw-canary@h/x"),
        "",
        "pw-canary",
        2,
    ),
    Command("terminal: a file of the system", ("run", "/etc/passwd", "--store", "memory://"), "", "root:", 2),
    Command("terminal: a failure", ("run", "{safe}/fails.yaml", "--store", "memory://"), "\\x1b", "\x1b", 1),
    Command("terminal: outputs", ("run", "{safe}/escape.yaml", "--store", "memory://", "--quiet"), "u001b", "\x1b", 0),
    Command("terminal: a graph", ("graph", "{safe}/escape.yaml"), "", "\x1b", 0),
    Command("terminal: a problem of a document", ("validate", "{safe}/wrong.yaml"), "", "\x1b", 2),
    Command("terminal: a device", ("validate", "/dev/zero"), "", "Traceback", 2),
    *(
        Command(f"terminal: a password for {place[:8]}", ("runs", "list", option, place), "", "hunter2", 2)
        for option, place in (
            ("--server", "http://ada:hunter2@127.0.0.1:1"),
            ("--server", "postgresql://ada:hunter2@127.0.0.1:1/x"),
            ("--store", "mysql://ada:hunter2@127.0.0.1:1/x"),
        )
    ),
    Command(
        "terminal: inputs of a device",
        ("run", "{safe}/v.yaml", "-i", "@/dev/zero", "--store", "memory://"),
        "",
        "Traceback",
        2,
    ),
    Command(
        "terminal: a file of inputs",
        ("run", "{safe}/v.yaml", "-i", "@/etc/passwd", "--store", "memory://"),
        "",
        "root:",
        2,
    ),
)

ACT_ROWS: tuple[Row, ...] = (*INPUTS, *NAMES, *SIGNALS, *FORMS, *PATCHES, *BLOBS, *WAITING, *COMMANDS)

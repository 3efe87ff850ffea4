"""One row for every code the compiler can give: what provokes it, where it points, and nothing else beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.kernel.authoring import TYPES, chain, compiled, document, node, said
from tidemill.errors import Problem, Rejected
from tidemill.kernel.compile import references
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.document.normalize import EDGES_MAX, NODES_MAX
from tidemill.kernel.document.reader import read_document

ROOT = Path(__file__).resolve().parents[4]
LOOP = {"condition": "output.again", "max_iterations": 3}
DELAY = 'for example "{{ output.retry_after }}"'


def looping(id_: str, *dependencies: str, back_to: str, **fields: Any) -> dict[str, Any]:
    return node(id_, *dependencies, loop={**LOOP, "loop_back_to": back_to}, **fields)


def diamond(**last: Any) -> dict[str, Any]:
    return document(node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c", **last))


def nested(parts: int, levels: int) -> Any:
    """A composite condition of that many parts, each of them the same composite again."""
    condition: Any = "true"
    for _ in range(levels):
        condition = {"type": "composite", "operator": "AND", "conditions": [condition] * parts}
    return condition


PROBLEMS: list[tuple[str, str, Any]] = [
    # Size.
    ("condition_too_large", "/nodes/0/when", document(node("a", when=nested(13, 3)))),
    ("too_many_conditions", "/nodes/0/when", document(node("a", when=nested(12, 4)))),
    (
        "too_many_conditions",
        "/nodes/5/when",
        document(*(node(f"n{number}", when=nested(12, 3)) for number in range(6))),
    ),
    (
        "too_many_templates",
        "/nodes/0/config/x/10002",
        document(node("a", config={"x": [f"{{{{ inputs.n{number} }}}}" for number in range(20_000)]})),
    ),
    # Shape.
    ("not_a_mapping", "", []),
    ("not_json", "/nodes/0/config/x", document(node("a", config={"x": float("nan")}))),
    ("not_json", "/nodes/0/config", document(node("a", config={1: 2}))),
    ("unknown_key", "/nodez", document(node("a"), nodez=[])),
    ("unknown_key", "/nodes/0/retry/max_atempts", document(node("a", retry={"max_atempts": 1}))),
    ("unknown_key", "/nodes/0/a~1b", document(node("a", **{"a/b": 1}))),
    ("missing_key", "", {"nodes": [node("a")]}),
    ("missing_key", "/nodes/0", document({"id": "a"})),
    ("missing_key", "/nodes/0/loop", document(node("a", loop={"condition": "true"}))),
    ("missing_key", "/edges/0", document(node("a"), edges=[{"from": "a"}])),
    ("wrong_type", "/nodes", document() | {"nodes": 3}),
    ("wrong_type", "/nodes/0/id", document({"id": 1, "type": "value"})),
    ("wrong_type", "/nodes/0/priority", document(node("a", priority=True))),
    ("wrong_type", "/nodes/0/retry/max_attempts", document(node("a", retry={"max_attempts": 3.0}))),
    ("wrong_type", "/nodes/0/dependencies/0", document({"id": "a", "type": "value", "dependencies": [1]})),
    ("wrong_type", "/nodes/0/map/over", document(node("a", map={"over": 3}))),
    ("wrong_type", "/nodes/0/loop/enabled", document(node("a", loop={**LOOP, "enabled": "no"}))),
    ("wrong_type", "/edges/0", document(node("a"), edges=["a"])),
    ("unknown_value", "/nodes/0/delivery", document(node("a", delivery="exactly_once"))),
    ("unknown_value", "/on_failure/compensate", document(node("a"), on_failure={"compensate": "yes"})),
    (
        "unknown_value",
        "/nodes/0/config/escalation_policy",
        document(node("a", type="human", config={"escalation_policy": "?"})),
    ),
    ("out_of_range", "/nodes/0/priority", document(node("a", priority=10))),
    ("out_of_range", "/nodes/0/retry/jitter", document(node("a", retry={"jitter": 2}))),
    ("out_of_range", "/nodes/0/loop/max_iterations", document(node("a", loop={**LOOP, "max_iterations": 0}))),
    ("out_of_range", "/limits/max_visits", document(node("a"), limits={"max_visits": 0})),
    ("bad_name", "/name", document(node("a")) | {"name": "Not a name"}),
    ("bad_name", "/nodes/0/id", document(node("a b"))),
    ("bad_name", "/nodes/0/type", document(node("a", type="value@latest"))),
    ("bad_name", "/nodes/0/config_ref", document(node("a", config_ref="sha256:../../etc/passwd"))),
    ("reserved_id", "/nodes/0/id", document(node("inputs"))),
    ("conflicting_keys", "/nodes/0/node_id", document(node("a", node_id="a"))),
    ("conflicting_keys", "/nodes/3/wait_for_all", diamond(join="all", wait_for_all=True)),
    ("conflicting_keys", "/nodes/0/config_ref", document(node("a", config={}, config_ref="sha256:1"))),
    ("conflicting_keys", "/nodes/a/id", {"name": "test", "nodes": {"a": {"id": "b", "type": "value"}}}),
    (
        "conflicting_keys",
        "/nodes/0/branch/available_next_nodes",
        document(
            node("a", branch={"rules": [{"condition": "true", "next_nodes": ["b"]}], "available_next_nodes": ["b"]}),
            node("b"),
        ),
    ),
    ("empty_branch", "/nodes/0/branch", document(node("a", branch={"default": ["b"]}), node("b"))),
    ("map_over", "/nodes/0/map/over", document(node("a", map={"over": "items"}))),
    ("no_nodes", "/nodes", document()),
    ("too_many_nodes", "/nodes", document(*[None] * (NODES_MAX + 1))),
    # Types.
    ("unknown_node_type", "/nodes/0/type", document(node("a", type="htp"))),
    ("unknown_node_type", "/nodes/0/compensator/type", document(node("a", compensator={"type": "nothing"}))),
    ("unknown_type_version", "/nodes/0/type", document(node("a", type="http@9"))),
    ("config_invalid", "/nodes/0/config", document(node("a", type="http"))),
    ("config_invalid", "/nodes/0/config/port", document(node("a", type="http", config={"url": "x", "port": "y"}))),
    # Graph.
    ("duplicate_id", "/nodes/1", document(node("a"), node("a"))),
    ("unknown_dependency", "/nodes/0/dependencies/0", document(node("a", "b"))),
    ("unknown_dependency", "/edges/0", document(node("a"), edges=[{"from": "a", "to": "b"}])),
    ("self_dependency", "/nodes/0/dependencies/0", document(node("a", "a"))),
    ("self_dependency", "/nodes/0/on_error/route/0", document(node("a", on_error={"route": ["a"]}))),
    ("unknown_target", "/nodes/0/on_error/route/0", document(node("a", on_error={"route": ["b"]}))),
    ("unknown_target", "/nodes/0/loop/loop_back_to", document(looping("a", back_to="b"))),
    ("cycle", "/nodes/1", document(node("a"), node("b", "a", "c"), node("c", "b"), node("d", "b"))),
    ("join_on_entry", "/nodes/0/join", document(node("a", join="any"))),
    ("quorum_too_large", "/nodes/3/join/quorum", diamond(join={"quorum": 3})),
    ("fanout_too_wide", "/nodes/0", document(node("a"), node("b", "a"), node("c", "a"), limits={"max_fanout": 1})),
    ("fanout_too_wide", "/nodes/0", document(node("a", map={"over": [1, 2]}), limits={"max_fanout": 1})),
    (
        "unreachable_rule",
        "/nodes/0/branch/rules/1/condition",
        document(node("a", branch={"rules": [{"condition": "output.x", "next_nodes": []}] * 2})),
    ),
    # Loops.
    (
        "unbounded_loop",
        "/nodes/0/loop/max_iterations",
        document(node("a", loop={**LOOP, "max_iterations": "unlimited"})),
    ),
    ("loop_back_not_ancestor", "/nodes/0/loop/loop_back_to", document(looping("a", back_to="b"), node("b"))),
    ("loop_entered_inside", "/nodes/2/loop", document(node("a"), node("b"), looping("c", "a", "b", back_to="a"))),
    ("loop_left_inside", "/nodes/1/loop", document(node("a"), looping("b", "a", back_to="a"), node("c", "a"))),
    (
        "loops_overlap",
        "/nodes/2/loop",
        document(node("a"), node("b", "a"), looping("c", "b", back_to="a"), looping("d", "c", back_to="b")),
    ),
    (
        "loops_too_deep",
        "/nodes/33/loop",
        document(node("n0"), *(looping(f"n{n}", f"n{n - 1}", back_to="n0") for n in range(1, 34))),
    ),
    # Expressions.
    ("template_syntax", "/nodes/0/config/x", document(node("a", config={"x": "{{ 1 + }}"}))),
    ("condition_syntax", "/nodes/0/when", document(node("a", when="1 +"))),
    ("condition_type", "/nodes/0/when", document(node("a", when="iteration == 'first'"))),
    ("condition_shape", "/nodes/0/when", document(node("a", when=3))),
    ("condition_unknown_kind", "/nodes/0/when/type", document(node("a", when={"type": "perl"}))),
    ("condition_unknown_name", "/nodes/0/when", document(node("a", when="customer.age > 3"))),
    ("schema_invalid", "/inputs/type", document(node("a"), inputs={"type": "objekt"})),
    ("schema_invalid", "/inputs/default", document(node("a"), inputs={"type": "object", "default": 3})),
    ("schema_invalid", "/inputs", document(node("a"), inputs={"name": "string", "age": "integer"})),
    ("template_type", "/nodes/0/config/0/x", document(node("a", config=[{"x": "{{ run.name }}"}]))),
    ("unknown_reference", "/nodes/0/config/0/x", document(node("a", config=[{"x": "{{ b.output }}"}]))),
    ("unknown_reference", "/outputs/x", document(node("a"), outputs={"x": "{{ b.output }}"})),
    ("self_reference", "/nodes/0/config", document(node("a", config="{{ a.output }}"))),
    ("reference_not_ancestor", "/nodes/0/config", document(node("a", config="{{ b.output }}"), node("b", "a"))),
    ("name_not_available", "/nodes/0/config", document(node("a", config="{{ item }}"))),
    ("name_not_available", "/nodes/0/when", document(node("a", when="output.x == 1"))),
    ("secret_not_allowed", "/nodes/0/config", document(node("a", config="{{ secrets.KEY }}"))),
    (
        "secret_not_allowed",
        "/nodes/0/config/url",
        document(node("a", type="http", config={"url": "{{ secrets.A }}", "headers": {"a": "{{ secrets.B }}"}})),
    ),
    (
        "secret_not_alone",
        "/nodes/0/config/headers/a",
        document(node("a", type="http", config={"url": "https://a", "headers": {"a": "{{ secrets.A | upper }}"}})),
    ),
]

WARNINGS: list[tuple[str, str, Any]] = [
    ("early_reference", "/nodes/3/config", diamond(join="any", config="{{ b.output }}")),
    ("ignored_key", "/nodes/0/limits", document(node("a", limits={"max_hops": 9}))),
    ("ignored_key", "/nodes/0/config_ref", document(node("a", config_ref="sha256:1", agent_config={}))),
    (
        "undeclared_key",
        "/nodes/1/config",
        document(node("a", type="form"), node("b", "a", config="{{ a.output.amout }}")),
    ),
    ("dollar_template", "/nodes/0/config/a", document(node("a", config={"a": "${{ inputs.price }}"}))),
    (
        "unknown_input",
        "/nodes/0/config",
        document(
            node("a", config="{{ inputs.custmer | default('') }}"),
            inputs={"type": "object", "properties": {"customer": {}}, "additionalProperties": False},
        ),
    ),
]

TEXTS: list[tuple[str, str, str | bytes]] = [
    ("json_syntax", "json", '{"a": 1,}'),
    ("yaml_syntax", "yaml", "a: [1"),
    ("yaml_syntax", "yaml", "a: 1\n---\nb: 2"),
    ("yaml_alias", "yaml", "a: *b"),
    (
        "alias_bomb",
        "yaml",
        "a: &a [1,2,3,4,5,6,7,8]\n"
        + "".join(
            f"{new}: &{new} [{', '.join([f'*{old}'] * 8)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
        ),
    ),
    ("duplicate_key", "yaml", "a: 1\na: 2"),
    ("duplicate_key", "json", '{"a": {"b": 1, "b": 2}}'),
    ("too_deep", "json", "[" * 10_000),
    ("too_deep", "yaml", "[" * 10_000),
    ("too_deep", "yaml", "\n".join(" " * depth + "a:" for depth in range(500))),
    ("not_utf8", "yaml", b"a: \xff"),
    ("not_utf8", "json", '"\ud800"'),
    ("not_json", "json", '{"a": NaN}'),
    ("not_json", "json", '{"a": "\\ud800"}'),
    ("not_json", "json", '{"a": ' + "1" * 5000 + "}"),
    ("not_json", "yaml", "a: .nan"),
    ("not_json", "yaml", "1: a"),
    ("not_json", "yaml", "a: !!python/object:os.system x"),
    ("not_json", "yaml", "x: &x {a: 1}\ny:\n  <<: *x"),
    ("not_a_mapping", "yaml", ""),
]


@pytest.mark.parametrize(("code", "path", "raw"), PROBLEMS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_faulty_document_has_this_one_problem(code: str, path: str, raw: Any) -> None:
    assert said(raw) == [(code, path)]


@pytest.mark.parametrize(("code", "path", "raw"), WARNINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_doubtful_document_has_this_one_warning(code: str, path: str, raw: Any) -> None:
    assert [(each.code, each.path) for each in compile_document(raw, TYPES).warnings] == [(code, path)]


@pytest.mark.parametrize(("code", "language", "text"), TEXTS, ids=[code for code, *_ in TEXTS])
def test_a_faulty_text_is_refused_with(code: str, language: Any, text: str | bytes) -> None:
    with pytest.raises(Rejected) as caught:
        read_document(text, format=language)
    assert {problem.code for problem in caught.value.problems} == {code}


def test_a_document_beyond_the_size_is_not_even_parsed() -> None:
    with pytest.raises(Rejected) as caught:
        read_document("not: [yaml" + " " * 100, format="yaml", bytes_max=50)
    assert caught.value.code == "document_too_large"


def test_a_tangle_is_a_cycle_and_unreachable_nodes() -> None:
    assert said(document(node("a", "b"), node("b", "a"))) == [("cycle", "/nodes/0")]
    alone = document(node("a"), node("b", "c"), node("c", "b"))
    assert said(alone) == [("cycle", "/nodes/1"), ("unreachable_node", "/nodes/1"), ("unreachable_node", "/nodes/2")]


def test_too_many_edges_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.kernel.document.normalize.EDGES_MAX", 2)
    assert EDGES_MAX > 2
    assert said(diamond()) == [("too_many_edges", "")]


def test_an_object_that_contains_itself_ends() -> None:
    knot: list[Any] = []
    knot += [knot, knot]
    assert [code for code, _ in said(document(node("a", config=knot)))] == ["too_deep"]


def test_an_object_with_a_part_too_many_times_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.kernel.document.values.CONTAINERS_MAX", 1000)
    bomb: list[Any] = []
    for _ in range(50):
        bomb = [bomb, bomb]
    assert [code for code, _ in said(document(node("a", config=bomb)))] == ["document_too_large"]


@pytest.mark.parametrize("config", [[10**4_000] * 300, [[10**4_000] * 10] * 30])
def test_long_integers_are_counted_with_repetition(config: Any) -> None:
    """Writing them takes a time that grows with the square of their digits."""
    assert [code for code, _ in said(document(node("a", config=config)))] == ["document_too_large"]


def test_all_problems_come_at_once_and_name_the_node() -> None:
    with pytest.raises(Rejected) as caught:
        compile_document(
            document(
                node("first", "nowhere", timeout_seconds="soon", colour="red"),
                node("second", type="htp", config="{{ thrid.output }}"),
                node("third", loop={"condition": "output.", "max_iterations": 0}),
            ),
            TYPES,
        )
    problems = caught.value.problems
    assert {problem.code for problem in problems} == {
        "unknown_dependency",
        "wrong_type",
        "unknown_key",
        "unknown_node_type",
        "unknown_reference",
        "condition_syntax",
        "out_of_range",
    }
    for problem in problems:
        assert re.search(r"first|second|third", problem.message), problem


def test_a_million_problems_are_counted_not_listed() -> None:
    with pytest.raises(Rejected) as caught:
        compile_document(document(*(node(f"n{number}", "nowhere") for number in range(1500))), TYPES)
    *kept, last = caught.value.problems
    assert (len(kept), last.code, last.message) == (1000, "too_many_problems", "and 500 more problems")


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        (document(node("a", depedencies=[])), "did you mean `dependencies`?"),
        (document(node("a"), limits={"max_visit": 1}), "did you mean `max_visits`?"),
        (document(node("a", type="htpp")), "did you mean `http`?"),
        (document(node("fetch"), node("b", "fetsch")), "did you mean `fetch`?"),
        (document(node("fetch"), node("b", "fetch", config="{{ fecth.output }}")), "did you mean `fetch`?"),
        (document(node("a", join="al")), "did you mean `all`?"),
        (document(node("a", on_error="b")), "one of fail, continue, or {route: [node]}"),
        (document({"id": "a", "type": "value", "dependencies": "b"}), "write [b]"),
        (document(node("a", loop={**LOOP, "delay_seconds": "in {{ inputs.s }} s"})), DELAY),
    ],
)
def test_a_hint_names_what_was_probably_meant(raw: Any, hint: str) -> None:
    with pytest.raises(Rejected) as caught:
        compile_document(raw, TYPES)
    assert hint in [problem.hint for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("delay", "code"),
    [
        (-1, "out_of_range"),
        ("5", "wrong_type"),
        ("${{ inputs.s }}", "wrong_type"),
        ("{{ inputs.s }}{{ inputs.t }}", "wrong_type"),
        ("{{ inputs.s + }}", "template_syntax"),
        ("{{ missing.output }}", "unknown_reference"),
        ("{{ after.output }}", "reference_not_ancestor"),
        ("{{ current.output }}", "name_not_available"),
        ("{{ secrets.s }}", "secret_not_allowed"),
    ],
)
def test_a_delay_is_a_number_or_one_template(delay: Any, code: str) -> None:
    raw = document(node("a", loop={**LOOP, "delay_seconds": delay}), node("after", "a"))
    assert (code, "/nodes/0/loop/delay_seconds") in said(raw)


def test_what_an_author_wrote_cannot_act_on_the_terminal() -> None:
    with pytest.raises(Rejected) as caught:
        compile_document(document(node("\x1b[31m" + "x" * 5000)), TYPES)
    assert all("\x1b" not in str(problem) and len(problem.message) < 300 for problem in caught.value.problems)


def test_an_ill_formed_id_is_still_found_by_its_edges() -> None:
    assert said(document(node("a b"), node("c", "a b"))) == [("bad_name", "/nodes/0/id")]


def test_an_unknown_type_is_not_blamed_on_the_nodes_behind_its_exits() -> None:
    waiting = node("a", type="approval", config={"rejection_path": ["b"]})
    assert said(document(waiting, node("b", config="{{ a.output }}", join="all"))) == [
        ("unknown_node_type", "/nodes/0/type")
    ]


def test_an_ill_formed_loop_is_not_blamed_on_its_references() -> None:
    raw = document(node("a", config="{{ b.output }}"), looping("b", "a", back_to="a"), node("c", "a"))
    assert said(raw) == [("loop_left_inside", "/nodes/1/loop")]


def test_secrets_are_kept_by_the_fields_that_say_so() -> None:
    config = {"url": "x", "headers": {"a": ["Bearer {{ secrets.TOKEN }}"]}, "auth": {"token": "{{ secrets.TOKEN }}"}}
    assert compiled(node("a", type="http", config=config)).warnings == ()
    config["auth"] = {"user": "{{ secrets.USER }}"}
    assert said(document(node("a", type="http", config=config))) == [
        ("secret_not_allowed", "/nodes/0/config/auth/user")
    ]


def test_parts_that_repeat_are_counted_and_not_walked_through() -> None:
    """Written out, the document would have more conditions than there are atoms."""
    raw = document(node("a", when=nested(500, 20)), node("b", config=nested(3, 90)))
    assert [code for code, _ in said(raw)] == ["document_too_large"]


def test_the_parts_of_all_templates_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "TEMPLATE_PARTS_MAX", 100)
    raw = document(node("a", config=[f"{{{{ inputs.a + {number} }}}}" for number in range(100)]))
    ((code, path),) = said(raw)
    assert code == "too_many_templates" and 10 < int(path.rpartition("/")[2]) < 60
    # The same template counts once, and dotted names do not count.
    compile_document(document(node("a", config=["{{ inputs.a + 1 }}", "{{ inputs.a }}"] * 1_000)), TYPES)


def codes_in_source() -> Iterator[str]:
    """Every literal that is given as the code of a problem or warning."""
    folders = [ROOT / "src/tidemill/kernel" / name for name in ("document", "compile")]
    for file in sorted(file for folder in folders for file in folder.glob("*.py")):
        tree = ast.parse(file.read_text())
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "code")]
            if called in {"problem", "warning", "rejected", "_say", "Problem", "problems"}:
                yield from (value.value for value in given if isinstance(value, ast.Constant))


def test_every_code_has_a_row_and_a_line_in_the_reference() -> None:
    codes = {code for code in codes_in_source() if re.fullmatch(r"[a-z0-9_]+", str(code))}
    reference = set(re.findall(r"^(?:-|\|) `(\w+)`", (ROOT / "docs/reference/errors.md").read_text(), re.MULTILINE))
    rows = {code for code, *_ in [*PROBLEMS, *WARNINGS, *TEXTS]}
    apart = {"document_too_large", "unreachable_node", "too_many_edges", "too_many_problems"}
    apart |= {"condition_ref_unchecked"}
    of_patches = {"patch_invalid", "patch_path_missing", "patch_test_failed"}
    assert len(codes) > 50
    assert codes - rows - apart == of_patches
    assert rows | apart <= reference
    assert codes <= reference


def test_problems_read_as_sentences() -> None:
    problem = Problem(
        code="cycle", path="/nodes/1", message="the dependencies form a cycle: a → b → a", hint="use a loop"
    )
    assert str(problem) == "/nodes/1: the dependencies form a cycle: a → b → a [cycle] (use a loop)"
    with pytest.raises(Rejected, match=re.escape("a → b → c → a")):
        compile_document(chain("a", "b", "c") | {"edges": [{"from": "c", "to": "a"}]}, TYPES)


# Words of other engines

NODE = {"id": "a", "type": "value"}


def refused(raw: dict[str, Any]) -> tuple[Problem, ...]:
    with pytest.raises(Rejected) as refusal:
        compile_document(raw, TYPES)
    return tuple(refusal.value.problems)


@pytest.mark.parametrize(
    ("given", "path", "hint"),
    [
        ({"name": "t", "steps": [NODE]}, "/steps", "did you mean `nodes`?"),
        ({"name": "t", "tasks": [NODE]}, "/tasks", "did you mean `nodes`?"),
        ({"name": "t", "nodes": [{**NODE, "depends_on": []}]}, "/nodes/0/depends_on", "did you mean `dependencies`?"),
        ({"name": "t", "nodes": [{**NODE, "needs": []}]}, "/nodes/0/needs", "did you mean `dependencies`?"),
        ({"name": "t", "nodes": [{**NODE, "if": "true"}]}, "/nodes/0/if", "did you mean `when`?"),
        ({"name": "t", "nodes": [{**NODE, "name": "b"}]}, "/nodes/0/name", "use `id`: it is the name of a node"),
        ({"name": "t", "nodes": [{"name": "b", "type": "value"}]}, "/nodes/0/name", "use `id`: it is the name"),
        (
            {"name": "t", "nodes": [NODE], "limits": {"max_descendants": 5}},
            "/limits/max_descendants",
            "`max_descendants` under `[limits]` in tidemill.toml",
        ),
        ({"name": "t", "nodes": [{**NODE, "timeout": 3}]}, "/nodes/0/timeout", "did you mean `timeout_seconds`?"),
        ({"name": "t", "nodes": [{**NODE, "timeot_second": 3}]}, "/nodes/0/timeot_second", "`timeout_seconds`?"),
        (
            {"name": "t", "nodes": [{**NODE, "retry": {"backof": 3}}]},
            "/nodes/0/retry/backof",
            "did you mean `backoff_seconds`?",
        ),
        ({"name": "t", "nodes": [{**NODE, "on_error": "ignore"}]}, "/nodes/0/on_error", "write continue"),
        ({"name": "t", "nodes": [{**NODE, "on_error": "x"}]}, "/nodes/0/on_error", "or {route: [node]}"),
        ({"name": "t", "nodes": [{**NODE, "join": "most"}]}, "/nodes/0/join", "or {quorum: 2}"),
        (
            {"name": "t", "nodes": [{**NODE, "delivery": "exactly_once"}]},
            "/nodes/0/delivery",
            "at least once or at most",
        ),
        ({"name": "t", "nodes": [{**NODE, "type": "bash"}]}, "/nodes/0/type", "did you mean `shell`?"),
        ({"name": "t", "nodes": [{**NODE, "type": "if"}]}, "/nodes/0/type", "any node may have the key `branch`"),
        ({"name": "t", "nodes": [{**NODE, "type": "approval"}]}, "/nodes/0/type", "did you mean `human`?"),
        ({"name": "t", "nodes": [{**NODE, "type": "branch"}]}, "/nodes/0/type", "may have the key `branch`"),
        ({"name": "t", "nodes": [{**NODE, "type": "http_request"}]}, "/nodes/0/type", "did you mean `http`?"),
        ({"name": "t", "nodes": [{**NODE, "type": "docker"}]}, "/nodes/0/type", "argv: [docker, run"),
        ({"name": "t", "nodes": [{**NODE, "type": "parallel"}]}, "/nodes/0/type", "run side by side"),
        ({"name": "t", "nodes": [{**NODE, "backof": 3}]}, "/nodes/0/backof", "write retry: {"),
        ({"name": "t", "nodes": [{**NODE, "run": "x"}]}, "/nodes/0/run", "write type: shell"),
        ({"name": "t", "nodes": [{**NODE, "matrix": {}}]}, "/nodes/0/matrix", "did you mean `map`?"),
        (
            {"name": "t", "nodes": [{**NODE, "continue-on-error": True}]},
            "/nodes/0/continue-on-error",
            "write on_error: continue",
        ),
        ({"name": "t", "nodes": [{**NODE, "when": True}]}, "/nodes/0/when", "leave it out"),
        ({"name": "t", "nodes": [{**NODE, "when": "always()"}]}, "/nodes/0/when", "on_error: continue"),
        ({"name": "t", "nodes": [{**NODE, "retry": True}]}, "/nodes/0/retry", "for example 3"),
        (
            {"name": "t", "nodes": [{**NODE, "map": {"over": [1], "tolerate": "1%"}}]},
            "/nodes/0/map/tolerate",
            "how many items may fail",
        ),
        ({"name": "t", "retention": 7, "nodes": [NODE]}, "/retention", "write {days: 7}"),
        ({"name": "t", "on_failure": "x", "nodes": [NODE]}, "/on_failure", "write {compensate: automatic}"),
        ({"name": "t", "start_date": "x", "nodes": [NODE]}, "/start_date", "--start-at"),
        ({"name": "My Flow", "nodes": [NODE]}, "/name", "write my-flow"),
        (
            {"name": "t", "inputs": {"properties": {"x": {"required": True}}}, "nodes": [NODE]},
            "/inputs/properties/x/required",
            "required: [x]",
        ),
        ({"name": "t", "nodes": [{**NODE, "config": "{{ inputs.x"}]}, "/nodes/0/config", "`}}` is missing"),
        ({"name": "t", "nodes": [{**NODE, "config": "{{ params.x }}"}]}, "/nodes/0/config", "`inputs.x`"),
        ({"name": "t", "nodes": [{**NODE, "config": "{{ steps.b.outputs.x }}"}]}, "/nodes/0/config", "`b.output`"),
        ({"name": "t", "nodes": [{**NODE, "config": "{{ env.HOME }}"}]}, "/nodes/0/config", "`secrets.HOME`"),
        ({"name": "t", "nodes": [{**NODE, "config": "{{ ds }}"}]}, "/nodes/0/config", "`scheduled_at`"),
        ({"name": "t", "nodes": [{**NODE, "config": "{{ secrets.KEY }}"}]}, "/nodes/0/config", "`env` of `shell`"),
    ],
)
def test_words_of_other_engines_are_explained(given: dict[str, Any], path: str, hint: str) -> None:
    problems = {problem.path: problem for problem in refused(given)}
    assert hint in problems[path].hint


def test_the_range_of_a_number_is_told_to_whoever_writes_a_word() -> None:
    (problem,) = refused({"name": "t", "nodes": [{**NODE, "priority": "high"}]})
    assert problem.message == "node `a`: `priority` must be a whole number from 0 to 9, not a string"


def test_a_dollar_within_a_text_is_no_mistake() -> None:
    for text in ("from ${{ inputs.a }}", "${{ inputs.a }} to ${{ inputs.b }}", "${{ inputs.a }}.", "$ {{ inputs.a }}"):
        assert compiled(node("a", config=text)).warnings == ()


@pytest.mark.parametrize(
    ("seconds", "words"), [(-3, "is -3, it must be at least 0.001"), (1e12, "at most 316,224,000")]
)
def test_a_number_out_of_range_says_which_bound(seconds: float, words: str) -> None:
    (problem,) = refused({"name": "t", "nodes": [{**NODE, "timeout_seconds": seconds}]})
    assert words in problem.message
    assert problem.hint == "leave it out for none"

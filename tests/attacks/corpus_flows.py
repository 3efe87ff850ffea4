"""Attacks that want time or memory of a worker: conditions, schemas, maps, loops, children and documents."""

from __future__ import annotations

import json
from functools import reduce

from tests.attacks.review import Completes, Ends, Fails, Refused, Row, Run, document, node, once

SLOW = "{% for i in range(150000) %}{{ '' }}{% endfor %}{{ item }}"
CONDITION = "output.all(a, output.all(b, output.all(c, a + b + c >= 0)))"
EVIL_PATTERN = "^(([a-z])+.)+[A-Z]([a-z])+$"

COMPUTED: tuple[Row, ...] = (
    Run(
        "map: slow templates",
        (document(once("value", SLOW, map={"over": list(range(60)), "tolerate": 60})),),
        Completes(),
        neighbours=True,
    ),
    Run(
        "map: slow templates over a list that is made",
        (
            document(
                once(
                    "value",
                    "{{ item }}",
                    map={"over": "{{ range(100000) | map('string') | map('length') | list }}", "max_parallel": 50},
                ),
                limits={"max_fanout": 1_000},
            ),
        ),
        Ends(("max_fanout_exceeded", "template_failed"), may_complete=False),
        neighbours=True,
    ),
    Run(
        "map: many items",
        (document(node("value", "{{ item }}", map={"over": list(range(3_000))})),),
        Completes(),
        neighbours=True,
    ),
    Run(
        "map: of children that map",
        (
            document(node("value", "{{ item }}", map={"over": list(range(50))}), name="inner"),
            document(node("workflow", {"workflow": "inner"}, map={"over": list(range(30))})),
        ),
        Completes(),
        neighbours=True,
    ),
    Run(
        "loop: without end",
        (
            document(
                node("value", 1, loop={"condition": "true", "max_iterations": "unlimited"}),
                limits={"max_visits": 1_000},
            ),
        ),
        Fails("max_visits_exceeded"),
        neighbours=True,
    ),
    Run(
        "loop: a number of passes that is none",
        (document(node("value", 1, loop={"condition": "true", "max_iterations": 10**30})),),
        Refused("out_of_range"),
    ),
    Run(
        "loop: an output that doubles",
        (
            document(
                node(
                    "value",
                    "{{ (x.output | default('aa')) ~ (x.output | default('aa')) }}",
                    loop={"condition": "true", "max_iterations": 60},
                ),
            ),
        ),
        Fails("template_failed"),
        neighbours=True,
    ),
    Run(
        "children: a fork bomb",
        (document(once("workflow", {"workflow": "attack"}, map={"over": list(range(5)), "tolerate": 5})),),
        Completes(),
        grants="[limits]\nmax_descendants = 150",
        neighbours=True,
    ),
    Run(
        "children: abandoned ones",
        (
            document(
                once(
                    "workflow", {"workflow": "attack", "close": "abandon"}, map={"over": list(range(5)), "tolerate": 5}
                )
            ),
        ),
        Completes(),
        grants="[limits]\nmax_descendants = 100",
        neighbours=True,
    ),
    Run(
        "children: without end",
        (document(once("workflow", {"workflow": "attack"})),),
        Fails("child_failed", "child_too_deep"),
        neighbours=True,
    ),
    Run(
        "children: inputs that double",
        (
            document(
                once("workflow", {"workflow": "attack", "inputs": {"a": ["{{ inputs.a }}", "{{ inputs.a }}"]}}),
            ),
        ),
        Ends(("child_failed", "template_failed")),
        inputs={"a": "x" * 1_000},
        neighbours=True,
    ),
    Run(
        "render: one text many times",
        (document(node("value", ["{{ inputs.a }}"] * 5_000, retry=1)),),
        Fails("template_failed"),
        inputs={"a": "x" * 900_000},
        neighbours=True,
    ),
    Run(
        "render: one long integer many times",
        (document(node("value", "{{ [10 ** 4000] * 20000 }}", retry=1)),),
        Fails("template_failed"),
        neighbours=True,
    ),
    Run(
        "render: one list many times",
        (document(node("value", ["{{ inputs.a }}"] * 5_000, retry=1)),),
        Fails("template_failed"),
        inputs={"a": ["x" * 1_000] * 900},
        neighbours=True,
    ),
    Run(
        "render: what is made many times",
        (document(node("value", ["{{ inputs.a ~ '' }}"] * 5_000, retry=1)),),
        Fails("template_failed"),
        inputs={"a": "x" * 900_000},
        neighbours=True,
    ),
    Run(
        "render: outputs with one text many times",
        (document(node("value", "{{ inputs.a }}"), outputs=["{{ x.output }}"] * 5_000),),
        Fails("outputs_failed"),
        inputs={"a": "x" * 900_000},
        neighbours=True,
    ),
    Run(
        "map: one text many times",
        (document(node("value", "{{ inputs.a }}", map={"over": list(range(100))})),),
        Fails("output_too_large"),
        inputs={"a": "x" * 900_000},
        neighbours=True,
    ),
    Run(
        "map: a list that is small as text and large in memory",
        (
            document(
                node("value", "{{ inputs.a }}", map={"over": list(range(25))}),
                node("value", "{{ x.output | length }}", "y", dependencies=["x"]),
            ),
        ),
        Fails("output_too_large"),
        inputs={"a": [0.5] * 200_000},
        neighbours=True,
    ),
    Run(
        "render: outputs with much behind them",
        (
            document(
                *(node("value", "{{ inputs.a }}", f"n{n}") for n in range(160)),
                outputs="".join(f"{{{{ n{n}.output[0] }}}}" for n in range(160)),
            ),
        ),
        Fails("outputs_failed"),
        inputs={"a": "x" * 900_000},
        neighbours=True,
    ),
    Run(
        "children: one that returns much",
        (
            document(*(node("value", "{{ inputs.a }}", f"n{n}") for n in range(80)), name="inner"),
            document(node("workflow", {"workflow": "inner", "inputs": "{{ inputs }}"}, retry=1)),
        ),
        Fails("child_failed"),
        inputs={"a": "x" * 900_000},
        neighbours=True,
    ),
    Run(
        "render: one text behind many nodes",
        (
            document(
                *(node("value", "{{ inputs.a }}", f"n{n}") for n in range(200)),
                node("output", {}, dependencies=[f"n{n}" for n in range(200)], retry=1),
            ),
        ),
        Fails("values_too_large"),
        inputs={"a": "x" * 900_000},
        neighbours=True,
    ),
    Run(
        "children: many labels",
        (document(once("workflow", {"workflow": "attack", "labels": {f"k{n}": "v" for n in range(5_000)}})),),
        Ends(("child_failed", "config_invalid")),
    ),
    Run(
        "condition: nested comprehensions",
        (
            document(
                node("value", list(range(900))),
                node("value", 1, "y", dependencies=["x"], when=CONDITION.replace("output", "ctx.x.output")),
            ),
        ),
        Ends(("condition_failed",)),
        neighbours=True,
    ),
    Run(
        "condition: 400 that are slow",
        (
            document(
                node("value", list(range(200))),
                *(
                    once(
                        "value",
                        1,
                        id_=f"y{n}",
                        dependencies=["x"],
                        when=CONDITION.replace("output", "ctx.x.output"),
                        on_error="continue",
                    )
                    for n in range(30)
                ),
            ),
        ),
        Ends(("condition_failed",)),
        neighbours=True,
    ),
    Run(
        "condition: nested composites",
        (
            document(
                node(
                    "value",
                    1,
                    when=reduce(
                        lambda inner, _: {"type": "composite", "operator": "NOT", "conditions": [inner]},
                        range(200),
                        "true",
                    ),
                )
            ),
        ),
        Refused("too_deep"),
        neighbours=True,
    ),
    Run(
        "condition: a wide composite",
        (document(node("value", 1, when={"type": "composite", "operator": "AND", "conditions": ["true"] * 100_000})),),
        Refused("too_many_conditions"),
        neighbours=True,
    ),
    Run(
        "condition: a deep expression",
        (document(node("value", 1, when="(" * 4_000 + "true" + ")" * 4_000)),),
        Refused("condition_syntax"),
    ),
    Run(
        "condition: a chain of negations",
        (document(node("value", 1, when="!" * 8_000 + "true")),),
        Completes(),
    ),
    Run(
        "condition: a pattern that explodes",
        (document(node("value", 1, when="inputs.a.matches('(a{1,1000}){1,1000}')")),),
        Refused("condition_syntax"),
        inputs={"a": "a" * 1_000},
    ),
    Run(
        "condition: a comparison of large texts",
        (document(node("value", 1, when="inputs.a + inputs.a + inputs.a + inputs.a + inputs.a != inputs.a")),),
        Ends(("condition_failed",)),
        inputs={"a": "a" * 900_000},
        neighbours=True,
    ),
    *(
        Run(
            f"schema: {name}",
            (document(node("value", 1), inputs={"type": "object", "properties": {"a": schema}}),),
            ending,
            inputs={"a": given},
            neighbours=True,
        )
        for name, schema, given, ending in (
            (
                "a pattern that backtracks",
                {"type": "string", "pattern": EVIL_PATTERN},
                "a" * 50_000,
                Refused("inputs_invalid"),
            ),
            (
                "a pattern that looks back",
                {"type": "string", "pattern": "^(a+)+\\1$"},
                "a" * 5_000 + "b",
                Refused("inputs_invalid"),
            ),
            ("unique items", {"uniqueItems": True}, [{"n": n} for n in range(20_000)], Completes()),
            ("contains", {"contains": {"const": -1}}, list(range(100_000)), Refused("inputs_invalid")),
            ("all of many", {"allOf": [{"uniqueItems": True}] * 200}, [[n] for n in range(3_000)], Completes()),
            ("a number that is no multiple", {"multipleOf": 1e-300}, 1e300, Ends(())),
        )
    ),
    Run(
        "schema: one default many times",
        (
            document(
                node("value", 1),
                inputs={
                    "type": "object",
                    "properties": {f"k{n}": {"$ref": "#/$defs/d"} for n in range(5_000)},
                    "$defs": {"d": {"default": "x" * 500_000}},
                },
            ),
        ),
        Refused("inputs_too_large"),
        neighbours=True,
    ),
    Run(
        "schema: defaults in every item",
        (
            document(
                node("value", 1),
                inputs={
                    "properties": {
                        "a": {"items": {"properties": {f"k{n}": {"default": n} for n in range(500)}}},
                    },
                },
            ),
        ),
        Refused("inputs_too_large"),
        inputs={"a": [{} for _ in range(200_000)]},
        neighbours=True,
    ),
    Run(
        "schema: references that multiply",
        (
            document(
                node("value", 1),
                inputs={
                    "$ref": "#/$defs/a0",
                    "$defs": {
                        **{f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 10} for n in range(20)},
                        "a20": {"type": "string"},
                    },
                },
            ),
        ),
        Refused("schema_invalid"),
        neighbours=True,
    ),
    Run(
        "schema: a reference to itself",
        (document(node("value", 1), inputs={"$ref": "#"}),),
        Completes(),
    ),
    Run(
        "model: a pattern that backtracks",
        (
            document(
                once("llm", {"provider": "scripted", "prompt": "a" * 40 + "!", "answers": {"^(a+)+$": "1", ".": "2"}}),
            ),
        ),
        Ends(("script_unmatched",)),
        neighbours=True,
    ),
    Run(
        "model: labels without end",
        (
            document(
                once(
                    "classify",
                    {
                        "provider": "scripted",
                        "text": "a",
                        "labels": [f"l{n}" for n in range(50_000)],
                        "answers": [{"label": "l1"}],
                    },
                )
            ),
        ),
        Ends(("config_invalid", "output_invalid")),
        neighbours=True,
    ),
)

FLAT = "name: attack\nnodes:\n"
DOCUMENTS: tuple[Row, ...] = (
    Run(
        "document: many nodes with templates",
        (
            document(
                *(node("value", "{{ inputs.a }} and {{ inputs.a | upper }}", f"n{n}") for n in range(1_500)),
                node("fail", {"message": "no"}, retry=1),
            ),
        ),
        Fails("failed"),
        inputs={"a": "x"},
        neighbours=True,
    ),
    Run(
        "document: many conditions",
        (
            document(
                *(node("value", 1, f"n{n}", when=f"inputs.a == {n} && inputs.b.all(x, x > {n})") for n in range(300))
            ),
        ),
        Ends(("condition_failed", "max_visits_exceeded")),
        inputs={"a": 1, "b": []},
        neighbours=True,
    ),
    Run(
        "document: long templates",
        (document(*(node("value", "{{ 1 }}" * 30_000, f"n{n}") for n in range(20))),),
        Refused("template_syntax"),
        neighbours=True,
    ),
    Run(
        "document: a deep template",
        (document(node("value", "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}")),),
        Refused("template_syntax"),
        neighbours=True,
    ),
    Run(
        "document: nested blocks",
        (document(node("value", "{% if 1 %}" * 5_000 + "{% endif %}" * 5_000)),),
        Refused("template_syntax"),
        neighbours=True,
    ),
    Run(
        "document: a chain of filters",
        (document(node("value", "{{ 1" + " | string" * 20_000 + " }}")),),
        Refused("template_syntax"),
        neighbours=True,
    ),
    Run(
        "document: a long sum",
        (document(node("value", "{{ 1" + " + 1" * 50_000 + " }}")),),
        Refused("template_syntax"),
        neighbours=True,
    ),
    Run(
        "document: all nodes before all nodes",
        (
            document(
                *(
                    node("value", 1, f"n{n}", dependencies=[f"n{m}" for m in range(max(0, n - 300), n)])
                    for n in range(1_500)
                )
            ),
        ),
        Completes(),
        neighbours=True,
    ),
    Run("document: deep text", (), Refused("too_deep"), text="[" * 200_000 + "]" * 200_000),
    Run("document: deep YAML", (), Refused("too_deep"), text="".join(" " * n + "a:\n" for n in range(2_000))),
    Run(
        "document: aliases of aliases",
        (),
        Refused("alias_bomb"),
        text="a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)),
        neighbours=True,
    ),
    Run(
        "document: one text many times",
        (),
        Refused("alias_bomb"),
        text=f"name: attack\ndescription: &a {'x' * 1_000_000}\n"
        f"nodes: [{{id: a, type: value, config: [{'*a, ' * 5_000}]}}]",
        neighbours=True,
    ),
    Run(
        "document: one long integer many times",
        (),
        Refused("document_too_large"),
        text=f"name: attack\nnodes: [{{id: a, type: value, config: [&a {'7' * 4_000}, {'*a, ' * 20_000}]}}]",
        neighbours=True,
    ),
    Run("document: an alias of itself", (), Refused("yaml_alias"), text="name: attack\nnodes: &n [*n]"),
    Run("document: a merge", (), Refused("not_json"), text="a: &a {b: 1}\nc: {<<: *a}"),
    Run(
        "document: a large integer",
        (),
        Refused("not_json"),
        text=f"name: attack\nnodes: [{{id: a, type: value, config: {'9' * 100_000}}}]",
    ),
    Run(
        "document: a large integer as JSON",
        (),
        Refused("not_json"),
        text=json.dumps({"name": "attack"})[:-1]
        + ', "nodes": [{"id": "a", "type": "value", "config": '
        + "9" * 100_000
        + "}]}",
    ),
    Run("document: control characters in a name", (document(node("value", 1), name="a\x1b[2J"),), Refused("bad_name")),
    Run("document: control characters in an id", (document(node("value", 1, "a\x1b[2J")),), Refused("bad_name")),
    Run("document: a path as a name", (document(node("value", 1), name="../../x"),), Refused("bad_name")),
    Run(
        "document: too many nodes",
        (),
        Refused("too_many_nodes"),
        text=FLAT + "".join(f"- {{id: n{n}, type: value}}\n" for n in range(200_001)),
        neighbours=True,
    ),
)

FLOW_ROWS: tuple[Row, ...] = (*COMPUTED, *DOCUMENTS)

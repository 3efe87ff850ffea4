"""Attacks that want time or memory of a worker: answers, tables and templates."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

from tests.attacks.review import Answer, Completes, Ending, Ends, Fails, Row, Run, document, once

JSON = {"Content-Type": "application/json"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ZEROS = gzip.compress(b"\0" * 60_000_000, 1)
DEFLATED = zlib.compress(b"\0" * 60_000_000, 1)
CALL_ENDS = Ends(("response_invalid", "response_too_large", "timeout", "connection_failed", "http_status"))


def answer(name: str, given: Answer, ending: Ending = CALL_ENDS, **config: Any) -> Run:
    config = {"url": "{url}/a", "timeout_seconds": 3, **config}
    return Run(f"answer: {name}", (document(once("http", config)),), ending, answers={"*": given}, neighbours=True)


ANSWERED: tuple[Row, ...] = (
    answer("a gzip bomb", Answer(ZEROS, {**JSON, "Content-Encoding": "gzip"}), Fails("response_too_large")),
    answer(
        "a bomb in a bomb",
        Answer(gzip.compress(ZEROS), {**JSON, "Content-Encoding": "gzip, gzip"}),
    ),
    answer("a deflate bomb", Answer(DEFLATED, {**JSON, "Content-Encoding": "deflate"})),
    answer("a hundred encodings", Answer(b"x", {**JSON, "Content-Encoding": ", ".join(["gzip"] * 100)})),
    answer("an encoding that nobody knows", Answer(b"x", {**JSON, "Content-Encoding": "br, zstd"})),
    *(
        answer(f"the charset {charset}", Answer(b"+AGE-" * 100_000, {"Content-Type": f"text/plain; charset={charset}"}))
        for charset in ("utf-7", "utf-32", "rot13", "zlib", "base64", "raw_unicode_escape", "../../x", "x" * 50_000)
    ),
    answer("10,000 headers", Answer(raw=HEAD + b"".join(b"x-%d: a\r\n" % n for n in range(10_000)) + b"\r\n[]")),
    answer("a header without end", Answer(raw=HEAD + b"x-a: " + b"a" * 5_000, trickle=True)),
    answer("a header that is folded", Answer(raw=HEAD + b"x-a: b\r\n " * 20_000 + b"\r\n[]")),
    answer("a status line without end", Answer(raw=b"HTTP/1.1 200 " + b"a" * 5_000_000)),
    answer("a status that is none", Answer(raw=b"HTTP/1.1 999999999999999999999 x\r\n\r\n")),
    answer("many interim answers", Answer(raw=b"HTTP/1.1 100 Continue\r\n\r\n" * 40, trickle=True)),
    answer("a length that lies", Answer(raw=HEAD + b"Content-Length: 10\r\n\r\n[]")),
    answer("a negative length", Answer(raw=HEAD + b"Content-Length: -1\r\n\r\n[]")),
    answer("two lengths", Answer(raw=HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n[]")),
    answer("a chunk without end", Answer(raw=HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 100_000)),
    answer(
        "small chunks without end",
        Answer(raw=HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 160, trickle=True),
    ),
    answer("a slow body", Answer(raw=HEAD + b"\r\n[" + b" " * 10, trickle=True)),
    answer("deep JSON", Answer(b"[" * 200_000 + b"]" * 200_000, JSON)),
    answer("deep objects", Answer(b'{"a":' * 150_000 + b"1" + b"}" * 150_000, JSON)),
    answer("an integer of a million digits", Answer(b"[" + b"9" * 1_000_000 + b"]", JSON)),
    answer("a fraction of a million digits", Answer(b"[0." + b"9" * 1_000_000 + b"e-5]", JSON)),
    answer("a number beyond all", Answer(b"[1e999999, -1e999999, NaN]", JSON)),
    answer("half a pair", Answer(b'{"a": "\\ud800", "\\udfff": 1}', JSON), Ends(("response_invalid",))),
    answer("equal keys", Answer(b'{"a": 1, "a": 2, "__proto__": {"x": 1}, "constructor": 1}', JSON)),
    answer("a million keys", Answer(json.dumps({str(n): n for n in range(500_000)}).encode(), JSON)),
    answer("two million lists", Answer(b"[" + b"[]," * 2_000_000 + b"[]]", JSON), Fails("response_too_large")),
    answer("many lists", Answer(b"[" + b"[]," * 490_000 + b"[]]", JSON), Completes()),
    answer("many nulls", Answer(b"[" + b"null," * 900_000 + b"null]", JSON), Completes()),
    answer("long integers", Answer(b"[" + (b"9" * 4_000 + b",") * 2_000 + b"1]", JSON), Fails("response_too_large")),
    answer(
        "a blob that is not there",
        Answer(json.dumps({"$blob": "sha256:" + "0" * 64, "size": 1}).encode(), JSON),
        Fails("blob_unknown"),
    ),
    answer("cookies", Answer(b"[]", {**JSON, "Set-Cookie": "a=b; " * 10_000})),
    answer(
        "links without end",
        Answer(b"[1]", {**JSON, "Link": '<{url}/a>; rel="prev", ' * 2_000}),
        pagination={"next": "link"},
    ),
    answer(
        "a link with many parameters",
        Answer(b"[1]", {**JSON, "Link": "<{url}/a>" + '; a="\\\\' * 10_000}),
        pagination={"next": "link"},
    ),
    answer(
        "a page that leads to itself",
        Answer(b"[1]", {**JSON, "Link": '<{url}/a>; rel="next"'}),
        pagination={"next": "link"},
    ),
    answer(
        "pages with much to look through",
        Answer(json.dumps({"a": [[[{"b": 1}] * 40] * 40] * 40}).encode(), JSON),
        Ends(("query_failed", "response_invalid", "response_too_large", "timeout")),
        pagination={"next": "$.next", "items": "$..b..*"},
    ),
    answer("a wait of a thousand years", Answer(b"", {**JSON, "Retry-After": "9" * 5_000}, status=429)),
    answer(
        "a wait until a date that is none",
        Answer(b"", {**JSON, "Retry-After": "Mon, 99 Foo 9999999 00:00:00"}, status=503),
    ),
    answer(
        "a redirect to a file",
        Answer(b"", {"Location": "file:///etc/passwd"}, status=302),
        Ends(("egress_refused", "url_invalid", "response_invalid")),
    ),
    answer(
        "a redirect to the metadata",
        Answer(b"", {"Location": "http://169.254.169.254/"}, status=302),
        Fails("egress_refused"),
    ),
    answer(
        "a redirect to a disguise",
        Answer(b"", {"Location": "http://[::ffff:169.254.169.254]/"}, status=302),
        Fails("egress_refused"),
    ),
    answer("a redirect without end", Answer(b"", {"Location": "{url}/a"}, status=302), Fails("too_many_redirects")),
    answer(
        "a long redirect",
        Answer(b"", {"Location": "{url}/" + "a/../" * 12_000}, status=302),
        Ends(("too_many_redirects", "response_too_large", "url_invalid", "http_status", "response_invalid")),
    ),
    answer(
        "a redirect with credentials",
        Answer(b"", {"Location": "http://a:b@127.0.0.1/"}, status=302),
        Ends(("egress_refused", "url_invalid", "response_invalid")),
    ),
    Run(
        "answer: a model that never stops",
        (
            document(
                once("llm", {"model": "m", "prompt": "a", "base_url": "{url}", "stream": True, "timeout_seconds": 3})
            ),
        ),
        Ends(
            (
                "timeout",
                "response_too_large",
                "stream_cut",
                "response_invalid",
                "provider_unavailable",
                "connection_failed",
                "answer_too_large",
                "output_too_large",
            )
        ),
        answers={
            "*": Answer(
                raw=b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
                + b'data: {"choices": [{"delta": {"content": "aaaaaaaa"}}]}\n\n' * 200,
                trickle=True,
            )
        },
        neighbours=True,
    ),
    Run(
        "answer: a model with a long line",
        (
            document(
                once("llm", {"model": "m", "prompt": "a", "base_url": "{url}", "stream": True, "timeout_seconds": 3})
            ),
        ),
        Ends(
            (
                "timeout",
                "response_too_large",
                "stream_cut",
                "response_invalid",
                "provider_unavailable",
                "connection_failed",
            )
        ),
        answers={
            "*": Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + b"a" * 9_000_000)
        },
        neighbours=True,
    ),
)

NINE = "[1, 2, 3, 4, 5, 6, 7, 8, 9]"
SAME = [{"a": 1, "b": n} for n in range(3_000)]
TABLE_ENDS = Ends(
    ("step_failed", "rows_too_large", "rows_too_many", "config_invalid", "output_too_large", "query_failed", "timeout")
)


def table(name: str, rows: Any, *steps: dict[str, Any], ending: Ending = TABLE_ENDS, **config: Any) -> Run:
    flow = document(once("pipeline", {"rows": rows, "pipeline": list(steps), **config}, timeout_seconds=30))
    return Run(f"table: {name}", (flow,), ending, neighbours=True)


TABLES: tuple[Row, ...] = (
    table("a join with itself", SAME, {"step": "join", "with": SAME, "on": "a"}),
    table("a full join", SAME, {"step": "join", "with": SAME, "on": "a", "how": "full"}, max_rows=1_000_000),
    table(
        "a chain of joins",
        SAME[:10],
        *[{"step": "join", "with": SAME[:4], "on": "a", "suffix": f"_{n}"} for n in range(20)],
    ),
    table(
        "long values in a join",
        [{"a": 1, "x": "y" * 50_000}] * 10,
        {"step": "join", "with": [{"a": 1, "z": n} for n in range(5_000)], "on": "a"},
    ),
    table(
        "lists of lists",
        [{"a": 1, "b": "x" * 1_000}] * 100,
        *[{"step": "groupby", "by": "a", "aggregations": {"b": {"list": "b"}, "c": {"list": "b"}, "a": {"first": "a"}}}]
        * 1,
        *[{"step": "groupby", "by": "a", "aggregations": {f"b{n}": {"list": "b"} for n in range(1_000)}}],
    ),
    table(
        "many aggregations",
        SAME,
        {"step": "groupby", "by": "b", "aggregations": {f"c{n}": {"sum": "b"} for n in range(1_000)}},
    ),
    table("many fields to sort by", SAME, {"step": "table_sort", "field": ["b"] * 500}),
    table("one field many times", SAME, {"step": "table_select", "fields": {f"f{n}": "b" for n in range(5_000)}}),
    table(
        "large integers in a sum",
        [{"a": 10**4_000}] * 240,
        {"step": "groupby", "by": "a", "aggregations": {"s": {"sum": "a"}}},
    ),
    table(
        "a pattern over long text",
        [{"a": "a" * 500_000}] * 10,
        {"step": "regex_extract", "field": "a", "pattern": "(a+)+b", "all": True},
    ),
    table(
        "many matches", [{"a": "a" * 500_000}] * 5, {"step": "regex_extract", "field": "a", "pattern": "a", "all": True}
    ),
    table(
        "a join of long integers",
        [{"k": 1, "a": 10**4_200}] * 60,
        {"step": "join", "with": [{"k": 1, "b": 1}] * 200, "on": "k"},
        ending=Fails("rows_too_large", "digits"),
    ),
    table(
        "a program that makes many lists",
        [{"a": 1}],
        {"step": "jq_transform", "program": "[{a: [range(3000000) | []]}]"},
    ),
    table(
        "many short matches",
        [{"a": "ab" * 500_000}] * 20,
        {"step": "regex_extract", "field": "a", "pattern": "ab", "all": True},
    ),
    table(
        "many groups",
        [{"a": "ab" * 10_000}] * 50,
        {"step": "regex_extract", "field": "a", "pattern": "(a?)(b?)" * 40, "all": True},
    ),
    table(
        "many formats of dates",
        [{"a": "x" * 1_000}] * 2_000,
        {"step": "parse_date", "field": "a", "format": ["%d.%m.%Y %H:%M:%S.%f %z"] * 200, "otherwise": "null"},
    ),
    table(
        "a zone that is a path",
        [{"a": "2026-01-01"}],
        {"step": "parse_date", "field": "a", "zone": "../../../etc/passwd"},
    ),
    table(
        "a slow condition for every row",
        SAME,
        {
            "step": "table_filter",
            "condition": {
                "type": "python_sandbox",
                "code": "def evaluate(output, context):\n    for i in range(10 ** 9): pass\n    return True",
                "timeout_ms": 60_000,
            },
        },
    ),
    table(
        "a condition with a comprehension",
        SAME[:500],
        {
            "step": "table_filter",
            "condition": f"{NINE}.all(a, {NINE}.all(b, {NINE}.all(c, a + b + c > 0)))",
        },
    ),
    table("a hundred steps", SAME, *[{"step": "table_sort", "field": "b", "order": "desc"}] * 100),
    Run(
        "search: much text",
        (document(once("search", {"query": "a " * 5_000, "documents": ["a b c d e f " * 5_000] * 100})),),
        Ends(("config_invalid", "step_failed", "search_failed")),
        neighbours=True,
    ),
    Run(
        "transform: many queries",
        (document(once("transform", {"from": "{{ inputs.a }}", "extract": {f"q{n}": "$..*" for n in range(300)}})),),
        Ends(("query_failed", "output_too_large", "config_invalid")),
        inputs={"a": [[[1] * 20] * 20] * 20},
        neighbours=True,
    ),
    Run(
        "transform: nested filters",
        (document(once("transform", {"from": "{{ inputs.a }}", "extract": {"q": "$..[?$..[?@..[?@ > 0]]]"}})),),
        Ends(("query_failed",)),
        inputs={"a": [[[1] * 20] * 20] * 10},
        neighbours=True,
    ),
)

RENDERED: tuple[Row, ...] = tuple(
    Run(
        f"bomb: {template}"[:60],
        (document(once("value", template)),),
        Ends(("template_failed", "template_syntax", "output_too_large")),
        inputs={"big": "<" * 300_000, "words": "a " * 150_000, "numbers": list(range(50_000))},
        neighbours=True,
    )
    for template in (
        "{{ inputs.big | striptags }}",
        "{{ inputs.big | wordwrap(1) | length }}",
        "{{ inputs.words | title | wordcount }}",
        "{{ inputs.big | center(1000000000) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '%.1000000f' | format(1.5) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ inputs.big.replace('', inputs.big) }}",
        "{{ inputs.big.split('<') | length }}",
        "{{ inputs.big | replace('<', '<<<<<<<<<<') | length }}",
        "{{ inputs | tojson(1000000) }}",
        "{{ inputs.numbers | json(100000) | length }}",
        "{{ inputs.numbers | batch(1, 'x') | map('join') | join | length }}",
        "{{ inputs.numbers | slice(100000) | list | length }}",
        "{{ 2 ** 16000 * 2 ** 16000 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ ('9' * 100000) | int }}",
        "{{ 1.5 | round(1000000000) }}",
        "{{ 1 << 100000000 }}",
        "{{ '2026-01-01' | date_add(years=1000000000) }}",
        "{{ inputs.words | regex_findall('(a )*(a )*(a )*b') | length }}",
        "{{ inputs.words | regex_replace('a', 'aaaaaaaaaaaaaaaaaaaa') | length }}",
        "{{ inputs.words | indent(100000) | length }}",
        "{{ inputs.numbers | sort(reverse=true) | unique | sum }}",
        "{{ inputs.numbers | map('string') | sort | groupby(0) | list | length }}",
        "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in [1] %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{{ inputs.big in inputs.big ~ 'a' }}",
        "{{ inputs.big is search('<{1,500}<{1,500}$') }}",
    )
)

LOAD_ROWS: tuple[Row, ...] = (*ANSWERED, *TABLES, *RENDERED)

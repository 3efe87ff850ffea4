"""Further attacks in the classes of the review, as tables of the same rows. To add one, append it to its table."""

from __future__ import annotations

from tests.attacks.corpus_acts import ACT_ROWS
from tests.attacks.corpus_agents import AGENT_ROWS
from tests.attacks.corpus_code import CODE_ROWS
from tests.attacks.corpus_flows import FLOW_ROWS
from tests.attacks.corpus_load import LOAD_ROWS
from tests.attacks.corpus_secrets import SECRET_ROWS
from tests.attacks.corpus_sql import SQL_ROWS
from tests.attacks.review import Row

CORPUS: tuple[Row, ...] = (*CODE_ROWS, *SECRET_ROWS, *SQL_ROWS, *LOAD_ROWS, *FLOW_ROWS, *ACT_ROWS, *AGENT_ROWS)
SLICE_NAMES = frozenset(
    (
        *("code: builtins:eval", "code: json:codecs.open", "code: patched into a live run", "code: a YAML tag"),
        *("code: in a stored configuration", "jq: [{a: env}]", "schema: inputs refers to file:/"),
        *("template: {{ inputs['__class__'] }}", "template: {% include '/etc/passwd' %}"),
        *("sandbox: return open('/etc/passwd').read() != ''", "trap: eval in a child process"),
        *("secret in a value", "secret in a header of a mail", "secret as {{ secrets | json }}", "secret: a command"),
        *("secret: a redirect with a header", "secret: a page elsewhere", "secret: an error that quotes the answer"),
        *("secret: a child of another name", "store of alice: SELECT * FROM main.ledger", "store: REINDEX"),
        *(
            "store: PRAGMA user_version = 9",
            "render: one text many times",
            "render: one long integer many times",
            "map: one text many times",
        ),
        *("agent: a file of another workflow, as rows", "agent: data as templates of the researcher"),
        *("agent: a service with one large schema many times", "agent: an encoded step up"),
        *("act: inputs, a blob that is not there", "act: a label", "http: the metadata as a number"),
    )
)
SLICE: tuple[Row, ...] = tuple(row for row in CORPUS if row.name in SLICE_NAMES)
"""Quick ones of every class, for `make test`."""

"""What the words of other engines are translated to exists here."""

from __future__ import annotations

from itertools import chain

import pytest

from tidemill.kernel.document import fields, normalize, synonyms
from tidemill.node_types import built_in_types

TABLES = {
    "document": normalize.DOCUMENT,
    "edge": normalize._EDGE,
    "limits": normalize.LIMITS,
    "node": fields.NODE,
    "branch": fields.BRANCH,
    "rule": fields._RULE,
    "loop": fields.LOOP,
    "retry": fields.RETRY,
    "map": fields.MAP,
}


def test_every_word_leads_to_a_key_or_type_that_exists() -> None:
    types = built_in_types()
    schemas = [each[0].config_schema for each in types.values()]
    config = {key for schema in schemas if isinstance(schema, dict) for key in schema["properties"]}
    assert set(chain(*synonyms.KEYS.values())) <= {key for table in TABLES.values() for key in table.order}
    assert set(chain(*synonyms.CONFIG_KEYS.values())) <= config
    assert set(chain(*synonyms.TYPES.values())) <= set(types)
    assert set(chain(*synonyms.KEYS_AS_TYPES.values())) <= set(fields.NODE.entries)


@pytest.mark.parametrize("name", TABLES)
def test_no_key_that_may_be_written_is_explained_away(name: str) -> None:
    table = TABLES[name]
    assert not set(table.instead) & set(table.entries)
    assert not [key for key in table.entries if synonyms.our_key(key, table.entries)]


@pytest.mark.parametrize(
    ("table", "word", "key"),
    [
        ("node", "timeout", "timeout_seconds"),
        ("limits", "timeout", "deadline_seconds"),
        ("node", "until", "loop"),
        ("node", "next", "dependents"),
        ("rule", "next", "next_nodes"),
        ("rule", "when", "condition"),
        ("loop", "delay", "delay_seconds"),
        ("retry", "delay", "backoff_seconds"),
        ("document", "params", "inputs"),
        ("node", "params", "config"),
        ("map", "needs", ""),
    ],
)
def test_what_a_word_means_depends_on_the_mapping(table: str, word: str, key: str) -> None:
    assert synonyms.our_key(word, TABLES[table].entries) == key

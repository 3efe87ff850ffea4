"""Further attacks in the classes of the review, as tables of the same rows. To add one, append it to its table."""

from __future__ import annotations

from tests.attacks.corpus_acts import ACT_ROWS
from tests.attacks.corpus_code import CODE_ROWS
from tests.attacks.corpus_load import LOAD_ROWS
from tests.attacks.corpus_secrets import SECRET_ROWS
from tests.attacks.corpus_sql import SQL_ROWS
from tests.attacks.review import Row

CORPUS: tuple[Row, ...] = (*CODE_ROWS, *SECRET_ROWS, *SQL_ROWS, *LOAD_ROWS, *ACT_ROWS)
SLICE: tuple[Row, ...] = ()

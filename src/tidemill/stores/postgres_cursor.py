"""A PostgreSQL cursor that streams the answer of any statement row by row.

User SQL on the store and the node type `sql` share it, so that an answer that is too large is abandoned before it is in
memory. It needs psycopg: only a process that uses PostgreSQL may import this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg.generators import fetch
from psycopg.pq import ExecStatus
from psycopg.rows import TupleRow

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGresult


class RowByRow(psycopg.AsyncCursor[TupleRow]):
    """Streams the answer of any statement, also an empty one, and records how many rows it changed."""

    changed = 0

    def _stream_fetchone_gen(self, first: bool) -> PQGen[PGresult | None]:
        result: PGresult | None = yield from fetch(self._pgconn)
        if result is None:
            return None
        if result.status == ExecStatus.SINGLE_TUPLE:
            self.pgresult = result
            self._tx.set_pgresult(result, set_loaders=first)
            if first:
                self._make_row = self._make_row_maker()
            return result
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY):
            self._raise_for_result(result)
        # The command status is `INSERT 0 3` or, without a change, `SELECT 3`.
        if (result.command_status or b"").startswith((b"INSERT ", b"UPDATE ", b"DELETE ", b"MERGE ")):
            self.changed = result.command_tuples or 0
        while (yield from fetch(self._pgconn)):
            pass
        return None

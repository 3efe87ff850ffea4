-- Tables that SQL statements of workflows have made, and the workflow that made each: others need a grant.
CREATE TABLE statement_tables (name TEXT PRIMARY KEY, owner TEXT NOT NULL) STRICT, WITHOUT ROWID;

-- Tables that SQL statements of workflows have made, in a schema of their own beside the store's, and the workflow that
-- made each: others need a grant.
CREATE TABLE statement_tables (name text COLLATE "C" PRIMARY KEY, owner text NOT NULL);

-- Snapshots in an earlier form are dropped: since this schema the items of a map are kept in another one, and whoever
-- took the one for the other would lose results. The records are all that a run needs; a snapshot is made again when
-- there is reason to.

DELETE FROM snapshots;

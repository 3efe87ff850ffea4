-- A role that does not own these tables sees and writes only what belongs to the tenant that its transaction names:
-- SET LOCAL tidemill.tenant = 'acme'. The owner, as whom workers connect, crosses tenants. Partitions of records are
-- reached through their table, so nobody else needs rights on them.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'streams', 'records', 'snapshots', 'lanes', 'jobs', 'tenants', 'rows', 'terms', 'blobs', 'blob_pieces'
    ] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format(
            'CREATE POLICY of_tenant ON %I USING (tenant = current_setting(''tidemill.tenant'', true))', name);
    END LOOP;
END
$$;

-- A value that was sealed by the first start, and by takt rekey since. A controller
-- whose keys don't open it does not start on this database.
CREATE TABLE IF NOT EXISTS key_check (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    sealed   bytea   NOT NULL
);

-- All that rows hold sealed, by the kinds of package seal. id is what a value is
-- bound to; key names the key that sealed it, and is part of each value's head.
CREATE OR REPLACE VIEW sealed_values AS
SELECT kind, id, sealed, substr(sealed, 5, 8) AS key FROM (
    SELECT 'forge credential' AS kind, id, credential AS sealed FROM deployments WHERE credential IS NOT NULL
    UNION ALL
    SELECT 'HubSpot access token', portal_id::text, access_token FROM oauth_tokens
    UNION ALL
    SELECT 'HubSpot refresh token', portal_id::text, refresh_token FROM oauth_tokens
    UNION ALL
    SELECT 'key check', 'database', sealed FROM key_check
) v;

CREATE OR REPLACE VIEW sealed_values AS
SELECT kind, id, sealed, substr(sealed, 5, 8) AS key FROM (
    SELECT 'forge credential' AS kind, id, credential AS sealed FROM deployments WHERE credential IS NOT NULL
    UNION ALL
    SELECT 'HubSpot access token', portal_id::text, access_token FROM oauth_tokens
    UNION ALL
    SELECT 'HubSpot refresh token', portal_id::text, refresh_token FROM oauth_tokens
    UNION ALL
    SELECT 'key check', 'database', sealed FROM key_check
    UNION ALL
    SELECT 'notice secrets', id, secrets FROM notice_subscriptions
) v;
DROP TABLE IF EXISTS secret_handouts;
DROP TABLE IF EXISTS secrets;

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
DROP TRIGGER IF EXISTS notice_of_deployment ON deployments;
DROP TRIGGER IF EXISTS notice_of_worker ON workers;
DROP INDEX IF EXISTS build_labels_github;
DROP TRIGGER IF EXISTS notice_of_submit ON build_labels;
DROP TRIGGER IF EXISTS notice_of_build ON builds;
DROP FUNCTION IF EXISTS notice_of_deployment;
DROP FUNCTION IF EXISTS notice_of_worker;
DROP FUNCTION IF EXISTS notice_of_submit;
DROP FUNCTION IF EXISTS notice_of_build;
DROP FUNCTION IF EXISTS insert_notices;
DROP TABLE IF EXISTS notice_subscriptions;

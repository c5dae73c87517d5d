DROP TABLE IF EXISTS oauth_states;
DROP TABLE IF EXISTS oauth_tokens;

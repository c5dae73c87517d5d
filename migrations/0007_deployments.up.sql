-- Deployments copy one organisation's repositories into another. One controller
-- at a time works on a deployment: its owner, while the lease lasts. run counts
-- who took it over, and fences the writes of those who had it before.
CREATE TABLE IF NOT EXISTS deployments (
    id            text        PRIMARY KEY,
    -- What was asked for, as JSON: it is never searched.
    request       jsonb       NOT NULL,
    state         text        NOT NULL DEFAULT 'planning'
        CHECK (state IN ('planning', 'running', 'paused', 'done', 'cancelled', 'failed')),
    run           bigint      NOT NULL DEFAULT 0,
    owner         text,
    leased_until  timestamptz,
    -- The forge credential, sealed; gone as soon as it is not needed. NULL
    -- otherwise, and where takt's own is used.
    credential    bytea,
    -- A digest of the credential: those with the same one share a budget.
    credential_id bytea       NOT NULL,
    -- How many repositories the filters left out.
    filtered      integer     NOT NULL DEFAULT 0,
    error         text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    planned_at    timestamptz,
    finished_at   timestamptz
);

CREATE INDEX IF NOT EXISTS deployments_created ON deployments (created_at DESC, id);
CREATE INDEX IF NOT EXISTS deployments_open ON deployments (id) WHERE state IN ('planning', 'running');
CREATE INDEX IF NOT EXISTS deployments_credential ON deployments (credential_id);

CREATE TABLE IF NOT EXISTS deployment_repos (
    deployment_id  text        NOT NULL REFERENCES deployments (id) ON DELETE CASCADE,
    name           text        NOT NULL,
    target         text        NOT NULL,
    -- What the source's forge says of it, as JSON.
    source         jsonb       NOT NULL,
    step           text        NOT NULL DEFAULT 'planned'
        CHECK (step IN ('planned', 'creating', 'pushing', 'verifying', 'done', 'failed', 'skipped')),
    -- Counts the workers that took it up, and fences those before.
    run            bigint      NOT NULL DEFAULT 0,
    attempts       integer     NOT NULL DEFAULT 0,
    -- The copy, once it is certain that it is ours; NULL before.
    target_id      bigint,
    target_url     text,
    refs           integer     NOT NULL DEFAULT 0,
    error          text,
    warning        text,
    -- Skipped because the deployment was cancelled.
    cancelled      boolean     NOT NULL DEFAULT false,
    -- When a repository was made for it, for the budget of its credential.
    made_at        timestamptz,
    started_at     timestamptz,
    finished_at    timestamptz,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (deployment_id, name),
    CHECK ((step IN ('done', 'failed', 'skipped')) = (finished_at IS NOT NULL))
) WITH (fillfactor = 70);

CREATE INDEX IF NOT EXISTS deployment_repos_made ON deployment_repos (made_at) WHERE made_at IS NOT NULL;

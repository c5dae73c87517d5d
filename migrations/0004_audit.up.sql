-- What operators did. The outcome is null until it is known.
CREATE TABLE IF NOT EXISTS audit (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT now(),
    actor   text        NOT NULL,
    action  text        NOT NULL,
    target  text        NOT NULL,
    reason  text        NOT NULL,
    detail  jsonb       NOT NULL DEFAULT '{}',
    outcome text
);

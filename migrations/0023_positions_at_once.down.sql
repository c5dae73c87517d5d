DROP FUNCTION IF EXISTS queue_positions;
CREATE OR REPLACE FUNCTION queue_cost(who text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT 65536 / coalesce((SELECT greatest(weight, 1) FROM access_keys WHERE name = who), 1)
$$;

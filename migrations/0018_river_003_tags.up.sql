-- River's version 003.
ALTER TABLE river_job ALTER COLUMN tags SET DEFAULT '{}';
UPDATE river_job SET tags = '{}' WHERE tags IS NULL;
ALTER TABLE river_job ALTER COLUMN tags SET NOT NULL;
INSERT INTO river_migration (version) VALUES (3) ON CONFLICT DO NOTHING;

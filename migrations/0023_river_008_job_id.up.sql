-- River's version 008 changes nothing here: a sequence never gives a number twice.
INSERT INTO river_migration (line, version) VALUES ('main', 8) ON CONFLICT DO NOTHING;

DROP TABLE IF EXISTS river_migration;

DELETE FROM river_migration WHERE line = 'main' AND version = 8;

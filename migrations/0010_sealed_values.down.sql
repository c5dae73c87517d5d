DROP VIEW IF EXISTS sealed_values;
DROP TABLE IF EXISTS key_check;

DROP TABLE IF EXISTS build_files;

DROP TABLE IF EXISTS build_labels;

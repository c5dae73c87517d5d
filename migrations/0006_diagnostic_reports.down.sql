DROP TABLE IF EXISTS diagnostic_reports;

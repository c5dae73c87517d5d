package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// prepareNaive makes the database that the naive scripts work on, on the same
// server.
func (r *run) prepareNaive(ctx context.Context, db, naive database) error {
	for _, name := range []string{"assigned.sql", "idle.sql", "setup.sql"} {
		if _, err := os.Stat(filepath.Join(r.scripts, name)); err != nil {
			return fmt.Errorf("the naive scripts are not in %s: run from takt's source directory or give --scripts: %w", r.scripts, err)
		}
	}
	if err := db.exec(ctx, "CREATE DATABASE naive"); err != nil {
		return err
	}
	_, err := naive.run(ctx, "psql", "", "-X", "-q", "-v", fmt.Sprintf("workers=%d", connections), "-v", "pending=1000",
		"-f", filepath.Join(r.scripts, "setup.sql"))
	return err
}

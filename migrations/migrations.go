package migrations

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Up migrates the database of cfg to the newest version.
func Up(ctx context.Context, cfg *pgx.ConnConfig) error { return errors.New("not written yet") }

package migrations_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"

	"takt/migrations"
	"takt/store/storetest"
)

// functions describes what schema leaves out of River's objects.
const functions = `
SELECT coalesce(string_agg(d, E'\n' ORDER BY d), '') FROM (
	SELECT p.proname || ' ' || regexp_replace(p.prosrc, '\s+', ' ', 'g') AS d FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
	UNION ALL SELECT t.typname || ' ' || e.enumlabel || ' ' || e.enumsortorder FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid
	UNION ALL SELECT relname || ' ' || relpersistence::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname LIKE 'river%'
) x`

// ofRiver keeps the lines about River's objects.
func ofRiver(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "river") || strings.Contains(line, "CHECK") && !strings.Contains(line, "ANY (ARRAY['") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

// River's own migrator, of the version that this build links, must make what
// these files make, and must find nothing to do after them.
func TestRiversSchemaIsWhatRiverWants(t *testing.T) {
	t.Parallel()
	pool := func(migrated bool) *pgxpool.Pool {
		cfg := storetest.Config(t)
		if migrated {
			require.NoError(t, migrations.Up(t.Context(), cfg))
		}
		pc, err := pgxpool.ParseConfig(cfg.ConnString())
		require.NoError(t, err)
		p, err := pgxpool.NewWithConfig(t.Context(), pc)
		require.NoError(t, err)
		t.Cleanup(p.Close)
		return p
	}
	text := func(p *pgxpool.Pool, query string) (out string) {
		require.NoError(t, p.QueryRow(t.Context(), query).Scan(&out))
		return out
	}
	theirs, ours := pool(false), pool(true)
	migrator, err := rivermigrate.New(riverpgxv5.New(theirs), nil)
	require.NoError(t, err)
	_, err = migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	require.NoError(t, err)

	want, got := strings.Split(ofRiver(text(theirs, schema)), "\n"), text(ours, schema)
	require.NotEmpty(t, want)
	for _, line := range want {
		require.Contains(t, got, line)
	}
	var extra []string
	for line := range strings.Lines(got) {
		if line = strings.TrimSpace(line); strings.Contains(line, "river") {
			extra = append(extra, line)
		}
	}
	for _, line := range extra {
		require.Contains(t, want, line, "nothing of River's is more than River makes")
	}
	require.Equal(t, text(theirs, functions), text(ours, functions))

	migrator, err = rivermigrate.New(riverpgxv5.New(ours), nil)
	require.NoError(t, err)
	valid, err := migrator.Validate(t.Context(), nil)
	require.NoError(t, err)
	require.True(t, valid.OK, valid.Messages)
}

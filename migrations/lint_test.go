package migrations_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/migrations"
)

// released reads the checksums of the files of release 0.1.0.
func released(t *testing.T) map[string]string {
	t.Helper()
	file, err := os.Open("testdata/0.1.0.sha256")
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	sums := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		require.True(t, ok)
		sums[name] = sum
	}
	return sums
}

func TestReleasedMigrationsAreNeverEdited(t *testing.T) {
	t.Parallel()
	sums := released(t)
	require.Len(t, sums, 22)
	for name, sum := range sums {
		text, err := fs.ReadFile(migrations.Files(), name)
		require.NoError(t, err)
		is := sha256.Sum256(text)
		require.Equal(t, sum, hex.EncodeToString(is[:]), "%s is a part of release 0.1.0: add a migration instead", name)
	}
}

// The rule is in docs/architecture.md, "The schema".
func TestMigrationsTolerateTheReleaseBefore(t *testing.T) {
	t.Parallel()
	ups, err := fs.Glob(migrations.Files(), "*.up.sql")
	require.NoError(t, err)
	sums := released(t)
	for _, name := range ups {
		if sums[name] != "" {
			continue // there was no release before
		}
		text, err := fs.ReadFile(migrations.Files(), name)
		require.NoError(t, err)
		require.Empty(t, faults(string(text)), "%s: see docs/architecture.md, \"The schema\"", name)
	}
}

// A statement is tolerated if it matches one of these, in lower case and with single
// spaces; an ALTER TABLE if each of its actions matches one of the second list. What is
// not listed is refused.
var (
	tolerated = regexp.MustCompile(`^(create table if not exists |create index if not exists |create sequence if not exists |` +
		`create (or replace )?view |create or replace function |insert into .* on conflict |comment on |analyze)`)
	alteration = regexp.MustCompile(`^alter table (if exists )?(only )?[a-z_.]+ (.*)$`)
	action     = regexp.MustCompile(`^(add column if not exists .*|add constraint .* not valid|validate constraint [a-z_]+|set \(.*\)|alter (column )?[a-z_]+ (set default .*|set statistics .*))$`)
	// Either the release before can't insert a row, or the table is written anew or read
	// under a lock.
	burden = regexp.MustCompile(`\b(unique|primary key|references|check|generated)\b|\bdefault \(?(gen_random_uuid|random|clock_timestamp|nextval)\b`)
	excuse = regexp.MustCompile(`(?m)^-- contract: \S+ .*\S`)
)

// faults returns the statements of a migration that break the rule. A statement with a
// comment before it that begins with "contract:" and gives the reason is excused.
func faults(text string) (found []string) {
	for _, s := range statements(text) {
		if !tolerable(s.sql) && !excuse.MatchString(s.comment) {
			found = append(found, s.sql)
		}
	}
	return found
}

func tolerable(sql string) bool {
	parts := alteration.FindStringSubmatch(sql)
	if parts == nil {
		return tolerated.MatchString(sql)
	}
	for _, a := range split(parts[3], ',') {
		a = strings.TrimSpace(a)
		added := strings.HasPrefix(a, "add column ")
		if !action.MatchString(a) || added && (burden.MatchString(a) || strings.Contains(a, " not null") && !strings.Contains(a, " default ")) {
			return false
		}
	}
	return true
}

// statement is one of a migration, in lower case and with single spaces, and the comments
// in and before it. Its literals are empty.
type statement struct{ sql, comment string }

var (
	comment = regexp.MustCompile(`^(--|/\*)`)
	lexeme  = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\$([a-z]*)\$.*?\$[a-z]*\$|.`)
)

// statements reads a migration. Quoted names are not needed here and come out as they are.
func statements(text string) (all []statement) {
	var sql, comments strings.Builder
	flush := func() {
		if plain := strings.ToLower(strings.Join(strings.Fields(sql.String()), " ")); plain != "" {
			all = append(all, statement{plain, comments.String()})
			comments.Reset()
		}
		sql.Reset()
	}
	for _, l := range lexeme.FindAllString(text, -1) {
		switch {
		case comment.MatchString(l):
			comments.WriteString(l + "\n")
			sql.WriteByte(' ')
		case l == ";":
			flush()
		case len(l) > 1:
			sql.WriteString("''")
		default:
			sql.WriteString(l)
		}
	}
	flush()
	return all
}

// split cuts a list at the separators that are not in parentheses.
func split(list string, separator rune) (parts []string) {
	depth, from := 0, 0
	for i, r := range list {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		case separator:
			if depth == 0 {
				parts, from = append(parts, list[from:i]), i+1
			}
		}
	}
	return append(parts, list[from:])
}

func TestTheLintKnowsWhatTheReleaseBeforeDoesNotTolerate(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"CREATE TABLE IF NOT EXISTS x (id bigint PRIMARY KEY, y text NOT NULL UNIQUE REFERENCES z (id))",
		"CREATE INDEX IF NOT EXISTS x_y ON x (y) WHERE y <> ';'",
		"ALTER TABLE x ADD COLUMN IF NOT EXISTS a text, ADD COLUMN IF NOT EXISTS b numeric(3, 2) NOT NULL DEFAULT 0",
		"ALTER TABLE x ALTER COLUMN a SET DEFAULT 'drop, rename; --'; ALTER TABLE x SET (fillfactor = 50)",
		"ALTER TABLE x ADD CONSTRAINT c CHECK (a > 0) NOT VALID", "ALTER TABLE x VALIDATE CONSTRAINT c",
		"INSERT INTO settings (key, value) VALUES ('a', '1') ON CONFLICT DO NOTHING",
		"CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS $f$ SELECT 1; DROP TABLE x; $f$",
		"-- contract: since 0.3.0 no release reads it\nALTER TABLE x DROP COLUMN a",
		"/* DROP TABLE x; */ -- DROP TABLE x;\n",
	} {
		require.Empty(t, faults(good), good)
	}
	for _, bad := range []string{
		"DROP TABLE x", "DROP INDEX x_y", "DROP VIEW v", "TRUNCATE x", "DELETE FROM x", "UPDATE x SET a = 1",
		"ALTER TABLE x RENAME TO y", "alter table x\n rename column a to b", "ALTER TABLE x DROP COLUMN IF EXISTS a",
		"ALTER TABLE x ADD COLUMN IF NOT EXISTS a text, DROP b",
		"ALTER TABLE x ALTER COLUMN a TYPE bigint", "ALTER TABLE x ALTER a SET DATA TYPE bigint",
		"ALTER TABLE x ALTER COLUMN a SET NOT NULL", "ALTER TABLE x ALTER COLUMN a DROP DEFAULT", "ALTER TABLE x ALTER a DROP NOT NULL",
		"ALTER TABLE x ADD COLUMN IF NOT EXISTS a text NOT NULL", "ALTER TABLE x ADD COLUMN a text",
		"ALTER TABLE x ADD COLUMN IF NOT EXISTS a text DEFAULT 'x' NOT NULL UNIQUE",
		"ALTER TABLE x ADD COLUMN IF NOT EXISTS a bigint REFERENCES y (id)",
		"ALTER TABLE x ADD COLUMN IF NOT EXISTS a int CHECK (a > 0)",
		"ALTER TABLE x ADD COLUMN IF NOT EXISTS a int GENERATED ALWAYS AS IDENTITY",
		"ALTER TABLE x ADD COLUMN IF NOT EXISTS a uuid NOT NULL DEFAULT gen_random_uuid()",
		"ALTER TABLE x ADD CONSTRAINT c CHECK (a > 0)", "CREATE UNIQUE INDEX IF NOT EXISTS x_y ON x (y)",
		"CREATE INDEX CONCURRENTLY IF NOT EXISTS x_y ON x (y)", "ALTER TYPE t RENAME VALUE 'a' TO 'b'",
		"LOCK TABLE x", "DO $$ BEGIN EXECUTE 'DROP TABLE x'; END $$",
		"-- contract:\nDROP TABLE x", "-- contract: of the first only\nDROP TABLE x; DROP TABLE y",
		"CREATE TABLE IF NOT EXISTS x (); DROP TABLE y",
	} {
		require.Len(t, faults(bad), 1, bad)
	}
}

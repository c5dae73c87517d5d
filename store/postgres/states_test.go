package postgres_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// machines are the tables whose rows have a state, and its column.
var machines = map[string]string{
	"builds": "state", "workers": "status", "action_executions": "state", "deployment_repos": "step",
}

// edge is a transition in docs/states.md, or one that a statement makes; from is "" there.
type edge struct{ machine, from, to, by string }

// drawn reads the diagrams of docs/states.md. Their headings end with the table in brackets.
func drawn(t *testing.T) (all []edge) {
	t.Helper()
	page, err := os.ReadFile("../../docs/states.md")
	require.NoError(t, err)
	machine, arrow := "", regexp.MustCompile(`^ +(\S+) --> (\S+) : (.+)$`)
	for line := range strings.Lines(string(page)) {
		if m := regexp.MustCompile("^## .* \\(`(\\w+)`\\)").FindStringSubmatch(line); m != nil {
			machine = m[1]
		}
		if strings.Contains(line, "-->") {
			m := arrow.FindStringSubmatch(strings.TrimRight(line, "\n"))
			require.NotNil(t, m, line)
			for by := range strings.SplitSeq(m[3], ", ") {
				all = append(all, edge{machine, m[1], m[2], by})
			}
		}
	}
	return all
}

// made returns the transitions that statements make, by the literals that they assign. A state
// that is an argument is "?".
func made(t *testing.T) (all []edge) {
	t.Helper()
	update := regexp.MustCompile(`UPDATE (\w+)(?: \w+)? SET`)
	assigned := regexp.MustCompile(`(?:THEN|ELSE|^\w+ =) *('\w+'|\$\d+)`)
	for name, sql := range stringConstants(t) {
		if !strings.HasPrefix(name, "sql") {
			continue
		}
		for _, at := range update.FindAllStringSubmatchIndex(sql, -1) {
			machine := sql[at[2]:at[3]]
			for _, set := range assignments(sql[at[1]:]) {
				if !strings.HasPrefix(set, machines[machine]+" =") || machines[machine] == "" {
					continue
				}
				for _, m := range assigned.FindAllStringSubmatch(set, -1) {
					to := strings.Trim(m[1], "'")
					if strings.HasPrefix(to, "$") {
						to = "?"
					}
					all = append(all, edge{machine, "", to, snake(name[len("sql"):])})
				}
			}
		}
	}
	return all
}

// assignments splits what follows SET.
func assignments(sql string) (all []string) {
	depth, begin := 0, 0
	end := regexp.MustCompile(`^\s(WHERE|FROM|RETURNING)\b`)
	for i, r := range sql {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case depth == 0 && r == ',':
			all, begin = append(all, strings.TrimSpace(sql[begin:i])), i+1
		}
		if depth < 0 || depth == 0 && end.MatchString(sql[i:]) {
			return append(all, strings.TrimSpace(sql[begin:i]))
		}
	}
	return append(all, strings.TrimSpace(sql[begin:]))
}

// Whoever changes a statement so that it makes another transition has to draw it.
func TestTheStatesAreDrawn(t *testing.T) {
	t.Parallel()
	steps := stepsOfRepositories(t)
	var inCode, inPage []edge
	for _, e := range made(t) {
		if e.to != "?" {
			inCode = append(inCode, e)
			continue
		}
		require.Equal(t, "repo_step", e.by, "whose arguments are in code")
		for _, to := range steps {
			inCode = append(inCode, edge{e.machine, "", to, e.by})
		}
	}
	constants := stringConstants(t)
	for _, e := range drawn(t) {
		require.NotEmpty(t, machines[e.machine], "%v", e)
		if e.from != "[*]" {
			inPage = append(inPage, edge{e.machine, "", e.to, e.by})
			continue
		}
		require.True(t, slices.ContainsFunc(slices.Collect(maps.Values(constants)), func(sql string) bool {
			return strings.HasPrefix(sql, "/* "+e.by+" */") && strings.Contains(sql, "INSERT INTO "+e.machine+" ")
		}), "%s inserts no row of %s", e.by, e.machine)
	}
	require.Equal(t, sorted(inCode), sorted(inPage), "docs/states.md has other transitions than the statements of store/postgres")
}

// stepsOfRepositories returns the steps that the code passes to repo_step.
func stepsOfRepositories(t *testing.T) (steps []string) {
	t.Helper()
	source, err := os.ReadFile("../../actors/deployment/repo_worker.go")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`RepoChange\{\s*Step: store\.Repo(\w+)`).FindAllStringSubmatch(string(source), -1) {
		steps = append(steps, strings.ToLower(m[1]))
	}
	require.NotEmpty(t, steps)
	return steps
}

func sorted(edges []edge) (all []string) {
	for _, e := range edges {
		all = append(all, e.machine+" "+e.from+" to "+e.to+" by "+e.by)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// requireDrawn makes the database note each transition of builds and workers, and the test fails
// in the end if one is not in docs/states.md.
func (b *fixture) requireDrawn() (check func()) {
	b.t.Helper()
	must(b.Pool.Exec(b.t.Context(), `
		CREATE TABLE transitions (machine text, was text, became text);
		CREATE FUNCTION note_build() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO transitions VALUES ('builds', old.state, new.state); RETURN NULL; END $$;
		CREATE FUNCTION note_worker() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO transitions VALUES ('workers', old.status, new.status); RETURN NULL; END $$;
		CREATE TRIGGER note AFTER UPDATE ON builds FOR EACH ROW WHEN (old.state <> new.state) EXECUTE FUNCTION note_build();
		CREATE TRIGGER note AFTER UPDATE ON workers FOR EACH ROW WHEN (old.status <> new.status) EXECUTE FUNCTION note_worker()`))(b.t)
	return func() {
		rows, err := b.Pool.Query(b.t.Context(), `SELECT DISTINCT machine, was, became FROM transitions`)
		require.NoError(b.t, err)
		var all []string
		for _, e := range drawn(b.t) {
			all = append(all, e.machine+" "+e.from+" "+e.to)
		}
		seen, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e edge, err error) { return e, row.Scan(&e.machine, &e.from, &e.to) })
		require.NoError(b.t, err)
		require.Greater(b.t, len(seen), 8)
		for _, e := range seen {
			require.Contains(b.t, all, e.machine+" "+e.from+" "+e.to, "docs/states.md doesn't have it")
		}
	}
}

package deployment

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/deployment/forge"
	"takt/store"
)

func TestRequestsAreChecked(t *testing.T) {
	t.Parallel()
	good := store.DeploymentRequest{SourceOrg: "a", TargetOrg: "b"}
	r, err := normalize(good, 8)
	require.NoError(t, err)
	require.Equal(t, 8, r.Concurrency)
	require.Equal(t, "{name}", r.NameTemplate)
	require.Equal(t, "keep", r.Visibility)
	for name, spoil := range map[string]func(*store.DeploymentRequest){
		"no source":             func(r *store.DeploymentRequest) { r.SourceOrg = "" },
		"a path as source":      func(r *store.DeploymentRequest) { r.SourceOrg = "../x" },
		"no target":             func(r *store.DeploymentRequest) { r.TargetOrg = "-x" },
		"the same":              func(r *store.DeploymentRequest) { r.TargetOrg = "A" },
		"too much at once":      func(r *store.DeploymentRequest) { r.Concurrency = 33 },
		"less than nothing":     func(r *store.DeploymentRequest) { r.Concurrency = -1 },
		"a visibility":          func(r *store.DeploymentRequest) { r.Visibility = "secret" },
		"another visibility":    func(r *store.DeploymentRequest) { r.OnlyVisibility = "keep" },
		"a rule":                func(r *store.DeploymentRequest) { r.Archived = "yes" },
		"another rule":          func(r *store.DeploymentRequest) { r.Forks = "no" },
		"a template without":    func(r *store.DeploymentRequest) { r.NameTemplate = "x" },
		"a template with paths": func(r *store.DeploymentRequest) { r.NameTemplate = "a/{name}" },
		"an unknown word":       func(r *store.DeploymentRequest) { r.NameTemplate = "{name}-{x}" },
		"a broken pattern":      func(r *store.DeploymentRequest) { r.Include = []string{"[a"} },
		"an empty pattern":      func(r *store.DeploymentRequest) { r.Exclude = []string{""} },
		"too many patterns":     func(r *store.DeploymentRequest) { r.Exclude = make([]string, 101) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := good
			spoil(&r)
			_, err := normalize(r, 8)
			require.Equal(t, store.InvalidArgument, store.CodeOf(err))
		})
	}
	for _, r := range []store.DeploymentRequest{{Include: []string{"a\x00"}}, {Exclude: []string{"\x00"}}} {
		r.SourceOrg, r.TargetOrg = "a", "b"
		_, err := normalize(r, 8)
		require.Equal(t, store.Unprocessable, store.CodeOf(err), "the database would refuse it")
	}
}

func TestPlanFiltersAndNames(t *testing.T) {
	t.Parallel()
	source := []forge.Repo{
		{Name: "web", Visibility: "public"},
		{Name: "API-one", Visibility: "private"},
		{Name: "api-two", Visibility: "private", Archived: true},
		{Name: "api-fork", Visibility: "private", Fork: true},
		{Name: strings.Repeat("n", 99), Visibility: "private"},
	}
	r, err := normalize(store.DeploymentRequest{SourceOrg: "src", TargetOrg: "dst"}, 8)
	require.NoError(t, err)
	of := func(edit func(*store.DeploymentRequest), taken ...forge.Repo) (names []string, rows []store.DeploymentRepo) {
		t.Helper()
		r := r
		edit(&r)
		rows, filtered := plan(r, source, taken)
		for _, row := range rows {
			names = append(names, row.Name)
		}
		require.Equal(t, len(source), len(rows)+filtered)
		return names, rows
	}
	names, _ := of(func(r *store.DeploymentRequest) { r.Include, r.Exclude = []string{"api-*"}, []string{"*FORK"} })
	require.Equal(t, []string{"API-one", "api-two"}, names)
	names, _ = of(func(r *store.DeploymentRequest) { r.OnlyVisibility = "public" })
	require.Equal(t, []string{"web"}, names)
	names, _ = of(func(r *store.DeploymentRequest) { r.Archived = store.TakeOnly })
	require.Equal(t, []string{"api-two"}, names)
	names, _ = of(func(r *store.DeploymentRequest) { r.Archived, r.Forks = store.TakeNone, store.TakeNone })
	require.Len(t, names, 3)

	_, rows := of(func(r *store.DeploymentRequest) {
		r.NameTemplate, r.Visibility, r.AllowPublish = "{owner}-{name}", "internal", true
	}, forge.Repo{Name: "SRC-Web"})
	for _, row := range rows {
		require.Equal(t, "internal", row.Source.Visibility)
		require.Equal(t, "src-"+row.Name, row.Target)
		require.Equal(t, row.Name == "web", row.Source.Taken)
		require.Equal(t, len(row.Name) == 99, row.Source.Refused != "", "its name gets too long")
	}
	rows, _ = plan(r, []forge.Repo{{Name: "a"}, {Name: "A"}}, nil)
	require.Empty(t, rows[0].Source.Refused)
	require.Contains(t, rows[1].Source.Refused, "the same name as that of A")
}

func TestCredentialsAreToldApart(t *testing.T) {
	t.Parallel()
	require.Equal(t, credentialID("token"), credentialID(strings.Clone("token")))
	require.NotEqual(t, credentialID("a"), credentialID("b"))
}

func TestPaceAndEstimate(t *testing.T) {
	t.Parallel()
	p := store.DeploymentProgress{Steps: map[store.RepoStep]int{store.RepoDone: 30, store.RepoPlanned: 60}, Recent: 30, Window: time.Minute}
	require.InDelta(t, 30, p.Rate(), 0.01)
	require.Equal(t, 2*time.Minute, p.Remaining())
	require.Zero(t, store.DeploymentProgress{}.Remaining())
	limits := []forge.Limit{{N: 80, Per: time.Minute}, {N: 500, Per: time.Hour}}
	require.Equal(t, store.DeploymentEstimate{Calls: 2, Took: time.Second}, estimate(1, 8, limits, time.Second))
	require.Equal(t, 2*time.Hour, estimate(1200, 8, limits, time.Second).Took)
	require.Zero(t, estimate(0, 8, limits, time.Second).Took)
}

func TestCopiesAreNotSeenByMoreThanTheirSourceUnasked(t *testing.T) {
	t.Parallel()
	source := []forge.Repo{{Name: "a", Visibility: "private"}, {Name: "b", Visibility: "internal"}, {Name: "c", Visibility: "public"}, {Name: "d", Visibility: "new kind"}}
	for wish, want := range map[string]string{"keep": "", "private": "", "internal": "a d", "public": "a b d"} {
		for _, asked := range []bool{false, true} {
			r, err := normalize(store.DeploymentRequest{SourceOrg: "a", TargetOrg: "b", Visibility: wish, AllowPublish: asked}, 1)
			require.NoError(t, err)
			rows, _ := plan(r, source, nil)
			var refused []string
			for _, row := range rows {
				if row.Source.Refused != "" {
					refused = append(refused, row.Name)
					require.Contains(t, row.Source.Refused, "allow_publish")
				}
			}
			if asked {
				want = ""
			}
			require.Equal(t, want, strings.Join(refused, " "), "%s, asked for: %t", wish, asked)
		}
	}
}

package actors

import (
	"context"
	"fmt"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/database"
	"takt/actors/otp"
	"takt/actors/throttle"
	"takt/store/postgres"
)

// outline renders a child as lines of depth, id, strategy with its budget, and time
// to stop.
func outline(c otp.ChildSpec, depth int) []string {
	line := strings.Repeat("  ", depth) + c.ID
	if c.Shutdown != 0 {
		line += fmt.Sprintf(" (%s)", short(c.Shutdown))
	}
	if c.Supervisor == nil {
		return []string{line}
	}
	spec := c.Supervisor()
	if spec.Strategy == otp.Dynamic {
		return []string{line + " dynamic"}
	}
	lines := []string{fmt.Sprintf("%s %s, %d in %s", line, spec.Strategy, spec.Intensity, short(spec.Period))}
	for _, child := range spec.Children {
		lines = append(lines, outline(child, depth+1)...)
	}
	return lines
}

func short(d time.Duration) string { return strings.ReplaceAll(d.String(), "m0s", "m") }

// drawn reads the same lines from the drawing in the package comment.
func drawn(t *testing.T) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	require.NoError(t, err)
	row := regexp.MustCompile(`^\t([│├└─ ]*)(\w+) +(?:(\w+_for_\w+, \d+ in \w+|dynamic):?)?.*?(\(\d+m?s\))?\n$`)
	var lines []string
	for line := range strings.Lines(f.Doc.Text()) {
		m := row.FindStringSubmatch(line)
		if m == nil {
			require.False(t, strings.HasPrefix(line, "\t"), line)
			continue
		}
		out := strings.Repeat("  ", utf8.RuneCountInString(m[1])/4) + m[2]
		for _, part := range []string{m[4], m[3]} {
			if part != "" {
				out += " " + part
			}
		}
		lines = append(lines, out)
	}
	return lines
}

// allServices returns what a tree needs to have all its children.
func allServices(t *testing.T) Deps {
	t.Helper()
	th, err := postgres.NewThrottle(postgres.New())
	require.NoError(t, err)
	return Deps{Logger: zerolog.Nop(), Builds: &Builds{}, Throttle: &throttle.Deps{Store: th}, Deployments: &Deployments{}}
}

func TestDrawingAndTreeAreEqual(t *testing.T) {
	t.Parallel()
	tree := New(Config{Embedded: &database.PostgresConfig{DataDir: t.TempDir()}}, allServices(t))
	require.Equal(t, drawn(t), outline(otp.ChildSpec{ID: root, Supervisor: tree.spec}, 0))
}

func TestAServiceThatIsLeftOutHasNoProcesses(t *testing.T) {
	t.Parallel()
	all := outline(otp.ChildSpec{ID: root, Supervisor: New(Config{}, allServices(t)).spec}, 0)
	for name, out := range map[string]struct {
		edit func(*Deps)
		gone []string
	}{
		"builds":      {func(d *Deps) { d.Builds = nil }, []string{"    queue_manager (6s)", "    heartbeat_monitor"}},
		"throttle":    {func(d *Deps) { d.Throttle = nil }, append([]string{"  jobs (8s)"}, branch(all, "  throttle")...)},
		"deployments": {func(d *Deps) { d.Deployments = nil }, branch(all, "  deployments")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deps := allServices(t)
			out.edit(&deps)
			tree := New(Config{}, deps)
			left := outline(otp.ChildSpec{ID: root, Supervisor: tree.spec}, 0)
			require.Equal(t, slices.DeleteFunc(slices.Clone(all), func(line string) bool { return slices.Contains(out.gone, line) }), left)
			require.Len(t, left, len(all)-len(out.gone))
			_, err := tree.Telemetry.Gatherer().Gather()
			require.NoError(t, err)
		})
	}
}

// branch returns the line that begins with prefix and those below it.
func branch(lines []string, prefix string) []string {
	from := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, prefix) })
	to := from + 1
	for strings.HasPrefix(lines[to], "   ") {
		to++
	}
	return lines[from:to]
}

func TestNoPostgresWithAnExternalDatabase(t *testing.T) {
	t.Parallel()
	source, err := database.URL("postgres://nobody@127.0.0.1:1/nothing")
	require.NoError(t, err)
	tree := New(Config{Database: source}, allServices(t))
	lines := outline(otp.ChildSpec{ID: root, Supervisor: tree.spec}, 0)
	require.Equal(t, []string{"  database rest_for_one, 3 in 1m", "    pool (10s)", "    listener", "  pubsub"}, lines[2:6])
}

// The root answers nobody while it starts or stops a child, for example a database that
// recovers. That is no hang, unless it takes longer than anything is allowed to.
func TestRespondsTellsABusyRootFromAStuckOne(t *testing.T) {
	t.Parallel()
	tree := New(Config{Embedded: &database.PostgresConfig{DataDir: t.TempDir()}}, allServices(t))
	defer tree.Stop(context.WithoutCancel(t.Context()))
	held := make(chan chan struct{})
	go func() { held <- nil }() // the first start does not wait
	slow := otp.ChildSpec{ID: "slow", Server: func() otp.Server { return slowInit{held: held} }}
	top, err := tree.sys.StartRoot(t.Context(), root, otp.SupSpec{Children: []otp.ChildSpec{slow}})
	require.NoError(t, err)
	responds := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return tree.Responds(ctx)
	}
	require.True(t, responds())

	started := make(chan error, 1)
	go func() { _, err := otp.RestartRunning(t.Context(), top, "slow"); started <- err }()
	goOn := make(chan struct{})
	held <- goOn
	require.True(t, responds(), "it restarts a child")
	before := time.Now().Add(-busyLimit)
	tree.responded.Store(&before)
	require.False(t, responds(), "for too long")
	close(goOn)
	require.NoError(t, <-started)
	require.True(t, responds())

	slow.ID = "other"
	go func() { _, err := otp.StartChild(t.Context(), top, slow); started <- err }()
	goOn = make(chan struct{})
	held <- goOn
	require.False(t, responds(), "none of its children explains why it does not answer")
	close(goOn)
	require.NoError(t, <-started)
	require.True(t, responds())
}

// slowInit is a process whose start takes until the channel that it receives is closed.
type slowInit struct {
	otp.Base
	held chan chan struct{}
}

func (s slowInit) Init(*otp.Ctx) error {
	if wait := <-s.held; wait != nil {
		<-wait
	}
	return nil
}

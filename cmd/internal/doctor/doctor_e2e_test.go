package doctor

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store/storetest/needs"
)

// TestDoctorBeforeTheFirstStartAndAfter uses the settings of takt serve, once before it
// ran, and once while it runs behind its public URL.
func TestDoctorBeforeTheFirstStartAndAfter(t *testing.T) {
	t.Parallel()
	needs.Files(t, 4096)
	s := newSite(t)
	dir := filepath.Join(s.Dir, "takt")
	look := func(settings ...string) []diagnosis {
		p, err := s.Launch("doctor", append(settings, "TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_MAX_PARKED=10"), "doctor", "--json", "--poll-wait", "1s")
		require.NoError(t, err)
		<-p.Done()
		text, _, _ := strings.Cut(p.Output(), "takt: ")
		all := diagnoses(t, text)
		want := 0 // the machine of the test may have a slow disk
		if slices.ContainsFunc(all, func(g diagnosis) bool { return g.Result == resultFailed }) {
			want = 1
		}
		require.Equal(t, want, p.ExitCode())
		return all
	}
	all := look("TAKT_PUBLIC_URL=http://127.0.0.1:1")
	for _, check := range []string{"settings", "data directory", "limits", "address", "database", "public URL"} {
		requireWell(t, all, check)
	}
	require.NoDirExists(t, dir, "nothing was made")
	c := controller(t, s, "TAKT_MAX_PARKED=10")
	all = look("TAKT_PUBLIC_URL=" + c.URL)
	for _, check := range []string{"data directory", "database", "keys", "controller", "attention", "streams", "long polls"} {
		requireWell(t, all, check)
	}
	requireFound(t, look("TAKT_PUBLIC_URL=http://127.0.0.1:1"), "controller", "does not answer")
}

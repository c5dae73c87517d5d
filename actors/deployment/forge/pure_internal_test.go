package forge

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// However calls come and however long their answers take, no window at the forge
// has more than its limit, and nobody waits without need.
func TestWindowsKeepToAllLimits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limits := []Limit{
			{N: rapid.IntRange(1, 10).Draw(t, "n"), Per: time.Minute},
			{N: rapid.IntRange(1, 40).Draw(t, "m"), Per: time.Hour},
		}
		w := window{limits: limits}
		now := time.Unix(1_000_000, 0)
		var arrived []time.Time
		open := map[*use]bool{}
		for range rapid.IntRange(1, 200).Draw(t, "moves") {
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "pause")) * time.Second)
			for u := range open {
				if rapid.Bool().Draw(t, "answer") {
					u.answered = now
					delete(open, u)
				}
			}
			u, next := w.begin(now)
			if u == nil {
				require.True(t, len(open) > 0 || next.After(now), "somebody or the clock helps")
				if len(open) == 0 {
					now = next
					u, _ = w.begin(now)
					require.NotNil(t, u, "nobody waits without need")
				}
			}
			if u != nil {
				open[u] = true
				arrived = append(arrived, now) // at the earliest; the latest is its answer
			}
		}
		for _, l := range limits {
			for i := range arrived {
				if i+l.N < len(arrived) {
					require.GreaterOrEqual(t, arrived[i+l.N].Sub(arrived[i]), l.Per)
				}
			}
		}
	})
}

func TestLimitsAreRecognized(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	for name, c := range map[string]struct {
		status int
		header map[string]string
		text   string
		ok     bool
		until  time.Time
	}{
		"forbidden":            {403, nil, "no", false, time.Time{}},
		"secondary":            {403, nil, "You have exceeded a Secondary Rate Limit", true, time.Time{}},
		"too many":             {429, nil, "", true, time.Time{}},
		"seconds":              {429, map[string]string{"Retry-After": "30"}, "", true, now.Add(30 * time.Second)},
		"a date":               {403, map[string]string{"Retry-After": now.Add(time.Minute).UTC().Format(http.TimeFormat)}, "", true, now.Add(time.Minute)},
		"an absurd time":       {429, map[string]string{"Retry-After": "99999999999"}, "", true, now.Add(longestPause)},
		"no time":              {429, map[string]string{"Retry-After": "soon"}, "", true, time.Time{}},
		"primary":              {403, map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1000060"}, "", true, now.Add(61 * time.Second)},
		"primary without time": {403, map[string]string{"X-Ratelimit-Remaining": "0"}, "", true, time.Time{}},
		"not found":            {404, map[string]string{"X-Ratelimit-Remaining": "0"}, "", false, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := http.Header{}
			for k, v := range c.header {
				h.Set(k, v)
			}
			until, ok := limit(c.status, h, c.text, now)
			require.Equal(t, c.ok, ok)
			require.True(t, c.until.Equal(until), until)
		})
	}
}

// packets are lines as git's protocol has them; "" is a flush.
func packets(lines ...string) (s string) {
	for _, l := range lines {
		if s += "0000"; l != "" {
			s = fmt.Sprintf("%s%04x%s", s[:len(s)-4], len(l)+4, l)
		}
	}
	return s
}

func FuzzRefs(f *testing.F) {
	id := strings.Repeat("a", 40)
	for _, s := range []string{"", id + " refs/heads/main\n", id + " refs/tags/v1^{}\n", "x\ty\n", id, id + " refs/pull/1/head\n"} {
		f.Add(s)
		f.Add(packets("# service=git-upload-pack\n", "", s, ""))
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, read := range []func(string) (Refs, error){parseRefs, func(s string) (Refs, error) { return readRefs(strings.NewReader(s)) }} {
			refs, err := read(s)
			if err != nil {
				continue
			}
			for name, id := range refs {
				require.True(t, isCopied(name))
				require.GreaterOrEqual(t, len(id), 40)
			}
			require.Empty(t, refs.Diff(refs))
		}
	})
}

func TestAListOfRefsIsWholeOrAnError(t *testing.T) {
	t.Parallel()
	id, service := strings.Repeat("a", 40), "# service=git-upload-pack\n"
	all := packets(service, "", id+" HEAD\x00multi_ack symref=HEAD:refs/heads/main\n", id+" refs/heads/main\n", id+" refs/tags/v1^{}\n", "")
	refs, err := readRefs(strings.NewReader(all))
	require.NoError(t, err)
	require.Equal(t, Refs{"refs/heads/main": id}, refs)
	for n := range len(all) {
		_, err := readRefs(strings.NewReader(all[:n]))
		require.Error(t, err, all[:n])
	}
	for _, wrong := range []string{"0003", "zzzz", packets(service, "", "ERR no\n", ""), packets(service, "", "unpeeled", "")} {
		_, err := readRefs(strings.NewReader(wrong))
		require.Error(t, err, wrong)
	}
	refs, err = readRefs(strings.NewReader(packets(service, "", strings.Repeat("0", 40)+" capabilities^{}\x00x\n", "")))
	require.NoError(t, err)
	require.Empty(t, refs, "of an empty repository")
}

func TestDiffNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	a := Refs{"refs/heads/main": "1", "refs/heads/x": "1", "refs/tags/t": "1"}
	require.Equal(t, "refs/heads/main is another, refs/heads/x is missing, refs/tags/y is too much", a.Diff(Refs{"refs/heads/main": "2", "refs/tags/t": "1", "refs/tags/y": "1"}))
	require.Empty(t, a.Diff(a))
	require.Contains(t, a.Diff(Refs{}), "missing")
	require.Equal(t, "main", a.Default("main"))
	require.Equal(t, "main", a.Default("gone"))
	require.Empty(t, Refs{"refs/tags/t": "1"}.Default("main"))
}

func TestBaseURLs(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"https://api.github.com", "https://ghe.example/api/v3", "http://127.0.0.1:8080/"} {
		u, err := ParseBaseURL(good)
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(u.Path, "/"))
	}
	for _, bad := range []string{"", "ftp://x/", "https://", "https://u:p@x/", "https://x/?a=b", "://"} {
		_, err := ParseBaseURL(bad)
		require.Error(t, err, bad)
	}
}

func TestMarkIsPartOfTheDescription(t *testing.T) {
	t.Parallel()
	for _, d := range []string{"", "short", strings.Repeat("ü", 400)} {
		m := marked(d, "abc/12")
		require.LessOrEqual(t, len([]rune(m)), maxDescription)
		require.True(t, isMarked(m, "abc/12"))
		require.False(t, isMarked(m, "abc/1"))
		require.False(t, isMarked(d, "abc/12"))
	}
}

package dashboard

import (
	"context"
	"html/template"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"

	"takt/http/edge"
	"takt/store"
)

func TestLogLinesAreShownWithTheirColoursOnly(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"plain":                      "plain",
		"\x1b[32mgreen\x1b[0m light": `<span class="a32">green</span> light`,
		"\x1b[1;31mboth\x1b[m":       `<span class="a1 a31">both</span>`,
		"a\x1b[38;5;196mb":           "ab",
		"<b>\x1b[31m<i>":             `&lt;b&gt;<span class="a31">&lt;i&gt;</span>`,
		"\x1b]0;a title\x07text":     "text",
		"\x1b]8;;javascript:x\x1b\\link\x1b]8;;\x1b\\": "link",
		"\x1b[2J\x1b[Hcleared":                         "cleared",
		"cut \x1b[":                                    "cut ",
		"cut \x1b":                                     "cut ",
		"\u202Eabc":                                    "‹U+202E›abc",
		"a\tb\x00c":                                    "a\tb␀c",
	} {
		require.Equal(t, template.HTML(want), ansi(line), "%q", line)
	}
	require.Less(t, len(ansi(strings.Repeat("x", 100_000))), maxLine+10)
}

func FuzzANSI(f *testing.F) {
	for _, s := range []string{"\x1b[1;31mx\x1b[0m", "<script>", "\x1b]0;", "\x1b[", "a\x1bPb\x1b\\c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		out := string(ansi(line))
		require.NotContains(t, out, "\x1b")
		for _, tag := range strings.Split(out, "<")[1:] {
			require.True(t, strings.HasPrefix(tag, `span class="a`) || strings.HasPrefix(tag, "/span>"), out)
		}
	})
}

func TestTextOfStrangersStandsWhereItIs(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a‹U+202E›b", plain("a\u202Eb"))
	require.Equal(t, "␛[31m ␡", plain("\x1b[31m\n\x7f"))
	require.Equal(t, "äöü…", clip(3, "äöüß"))
}

func TestOwnPathsOnly(t *testing.T) {
	t.Parallel()
	for path, ok := range map[string]bool{
		"/fleet": true, "/builds?state=failed": true, "//elsewhere.example": false, "///elsewhere.example": false, "https://elsewhere.example/": false, "/\\elsewhere.example": false,
		"elsewhere": false, "": false, "/login?next=/x": false, "/a\nb": false, "javascript:alert(1)": false,
	} {
		require.Equal(t, ok, ownPath(path, "-") == path, path)
	}
}

func TestSessionsAreOursAndEnd(t *testing.T) {
	t.Parallel()
	cfg, keys := Config{Secrets: [][]byte{[]byte("old")}}, edge.Config{APIKey: "api-key-of-the-test", AdminKey: "admin-key-of-the-test"}
	s := newSessions(cfg, keys, edge.NewKeys(keys))
	now := time.Now()
	value := s.issue(session{Role: roleAPI, Name: "tester", ID: "x", Expires: now.Add(time.Hour).Unix()})
	require.Equal(t, "tester", s.read(value, now).Name)
	require.Nil(t, s.read(value, now.Add(2*time.Hour)), "over")
	require.Nil(t, s.read(value+"x", now))
	require.Nil(t, s.read("x"+value, now))
	require.Nil(t, s.read("", now))
	of := func(change func(*Config, *edge.Config)) *session {
		cfg, keys := cfg, keys
		change(&cfg, &keys)
		return newSessions(cfg, keys, edge.NewKeys(keys)).read(value, now)
	}
	require.NotNil(t, of(func(*Config, *edge.Config) {}), "on another controller")
	require.Nil(t, of(func(_ *Config, k *edge.Config) { k.AdminKey = "another-admin-key" }), "a changed key ends sessions")
	require.Nil(t, of(func(_ *Config, k *edge.Config) { k.APIKey = "another-api-key" }))
	require.NotNil(t, of(func(c *Config, _ *edge.Config) { c.Secrets = [][]byte{[]byte("new"), []byte("old")} }), "a change of the encryption key ends none")
	require.Nil(t, of(func(c *Config, _ *edge.Config) { c.Secrets = [][]byte{[]byte("new")} }), "who knows both keys makes no session without the encryption key")
}

func TestWhyABuildWaits(t *testing.T) {
	t.Parallel()
	usual := store.Durations{Count: 10, Quarter: time.Minute, Median: 2 * time.Minute, Ninth: 4 * time.Minute}
	fleet := func(known, able, draining, slots, held int) platformQueue {
		return platformQueue{FleetSummary: store.FleetSummary{Platform: "ios", Known: known, Able: able, Draining: draining, Slots: slots, Held: held}, Pending: 9, Usual: usual}
	}
	quarantined := fleet(3, 0, 0, 0, 0)
	quarantined.Quarantined = 3
	build := store.PendingBuild{Platform: "ios", Number: 5}
	for name, c := range map[string]struct {
		fleet platformQueue
		want  why
	}{
		"nobody":          {fleet(0, 0, 0, 0, 0), why{"worker", "There is no worker for ios.", ""}},
		"all offline":     {fleet(3, 0, 0, 0, 0), why{"worker", "No worker for ios is online (3 known).", ""}},
		"all draining":    {fleet(3, 0, 2, 0, 0), why{"paused", "All workers for ios that are online get no builds: 2 draining, 0 quarantined, 0 critical.", ""}},
		"all quarantined": {quarantined, why{"paused", "All workers for ios that are online get no builds: 0 draining, 3 quarantined, 0 critical.", ""}},
		"a slot free":     {fleet(3, 3, 0, 6, 1), why{"next", "A slot is free: the next poll of a worker gets it.", "now"}},
		"all slots busy":  {fleet(2, 2, 0, 2, 2), why{"busy", "Every slot is busy (2 slots, 2 workers); it is number 5 of 9 for ios.", "1 min to 12 min"}},
	} {
		require.Equal(t, c.want, whyWaiting(build, c.fleet), name)
	}
}

func TestHistoryIsASecondAndAMinuteFine(t *testing.T) {
	t.Parallel()
	h := NewHistory(nil)
	begin := time.Unix(1_800_000_000, 0) // a whole minute
	for i := range 180 {
		var v [figCount]float32
		v[figRunning], v[figArrived] = float32(i/60), 2
		v[figBalance] = float32(math.NaN())
		h.mu.Lock()
		h.add(begin.Add(time.Duration(i)*time.Second), v)
		h.mu.Unlock()
	}
	now := begin.Add(3*time.Minute - time.Second)
	require.Equal(t, []float32{0, 1, 2}, h.past(figRunning, 3, now))
	require.Equal(t, []float32{120, 120, 120}, h.past(figArrived, 3, now), "what happened is added up")
	require.True(t, math.IsNaN(float64(h.past(figBalance, 1, now)[0])))
	require.True(t, math.IsNaN(float64(h.past(figRunning, 60, now)[0])), "before it was looked")
	recent := h.recent(figArrived, now.Add(time.Second))
	require.Len(t, recent, 60)
	require.InDelta(t, 20, recent[59], 0)
}

// pulses is a Store in which one build arrives and starts between any two pulses.
type pulses struct {
	Store
	n    int
	away bool
}

func (p *pulses) Pulse(context.Context, time.Time) (store.Pulse, error) {
	if p.n++; p.away {
		return store.Pulse{}, store.NewError(store.Unavailable, "away")
	}
	return store.Pulse{At: time.Unix(int64(p.n), 0), PendingIOS: p.n, Submitted: int64(p.n), Started: 1, Waited: 3 * time.Second}, nil
}

func TestPlotsReadTheDatabaseSeldomAndLoseNothing(t *testing.T) {
	t.Parallel()
	db := &pulses{}
	h := NewHistory(nil)
	h.Observe(db, nil)
	minute := time.Unix(1_800_000_000, 0)
	for i := range 60 {
		h.take(t.Context(), minute.Add(time.Duration(i)*time.Second))
	}
	now := minute.Add(59 * time.Second)
	require.Equal(t, 6, db.n)
	require.Equal(t, []float32{5}, h.past(figArrived, 1, now), "the first pulse has no predecessor")
	require.Equal(t, []float32{3}, h.past(figWaited, 1, now))
	require.Equal(t, []float32{6}, h.past(figPendingIOS, 1, now), "the newest one")

	h.read = time.Time{} // a page reads the figures that it shows
	pending, err := h.pending(t.Context())
	require.NoError(t, err)
	require.Equal(t, 7, pending[store.IOS])
	db.away, h.read = true, time.Time{}
	_, err = h.pending(t.Context())
	require.Error(t, err)
	h.take(t.Context(), minute.Add(60*time.Second))
	require.True(t, math.IsNaN(float64(h.past(figRunning, 1, minute.Add(60*time.Second))[0])), "unknown while it is away")
	db.away = false
	h.take(t.Context(), minute.Add(61*time.Second))
	require.Equal(t, []float32{4}, h.past(figArrived, 1, minute.Add(61*time.Second)), "also what the page found, and what arrived during the outage")
}

func TestMachinesAreRememberedWithinBounds(t *testing.T) {
	t.Parallel()
	h := NewHistory(nil)
	begin := time.Unix(1_800_000_000, 0)
	cpu := 50.0
	for i := range 2 * maxMachinePoints {
		h.machine("w", store.Telemetry{CPUPercent: &cpu}, begin.Add(time.Duration(i)*time.Second))
	}
	points := h.machineBetween("w", begin, begin.Add(time.Hour))
	require.Len(t, points, maxMachinePoints)
	require.Equal(t, maxMachinePoints, h.points)
	h.points = maxPoints // as if others filled it
	h.machine("new", store.Telemetry{}, begin.Add(time.Second))
	require.Empty(t, h.machines["new"], "no room, and nobody is old")
	h.machine("new", store.Telemetry{}, begin.Add(3*time.Hour))
	require.Len(t, h.machines["new"], 1, "who said nothing for an hour makes room")
}

func TestPlotHasATableAndNoHole(t *testing.T) {
	t.Parallel()
	nan := float32(math.NaN())
	out := string(plot{ID: "p", Title: "load <b>", Unit: "x", Span: time.Hour, Lines: []line{{"a<", []float32{1, nan, 3, 4}}}}.HTML())
	require.Contains(t, out, "load &lt;b&gt;")
	require.Contains(t, out, "<div class=\"sr\"><table><caption>")
	require.NotContains(t, out, "NaN")
	require.Equal(t, 2, strings.Count(out, "M"), "a gap is a gap")
	require.NotContains(t, out, "style=", "the policy allows none")
}

func TestPlotShowsTheTimeThatIsKnown(t *testing.T) {
	t.Parallel()
	values := make([]float32, 24*60)
	for i := range values {
		values[i] = float32(math.NaN())
	}
	seen := func(from int) (time.Duration, []float32) {
		for i := from; i < len(values); i++ {
			values[i] = float32(i)
		}
		p := plot{Span: 24 * time.Hour, Lines: []line{{"seen", values}}}.known()
		return p.Span, p.Lines[0].Values
	}
	span, shown := seen(len(values) - 5)
	require.Equal(t, 24*time.Hour/64, span)
	require.Len(t, shown, 23)
	require.InDelta(t, len(values)-1, shown[len(shown)-1], 0)
	span, _ = seen(len(values) / 2)
	require.Equal(t, 12*time.Hour, span)
	span, shown = seen(0)
	require.Equal(t, 24*time.Hour, span)
	require.InDelta(t, 2, thin(shown)[0], 0, "the mean of 0 to 4")
	require.Len(t, thin(shown), 24*60/5)
}

func TestMachinePlotCoversTheWholeTime(t *testing.T) {
	t.Parallel()
	h := NewHistory(nil)
	d := &Dashboard{deps: Deps{History: h}}
	begun := time.Now().Truncate(time.Second)
	load := 100.0
	for second := 0; second < 45; second += 11 { // workers tell every so often
		h.machine("w", store.Telemetry{CPUPercent: &load}, begun.Add(time.Duration(second)*time.Second))
	}
	plots := d.machinePlots("w", begun, begun.Add(44*time.Second))
	require.Regexp(t, `<path class="line k0" d="M40 [0-9.]+L[^M]*L380 [0-9.]+"/>`, string(plots[0]), "from its left to its right edge, without a gap")
}

// What a page does not read makes no view of its own, and only so many views are open.
func TestOpenViewsAreBounded(t *testing.T) {
	t.Parallel()
	l, p := newLive(), &page{name: "builds"}
	open := func(query string) (*liveView, func()) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/builds"+query, http.NoBody)
		return l.join(newView(echo.New().NewContext(r, httptest.NewRecorder()), p))
	}
	first, leave := open("?state=failed&q=1&done=x")
	for _, same := range []string{"?state=failed", "?q=2&state=failed", "?state=failed&platform=", "?state=failed&state=pending"} {
		lv, _ := open(same)
		require.Same(t, first, lv, same)
	}
	require.Equal(t, 1, l.open())
	for i := range maxViews - 1 {
		lv, _ := open("?before=" + strconv.Itoa(i))
		require.NotNil(t, lv)
	}
	lv, _ := open("?before=one-too-many")
	require.Nil(t, lv)
	leave()
	lv, _ = open("?state=failed")
	require.Same(t, first, lv, "others follow it still")
	require.Panics(t, func() { first.Get("q") }, "what a page reads is declared")
}

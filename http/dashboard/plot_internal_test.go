package dashboard

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestPlotHasATableAndNoHole(t *testing.T) {
	t.Parallel()
	nan := float32(math.NaN())
	var b strings.Builder
	require.NoError(t, current().pages["queue"].ExecuteTemplate(&b, "plot", newPlot("p", "load <b>", "s", "Lower is better.", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), time.Hour, line{Name: "a<", Values: []float32{1, nan, 3, 0.0159}})))
	out := b.String()
	require.Contains(t, out, "load &lt;b&gt;")
	require.Contains(t, out, "<b>16 ms</b>")
	require.Contains(t, out, ">5 s</text>", "the top of the axis")
	require.Regexp(t, `text-anchor="start" data-time="2026-01-02T02:04:05Z" data-form="hm">02:04 UTC<.*middle" [^>]*>02:34 UTC<.*end" [^>]*>03:04 UTC<`, out)
	require.Contains(t, out, "Lower is better.")
	require.Contains(t, out, "<div class=\"sr\"><table><caption>")
	require.NotContains(t, out, "NaN")
	require.Equal(t, 2, strings.Count(out, "M"), "a gap is a gap")
	require.NotContains(t, out, "style=", "the policy allows none")
}

func TestPlotShowsTheMeanOfWhatIsTooClose(t *testing.T) {
	t.Parallel()
	values := make([]float32, 24*60)
	for i := range values {
		values[i] = float32(i)
	}
	require.InDelta(t, 1.5, thin(values)[0], 0, "the mean of 0 to 3")
	require.Len(t, thin(values), 24*60/4)
}

func TestMachinePlotCoversTheWholeTime(t *testing.T) {
	t.Parallel()
	h := NewHistory(nil, nil)
	d := &Dashboard{deps: Deps{History: h}}
	begun := time.Now().Truncate(time.Second)
	load := 100.0
	for second := 0; second < 45; second += 11 { // workers tell every so often
		h.machine("w", store.Telemetry{CPUPercent: &load}, begun.Add(time.Duration(second)*time.Second))
	}
	plots := d.machinePlots("w", begun, begun.Add(44*time.Second))
	require.Regexp(t, `^M60 [0-9.]+L[^M]*L380 [0-9.]+$`, plots[0].Lines[0].Path, "from its left to its right edge, without a gap")
}

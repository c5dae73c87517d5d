package dashboard

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"

	"takt/http/forecast"
)

// plot is lines over time, drawn as SVG with a title, axes, and a table of the values for
// screen readers. The template plot has the elements, the style sheet the colours.
type plot struct {
	ID, Title, Unit string
	Hint            string // which values are good or bad
	Lines           []line
	Up, Across      []tick
	Rows            []plotRow
}

// plotRow is the values of all lines at a time.
type plotRow struct {
	At     time.Time
	Values []string
}

// line is one line of a plot, oldest value first; NaN is a gap. Now is its last value.
type line struct {
	Name      string
	Values    []float32
	Now, Path string
}

// tick is a mark on an axis. Time and Form are for the script, which makes times local.
type tick struct{ At, Anchor, Text, Time, Form string }

const (
	plotWidth, plotHeight        = 380, 130
	plotLeft, plotTop, plotBelow = 60, 8, 20
	tableRows                    = 8
	manyPoints                   = 360 // in a line
)

// newPlot draws lines whose values cover a time up to end.
func newPlot(id, title, unit, hint string, end time.Time, covered time.Duration, lines ...line) plot {
	longest := 0
	for i := range lines {
		l := &lines[i]
		l.Now, l.Values = lastOf(l.Values, unit), thin(l.Values)
		longest = max(longest, len(l.Values))
	}
	p := plot{ID: id, Title: title, Unit: unit, Hint: hint, Lines: lines}
	if quantity(1, unit) != "1" {
		p.Unit = "" // the values have it
	}
	top := niceTop(lines)
	y := func(part float64) float64 {
		return plotTop + (1-min(max(part, 0), 1))*(plotHeight-plotTop-plotBelow)
	}
	for i := range lines {
		lines[i].Path = drawn(lines[i].Values, plotLeft, plotWidth, func(v float64) float64 { return y(v / top) })
	}
	form, layout := "dhm", "2 Jan 15:04"
	switch {
	case covered <= 15*time.Minute:
		form, layout = "hms", "15:04:05"
	case covered <= 12*time.Hour:
		form, layout = "hm", "15:04"
	}
	for i, part := range [...]float64{0, 0.5, 1} {
		at := end.Add(-time.Duration(float64(covered) * (1 - part))).UTC()
		mark := quantity(top*part, unit)
		if unit == "s" && top*part >= 1 {
			mark = number3(top*part) + " s" // short
		}
		p.Up = append(p.Up, tick{At: fmt.Sprintf("%.1f", y(part)), Text: mark})
		p.Across = append(p.Across, tick{
			fmt.Sprintf("%.0f", plotLeft+part*(plotWidth-plotLeft)), [...]string{"start", "middle", "end"}[i],
			at.Format(layout + " UTC"), at.Format(time.RFC3339), form,
		})
	}
	for row := range min(tableRows, longest) {
		i := row
		if longest > tableRows {
			i = (longest - 1) * (row + 1) / tableRows
		}
		cells := plotRow{At: end.Add(-covered * time.Duration(longest-1-i) / time.Duration(longest))}
		for _, l := range lines {
			cells.Values = append(cells.Values, lastOf(l.Values[min(i, len(l.Values)):min(i+1, len(l.Values))], unit))
		}
		p.Rows = append(p.Rows, cells)
	}
	return p
}

// plotters return a figure as a line, and draw lines, over a view's period up to now.
func (d *Dashboard) plotters(v *view, now time.Time) (over func(name string, f figure) line, draw func(id, title, unit, hint string, lines ...line) plot) {
	p := v.period()
	return func(name string, f figure) line { return line{Name: name, Values: d.deps.History.over(f, p, now)} },
		func(id, title, unit, hint string, lines ...line) plot {
			return newPlot(id, title, unit, hint, now, periods[p].length, lines...)
		}
}

// thin combines values that are too close to be distinguished into their mean.
func thin(values []float32) []float32 {
	n := (len(values) + manyPoints - 1) / manyPoints
	if n <= 1 {
		return values
	}
	out := make([]float32, 0, manyPoints)
	for some := range slices.Chunk(values, n) {
		total, known := 0.0, 0
		for _, v := range some {
			if f := float64(v); !math.IsNaN(f) {
				total, known = total+f, known+1
			}
		}
		out = append(out, float32(total/float64(known))) // NaN if none is known
	}
	return out
}

// drawn returns the SVG path of a line from x left to right, with gaps.
func drawn(values []float32, left, right float64, y func(float64) float64) string {
	var b strings.Builder
	pen := false
	for i := range values {
		v := float64(values[i])
		if math.IsNaN(v) {
			pen = false
			continue
		}
		x := right
		if len(values) > 1 {
			x = left + float64(i)/float64(len(values)-1)*(right-left)
		}
		move := byte('M')
		if pen {
			move = 'L'
		}
		fmt.Fprintf(&b, "%c%.0f %.1f", move, x, y(v))
		if last := i+1 == len(values) || math.IsNaN(float64(values[i+1])); last && !pen {
			b.WriteString("h-3") // makes a single point visible
		}
		pen = true
	}
	return b.String()
}

// niceTop returns a round number that no value exceeds.
func niceTop(lines []line) float64 {
	top := 0.0
	for _, l := range lines {
		for _, v := range l.Values {
			if f := float64(v); !math.IsNaN(f) {
				top = max(top, f)
			}
		}
	}
	if top < 0.001 { // nothing
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(top)))
	for _, n := range []float64{1, 2, 5, 10} {
		if top <= n*unit {
			return n * unit
		}
	}
	return top
}

func lastOf(values []float32, unit string) string {
	for _, v := range slices.Backward(values) {
		if f := float64(v); !math.IsNaN(f) {
			return quantity(f, unit)
		}
	}
	return "–"
}

// quantity formats a value of a plot with a useful number of digits, and its unit if that is short.
func quantity(v float64, unit string) string {
	switch unit {
	case "s":
		return quantity(1000*v, "ms")
	case "ms":
		if v >= 1000 {
			return forecast.Span(time.Duration(v) * time.Millisecond)
		} else if v < 10 {
			return number3(math.Round(10*v)/10) + " ms"
		}
		return number3(math.Round(v)) + " ms"
	case "%", "MB":
		return number3(math.Round(v)) + " " + unit
	}
	return number3(math.Round(v*1000) / 1000)
}

// spark returns a small line for a table row. The row shows its number beside it.
func spark(name string, values []float32) template.HTML {
	if len(values) < 2 {
		return ""
	}
	top := niceTop([]line{{Values: values}})
	return template.HTML(fmt.Sprintf(`<svg class="spark" viewBox="0 0 60 18" role="img" aria-label="%s, most %s"><path class="line k0" d="%s"/></svg>`, //nolint:gosec // escaped
		template.HTMLEscapeString(name), number3(top), drawn(values, 0, 60, func(v float64) float64 { return 17 - 16*v/top })))
}

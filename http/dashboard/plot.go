package dashboard

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"takt/http/edge"
)

// plot draws lines over time as SVG, with a title, axes, and a table of the values
// for screen readers. The style sheet sets the colours.
type plot struct {
	ID, Title, Unit string
	// Span is the time that the values cover, up to now. HTML halves it while nothing is
	// known of its first half.
	Span  time.Duration
	Lines []line
}

// line is one line of a plot, oldest value first; NaN is a gap.
type line struct {
	Name   string
	Values []float32
}

const (
	plotWidth, plotHeight        = 380, 130
	plotLeft, plotTop, plotBelow = 40, 8, 20
	tableRows                    = 8
)

// A plot shows at least fewPoints points, known or not, and at most manyPoints.
const (
	fewPoints  = 16
	manyPoints = 300
)

// known returns the plot without the time from which nothing is known: what was seen in
// the last minutes would be a dot at the end of a day.
func (p plot) known() plot {
	p.Lines = slices.Clone(p.Lines)
	for len(p.Lines) > 0 {
		for _, l := range p.Lines {
			if half := len(l.Values) / 2; half < fewPoints || slices.ContainsFunc(l.Values[:half], func(v float32) bool { return !math.IsNaN(float64(v)) }) {
				return p
			}
		}
		for i := range p.Lines {
			values := &p.Lines[i].Values
			*values = (*values)[len(*values)/2:]
		}
		p.Span /= 2
	}
	return p
}

// HTML returns the plot as HTML.
func (p plot) HTML() template.HTML {
	p = p.known()
	now := edge.Each(p.Lines, func(l line) string { return lastOf(l.Values) })
	for i := range p.Lines {
		p.Lines[i].Values = thin(p.Lines[i].Values)
	}
	var b strings.Builder
	top := niceTop(p.Lines)
	esc := template.HTMLEscapeString
	fmt.Fprintf(&b, `<figure class="plot"><figcaption id="%s-t">%s <span class="unit">%s</span>`, esc(p.ID), esc(p.Title), esc(p.Unit))
	for i, l := range p.Lines {
		fmt.Fprintf(&b, ` <span class="key k%d">%s <b>%s</b></span>`, i, esc(l.Name), now[i])
	}
	fmt.Fprintf(&b, `</figcaption><svg viewBox="0 0 %d %d" role="img" aria-labelledby="%s-t">`, plotWidth, plotHeight, esc(p.ID))
	for _, part := range []float64{0, 0.5, 1} {
		y := plotY(part)
		fmt.Fprintf(&b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text class="tick" x="%d" y="%.1f" text-anchor="end">%s</text>`,
			plotLeft, plotWidth, y, y, plotLeft-6, y+4, number3(top*part))
	}
	for i, part := range []float64{0, 0.5, 1} {
		said, anchor := "now", [...]string{"start", "middle", "end"}[i]
		if part < 1 {
			said = "−" + span(time.Duration(float64(p.Span)*(1-part)))
		}
		fmt.Fprintf(&b, `<text class="tick" x="%.0f" y="%d" text-anchor="%s">%s</text>`, plotLeft+part*(plotWidth-plotLeft), plotHeight-4, anchor, said)
	}
	for i, l := range p.Lines {
		fmt.Fprintf(&b, `<path class="line k%d" d="%s"/>`, i, drawn(l.Values, plotLeft, plotWidth, func(v float64) float64 { return plotY(v / top) }))
	}
	b.WriteString(`</svg>`)
	p.table(&b)
	b.WriteString(`</figure>`)
	return template.HTML(b.String()) //nolint:gosec // names are escaped
}

func plotY(part float64) float64 {
	return plotTop + (1-min(max(part, 0), 1))*(plotHeight-plotTop-plotBelow)
}

// table writes the plot's values as a table of a few rows.
func (p plot) table(b *strings.Builder) {
	esc := template.HTMLEscapeString
	fmt.Fprintf(b, `<div class="sr"><table><caption>%s</caption><thead><tr><th scope="col">Time</th>`, esc(p.Title))
	longest := 0
	for _, l := range p.Lines {
		fmt.Fprintf(b, `<th scope="col">%s</th>`, esc(l.Name+" "+p.Unit))
		longest = max(longest, len(l.Values))
	}
	b.WriteString(`</tr></thead><tbody>`)
	for row := range min(tableRows, longest) {
		i := row
		if longest > tableRows {
			i = (longest - 1) * (row + 1) / tableRows
		}
		fmt.Fprintf(b, `<tr><th scope="row">%s ago</th>`, rough(p.Span*time.Duration(longest-1-i)/time.Duration(longest)))
		for _, l := range p.Lines {
			said := "–"
			if i < len(l.Values) && !math.IsNaN(float64(l.Values[i])) {
				said = number3(float64(l.Values[i]))
			}
			fmt.Fprintf(b, `<td>%s</td>`, said)
		}
		b.WriteString(`</tr>`)
	}
	b.WriteString(`</tbody></table></div>`)
}

// thin combines values that are too close to be told apart into their mean.
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
		if pen {
			b.WriteByte('L')
		} else {
			b.WriteByte('M')
		}
		b.WriteString(strconv.FormatFloat(x, 'f', 0, 64))
		b.WriteByte(' ')
		b.WriteString(strconv.FormatFloat(y(v), 'f', 1, 64))
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
	if top <= 0 {
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

func lastOf(values []float32) string {
	for _, v := range slices.Backward(values) {
		if f := float64(v); !math.IsNaN(f) {
			return number3(f)
		}
	}
	return "–"
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

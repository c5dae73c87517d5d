package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

const (
	// A build's page shows logRows lines of at most logBytes, a page of the log
	// logPageRows of at most logPageBytes, with logContext lines before the one asked for.
	logRows, logBytes         = 300, 128 << 10
	logPageRows, logPageBytes = 1000, 512 << 10
	logContext                = 20
	// logFinds is how many lines one search shows.
	logFinds = 100
	// liveLogBytes bounds the lines that an open view keeps for its streams, liveLogReads
	// how often it reads on before it skips to the newest lines.
	liveLogBytes = 512 << 10
	liveLogReads = 4
	liveLogRows  = 5000
)

// logData is a part of a log.
type logData struct {
	Build        string
	State        store.BuildState
	Lines        []store.LogLine
	Older, Newer bool          // whether there are lines before and after these
	Last         store.LogLine // of the log: Seq and Number
	From, To     int           // the lines that the address names
	// Query was searched for up to line Upto; Lines are what was found.
	Query  string
	Upto   store.LogLine
	Times  bool
	Toggle string // the query of the same page with times, or without
}

func newLogData(v *view, b store.Build) logData {
	l := logData{Build: b.ID, State: b.State, Times: v.Get("time") != ""}
	q := maps.Clone(v.query)
	if q.Set("time", "1"); l.Times {
		q.Del("time")
	}
	l.Toggle = "?" + q.Encode()
	return l
}

// Page returns the address of a page of the log; "" keeps what is shown beside its lines.
func (l logData) Page(name string, value any) string {
	at := "/builds/" + l.Build + "/log"
	sep := "?"
	if name != "" {
		at, sep = at+"?"+name+"="+template.URLQueryEscaper(value), "&"
	}
	if l.Times {
		at += sep + "time=1"
	}
	return at
}

// SearchOn returns the address of the rest of a search.
func (l logData) SearchOn() string {
	return l.Page("q", l.Query) + "&after=" + strconv.FormatInt(l.Upto.Seq, 10)
}

// End returns the last of the lines.
func (l logData) End() (last store.LogLine) {
	if n := len(l.Lines); n > 0 {
		last = l.Lines[n-1]
	}
	return last
}

// fold returns whether a line begins a group of lines, as GitHub's and Buildkite's do, and
// its title, or whether it ends one.
func fold(message string) (title string, begins, ends bool) {
	for _, prefix := range []string{"::group::", "--- "} {
		if title, begins = strings.CutPrefix(message, prefix); begins {
			return cmp.Or(title, message), true, false
		}
	}
	return message, false, strings.HasPrefix(message, "::endgroup::")
}

// content shows the text of a line, with a link to the rest of a long one.
func content(build string, l store.LogLine, text string) template.HTML {
	html := ansi(text)
	if len(l.Message) > maxLine && l.Number > 0 {
		html += template.HTML(fmt.Sprintf(" <a href='/builds/%s/log/raw?line=%[2]d&amp;to=%[2]d'>whole line</a>", build, l.Number)) //nolint:gosec // our own text
	}
	return html
}

// logGroup is consecutive lines; Folds if their first is the title of the others. It is Open if
// something in it is to be seen, and Last if later lines belong to it.
type logGroup struct {
	Folds, Open, Last bool
	Lines             []template.HTML
}

// Groups returns the lines as they are shown. What is found by a search is in no group. dash.js
// makes the same elements of lines that arrive later.
func (l logData) Groups() []logGroup {
	all := make([]logGroup, 1)
	for _, x := range l.Lines {
		text, begins, ends := x.Text(), false, false
		if l.Query == "" {
			text, begins, ends = fold(text)
		}
		if begins {
			all = append(all, logGroup{Folds: true})
		}
		g, hit := &all[len(all)-1], l.From > 0 && l.From <= x.Number && x.Number <= l.To
		g.Lines = append(g.Lines, l.line(x, text, begins, hit))
		g.Open = g.Open || hit || x.Level != store.Info
		if ends && g.Folds {
			all = append(all, logGroup{})
		}
	}
	all[len(all)-1].Last = true
	return all
}

// line shows a line, without the template, which takes ten times as long.
func (l logData) line(x store.LogLine, text string, title, hit bool) template.HTML {
	tag, class, id, number, at := "div", "l", "", "<span class='n'>\t</span>", template.HTML("")
	if x.Level != store.Info {
		class += " " + string(x.Level)
	}
	if hit {
		class += " hit"
	}
	if x.Number > 0 {
		id = fmt.Sprintf(" id='L%d'", x.Number)
		number = fmt.Sprintf("<a class='n' href='%s#L%[2]d' aria-label='line %[2]d'>%[2]d\t</a>", template.HTMLEscapeString(l.Page("line", x.Number)), x.Number)
	}
	if title { // it holds no link
		tag, number = "summary", fmt.Sprintf("<span class='n'>%d\t</span>", x.Number)
	}
	if l.Times {
		at = timeOf(x) + " "
	}
	return template.HTML("<"+tag+" class='"+class+"'"+id+">"+number) + at + "<span class='m'>" + content(l.Build, x, text) + template.HTML("</span></"+tag+">\n") //nolint:gosec // escaped piece by piece
}

func timeOf(l store.LogLine) template.HTML {
	return stamp(l.At, time.RFC3339, l.At.UTC().Format("15:04:05 UTC"), "hms")
}

// loadLog reads a page of a log: lines after or before one, those around a line's number, what
// a search found, or the newest. Its streams read nothing, because its lines stay.
func (d *Dashboard) loadLog(ctx context.Context, v *view) (any, error) {
	if !store.ValidID(v.id) {
		return nil, notFound("Build")
	}
	b, err := d.deps.Builds.Find(ctx, v.id)
	if err != nil {
		return nil, err
	}
	if known, _, ok := d.known.of(v.data()); ok && v.tail != nil {
		return known, nil
	}
	n, err := numbersIn(v.Get, "line", "to", "before", "after")
	if err != nil {
		return nil, err
	}
	line, to, before, after := int(min(n[0], math.MaxInt32)), int(min(n[1], math.MaxInt32)), n[2], min(n[3], math.MaxInt64-1)
	at, last, err := d.deps.Store.FindLine(ctx, v.id, line)
	if err != nil {
		return nil, err
	}
	l := newLogData(v, b)
	l.Last, l.From, l.To = last, line, max(line, to)
	switch l.Query = store.Text(strings.TrimSpace(v.Get("q"))); {
	case l.Query != "":
		l.Lines, l.Upto, err = d.deps.Store.SearchLog(ctx, v.id, l.Query, after+1, logFinds)
		l.Newer = l.Upto.Seq > 0 && l.Upto.Seq < last.Seq
	case line > 0:
		err = d.readLines(ctx, &l, at, logContext, logPageRows-logContext, logPageBytes)
	case v.Get("after") != "":
		err = d.readLines(ctx, &l, after+1, 0, logPageRows, logPageBytes)
	default:
		err = d.readLines(ctx, &l, cmp.Or(before, math.MaxInt64), logPageRows, 0, logPageBytes)
	}
	return l, err
}

// numbersIn reads numbers from a query.
func numbersIn(get func(name string) string, names ...string) (n []int64, err error) {
	n = make([]int64, len(names))
	for i, name := range names {
		if n[i], err = edge.Sequence(name, get(name)); err != nil {
			break
		}
	}
	return n, err
}

// readLines reads lines from seq at on, and those before it: about as many bytes as most.
func (d *Dashboard) readLines(ctx context.Context, l *logData, at int64, older, newer, most int) error {
	lines, err := d.deps.Store.LogPage(ctx, l.Build, at, older+1, newer+1)
	middle, _ := slices.BinarySearchFunc(lines, at, func(l store.LogLine, at int64) int { return cmp.Compare(l.Seq, at) })
	from, to, size := middle, middle, 0
	for ; to < len(lines) && to-middle < newer && size < most; to++ {
		size += clipLine(&lines[to])
	}
	for ; from > 0 && middle-from < older && size < most; from-- {
		size += clipLine(&lines[from-1])
	}
	l.Lines, l.Older, l.Newer = slices.Clone(lines[from:to]), from > 0, to < len(lines) // without what is not shown
	return err
}

// clipLine keeps what a page can show of a message, and returns how long that is.
func clipLine(l *store.LogLine) int {
	if len(l.Message) > maxLine+1 {
		l.Message = strings.Clone(l.Message[:maxLine+1])
	}
	return len(l.Message)
}

// newestLines returns the last lines of a build's log. An open view reads on where it is.
func (d *Dashboard) newestLines(ctx context.Context, v *view, b store.Build) (l logData, err error) {
	l = newLogData(v, b)
	if v.tail == nil {
		return l, d.readLines(ctx, &l, math.MaxInt64, logRows, 0, logBytes)
	}
	err = d.readOn(ctx, b.ID, v.tail)
	l.Lines = v.tail.lines[max(0, len(v.tail.lines)-logRows):]
	return l, err
}

// logTail is the end of a log: all lines after seq base.
type logTail struct {
	base  int64
	lines []store.LogLine
	size  int
}

// add adds the lines that follow, and forgets the oldest ones.
func (t *logTail) add(lines []store.LogLine) {
	for _, l := range lines {
		t.size += clipLine(&l) + store.LogLineCost
		t.lines = append(t.lines, l) // readers of an older logTail see fewer
	}
	for t.size > liveLogBytes {
		t.base, t.size = t.lines[0].Seq, t.size-len(t.lines[0].Message)-store.LogLineCost
		t.lines = t.lines[1:]
	}
}

// newestTail returns the last lines of a log.
func (d *Dashboard) newestTail(ctx context.Context, id string) (t logTail, err error) {
	lines, err := d.deps.Store.LogPage(ctx, id, math.MaxInt64, logRows+1, 0)
	if len(lines) > logRows {
		t.base, lines = lines[0].Seq, lines[1:]
	}
	t.add(lines)
	return t, err
}

// readOn adds the new lines of a log to t, or only the newest if there are very many. At first
// t has none, and its base is the line that the browser said it has.
func (d *Dashboard) readOn(ctx context.Context, id string, t *logTail) error {
	last := t.base
	if n := len(t.lines); n > 0 {
		last = t.lines[n-1].Seq
	} else if newest, err := d.newestTail(ctx, id); err != nil || last == 0 || last >= newest.base {
		*t = newest
		return err
	}
	for range liveLogReads {
		page, err := d.deps.Builds.Tail(ctx, id, last, liveLogRows)
		if err != nil {
			return err
		}
		if t.add(page.Lines); !page.More {
			return nil
		}
		last = page.Lines[len(page.Lines)-1].Seq
	}
	newest, err := d.newestTail(ctx, id)
	if err == nil {
		*t = newest
	}
	return err
}

// logEvent brings the lines after seq from up to seq to.
type logEvent struct {
	from, to int64
	text     []byte
}

// shownLine returns the seq of the last line that a browser has: it sends the id of the last
// event when it connects again.
func shownLine(c echo.Context) (int64, error) {
	return edge.Sequence("since", cmp.Or(c.Request().Header.Get("Last-Event-ID"), c.QueryParam("since")))
}

// addLines sends the lines after seq read, and returns the seq of the last one. It sends none
// before an update that began after joined. Viewers who have the same lines share the event.
func (lv *liveView) addLines(st *edge.Stream, read int64, joined time.Time) (int64, error) {
	lv.mu.Lock()
	log := lv.log
	if n := len(log.lines); lv.checked.Before(joined) || n == 0 || log.lines[n-1].Seq <= read {
		lv.mu.Unlock()
		return read, nil
	}
	e, err := lv.added, error(nil)
	if to := log.lines[len(log.lines)-1].Seq; e.from != read || e.to != to {
		e = logEvent{from: read, to: to}
		e.text, err = edge.AppendEvent(nil, strconv.FormatInt(to, 10), "log", log.after(read, lv.id, lv.Get("time") != ""))
		lv.added = e
	}
	lv.mu.Unlock()
	if err == nil {
		err = st.Write(e.text)
	}
	return e.to, err
}

// mark changes how the following lines of an event are shown.
type mark struct {
	Gap   bool          `json:"gap,omitempty"` // lines are missing here
	Level store.Level   `json:"level,omitempty"`
	Time  template.HTML `json:"time,omitempty"`
	Begin bool          `json:"begin,omitempty"` // the next line begins a group
	End   bool          `json:"end,omitempty"`   // the group ends here
}

// after lists the lines after seq read, in few bytes: each is its HTML, before the first is
// its number, and wherever the numbering breaks, a number or a mark.
func (t logTail) after(read int64, build string, times bool) []any {
	items := []any{}
	if read < t.base {
		items = append(items, mark{Gap: true})
	}
	next, level, at := -1, store.Info, template.HTML("")
	from, _ := slices.BinarySearchFunc(t.lines, read+1, func(l store.LogLine, at int64) int { return cmp.Compare(l.Seq, at) })
	for _, l := range t.lines[from:] {
		if l.Number != next {
			items = append(items, l.Number)
		}
		if next = l.Number; next > 0 {
			next++
		}
		if l.Level != level {
			level = l.Level
			items = append(items, mark{Level: level})
		}
		if now := timeOf(l); times && now != at {
			at = now
			items = append(items, mark{Time: at})
		}
		text, begins, ends := fold(l.Text())
		if begins {
			items = append(items, mark{Begin: true})
		}
		items = append(items, content(build, l, text))
		if ends {
			items = append(items, mark{End: true})
		}
	}
	return items
}

// rawLogRoute is GET /builds/:id/log/raw: the log, or its lines from line up to to, as text.
func (d *Dashboard) rawLogRoute() edge.Route {
	r := d.route(get, "/builds/:id/log/raw", api.Reader, nil)
	r.Service = api.ServiceBuilds
	r.Serve = func(c echo.Context, r *edge.Route) error {
		err := d.permit(c, r)
		if err == nil {
			err = d.rawLog(c)
		}
		return d.finish(c, nil, err)
	}
	return r
}

func (d *Dashboard) rawLog(c echo.Context) error {
	id, ctx := c.Param("id"), c.Request().Context()
	n, err := numbersIn(c.QueryParam, "line", "to")
	if err != nil {
		return err
	}
	line, to := int(min(n[0], math.MaxInt32)), n[1]
	read := func(after int64) (t store.Tail, err error) {
		err = d.server.Limit(edge.RulePageReadings).Do(ctx, d.server.ShareOf(c), func() error {
			t, err = d.deps.Builds.Tail(ctx, id, after, logPageRows)
			return err
		})
		return t, err
	}
	if !store.ValidID(id) {
		return notFound("Build")
	}
	at := int64(1)
	if line > 0 {
		if at, _, err = d.deps.Store.FindLine(ctx, id, line); err != nil {
			return err
		}
	}
	t, err := read(at - 1)
	if err != nil {
		return err
	}
	cut := http.ErrAbortHandler // a partial reply must not look complete
	err = d.server.StreamAs(c, "text/plain; charset=utf-8", func(_ context.Context, st *edge.Stream) (err error) {
		for more := true; more && err == nil; {
			for _, l := range t.Lines {
				if more = to == 0 || int64(l.Number) <= to; !more {
					break
				}
				st.Text = append(append(st.Text, l.Text()...), '\n')
			}
			more = more && t.More
			if err = st.Send(); err == nil && more {
				t, err = read(t.Lines[len(t.Lines)-1].Seq)
			}
		}
		if err == nil {
			cut = nil
		}
		return err
	})
	return cmp.Or(err, cut)
}

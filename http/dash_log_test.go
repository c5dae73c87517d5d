package http_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// logEvents follows a build's log from the line with seq since on, and calls got for the items
// of each event, until it returns true. size is that of the event on the wire.
func (d *dash) logEvents(path string, since int64, got func(items []any, last int64, size int) bool) {
	d.t.Helper()
	id, size := "", 0
	d.streamLines(path, strconv.FormatInt(since, 10), func(line string) bool {
		size += len(line) + 1
		if at, ok := strings.CutPrefix(line, "id: "); ok {
			id, size = at, len(line)+1
		}
		data, ok := strings.CutPrefix(line, "data: [")
		if !ok {
			return false
		}
		var items []any
		require.NoError(d.t, json.Unmarshal([]byte("["+data), &items))
		last, err := strconv.ParseInt(id, 10, 64)
		require.NoError(d.t, err)
		return got(items, last, size+1)
	})
}

// texts returns the lines among the items of an event.
func texts(items []any) (lines []string) {
	for _, item := range items {
		if line, ok := item.(string); ok {
			lines = append(lines, line)
		}
	}
	return lines
}

// says writes lines to a build's log.
func (d *dash) says(build, worker string, messages ...string) {
	d.t.Helper()
	heartbeat := store.Heartbeat{BuildID: build, WorkerID: worker}
	for _, m := range messages {
		level := store.Info
		if strings.HasPrefix(m, "error") {
			level = store.ErrorLevel
		}
		heartbeat.Logs = append(heartbeat.Logs, store.LogLine{Level: level, Message: m})
	}
	_, err := storeBuilds(d.fixture).RecordHeartbeat(d.t.Context(), heartbeat)
	require.NoError(d.t, err)
}

func numbered(from, n int) (messages []string) {
	for i := range n {
		messages = append(messages, fmt.Sprintf("output %d.", from+i))
	}
	return messages
}

// A growing log sends each line once to whoever follows it, whatever the page had; and who was
// away for very long gets the newest and is told that others are missing.
func TestDashboardStreamSendsEachLineOnce(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	build, w := d.assigned()
	d.says(build.ID, w.ID, numbered(3, logRows)...)
	page := d.get("/builds/" + build.ID).body
	require.Equal(t, logRows, strings.Count(page, "<div class='l"))
	seq, err := strconv.ParseInt(regexp.MustCompile(`data-seq="(\d+)"`).FindStringSubmatch(page)[1], 10, 64)
	require.NoError(t, err)
	d.says(build.ID, w.ID, "error 1", "<b>")
	var got []string
	last := int64(0)
	d.logEvents("/builds/"+build.ID, seq, func(items []any, id int64, _ int) bool {
		got, last = append(got, texts(items)...), id
		if len(got) == 2 {
			require.Equal(t, []any{logRows + 3.0, map[string]any{"level": "error"}, "error 1", map[string]any{"level": "info"}, "&lt;b>"}, items)
			d.says(build.ID, w.ID, "::group::a", "inside", "::endgroup::", "--- b")
			return false
		}
		require.Equal(t, []any{logRows + 5.0, map[string]any{"begin": true}, "a", "inside", "::endgroup::", map[string]any{"end": true}, map[string]any{"begin": true}, "b"}, items)
		return true
	})
	require.Equal(t, []string{"error 1", "&lt;b>", "a", "inside", "::endgroup::", "b"}, got)
	d.says(build.ID, w.ID, numbered(1, 3)...)
	d.logEvents("/builds/"+build.ID, last, func(items []any, _ int64, _ int) bool {
		require.Equal(t, []any{logRows + 9.0, "output 1.", "output 2.", "output 3."}, items, "as a browser that connects again")
		return true
	})
	for range 4 {
		d.says(build.ID, w.ID, strings.Repeat("x", 300_000), "y")
	}
	d.says(build.ID, w.ID, numbered(1, 25_000)...)
	d.logEvents("/builds/"+build.ID, last, func(items []any, _ int64, _ int) bool {
		require.Equal(t, map[string]any{"gap": true}, items[0])
		require.Len(t, texts(items), logRows)
		require.Equal(t, "output 25000.", items[len(items)-1])
		return true
	})
}

const logRows = 300

// A live log of 1 000 lines a second costs at most 15 kB a second beyond its text.
func TestDashboardLiveLogCostsLittleBeyondItsText(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	build, w := d.assigned()
	const seconds = 3
	var messages []string
	for i := range 1000 {
		messages = append(messages, fmt.Sprintf("\x1b[32m✓\x1b[0m CompileSwift normal arm64 \"/Users/ci/App/Sources/File%d.swift\" (in target 'App')", i))
	}
	lines, wire, n := 0, 0, 0
	d.logEvents("/builds/"+build.ID, 1, func(items []any, _ int64, size int) bool {
		if n++; n > 1 {
			lines, wire = lines+len(texts(items)), wire+size
		}
		if n > seconds {
			return true
		}
		for post := range slices.Chunk(messages, 100) {
			d.says(build.ID, w.ID, post...)
		}
		return false
	})
	require.Equal(t, seconds*1000, lines)
	beyond := wire/seconds - len(strings.Join(messages, ""))
	t.Logf("%d bytes a second beyond the text", beyond)
	require.Less(t, beyond, 15_000)
}

// Whoever reads a log gets to each of its lines, and back.
func TestDashboardLogIsReadFromAnywhere(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	build, w := d.assigned()
	d.says(build.ID, w.ID, append(numbered(3, 2498), "::group::folded", "error here", "::endgroup::", "::group::hidden", "nothing", "::endgroup::", strings.Repeat("long ", 1000), "the last")...)
	at := "/builds/" + build.ID + "/log"
	numbers := regexp.MustCompile(`id='L(\d+)'`)
	shown := func(page string) (first, last string, n int) {
		all := numbers.FindAllStringSubmatch(page, -1)
		require.NotEmpty(t, all, page)
		return all[0][1], all[len(all)-1][1], len(all)
	}
	link := func(page, name string) string {
		m := regexp.MustCompile(`href="([^"]*)" rel="` + name + `"`).FindStringSubmatch(page)
		if m == nil {
			return ""
		}
		return strings.ReplaceAll(m[1], "&amp;", "&")
	}
	page := d.get(at).body
	first, last, n := shown(page)
	require.Equal(t, []string{"1509", "2508", "1000"}, []string{first, last, strconv.Itoa(n)})
	require.Contains(t, page, "Lines 1509 to 2508 of 2508")
	require.Empty(t, link(page, "next"))
	require.Contains(t, page, "<details open><summary class='l' id='L2501'>", "an error is inside")
	require.Contains(t, page, "<details><summary class='l' id='L2504'>")
	require.Contains(t, page, fmt.Sprintf("<a href='%s/raw?line=2507&amp;to=2507'>whole line</a>", at))
	require.Equal(t, strings.Repeat("long ", 1000)+"\n", d.get(at+"/raw?line=2507&to=2507").body)

	older := d.get(link(page, "prev")).body
	first, last, _ = shown(older)
	require.Equal(t, []string{"509", "1508"}, []string{first, last})
	start := d.get(link(older, "first")).body
	first, last, _ = shown(start)
	require.Equal(t, []string{"1", "1000"}, []string{first, last})
	require.Empty(t, link(start, "prev"))
	require.Equal(t, at, link(start, "last"))
	first, _, _ = shown(d.get(link(start, "next")).body)
	require.Equal(t, "1001", first)

	jump := d.get(at + "?line=1200&to=1202&time=1").body
	first, last, _ = shown(jump)
	require.Equal(t, []string{"1180", "2179"}, []string{first, last}, "some lines before it, too")
	require.Equal(t, 3, strings.Count(jump, "<div class='l hit'"))
	require.Regexp(t, `aria-label='line 1200'>1200\t</a><time [^>]*>[0-9:]{8} UTC</time> <span class='m'>output 1200\.`, jump)
	first, _, _ = shown(d.get(link(jump, "next")).body)
	require.Equal(t, "2180", first, "one reads on after a link to a line")
	require.Contains(t, link(jump, "next"), "time=1")

	found := d.get(at + "?q=OUTPUT+120").body
	require.Equal(t, 11, strings.Count(found, "<div class='l"))
	require.Contains(t, found, "href='"+at+"?line=1200#L1200'")
	require.Contains(t, found, "The search reached the end of the log.")
	found = d.get(at + "?q=output").body
	require.Contains(t, found, "100 lines with “output” up to line 102 of 2508.")
	first, _, _ = shown(d.get(link(found, "next")).body)
	require.Equal(t, "103", first)
	require.Contains(t, d.get(at+"?q=%3Cnone%3E").body, "No line with “&lt;none&gt;”")

	raw := d.get(at + "/raw")
	require.Equal(t, "text/plain; charset=utf-8", raw.header.Get("Content-Type"))
	require.Equal(t, 2508, strings.Count(raw.body, "\n"))
	require.True(t, strings.HasSuffix(raw.body, "the last\n"))
	require.Equal(t, "output 10.\noutput 11.\n", d.get(at+"/raw?line=10&to=11").body)
	require.Equal(t, 404, d.get("/builds/nothing/log/raw").status)
	for _, query := range []string{"line=x", "to=x", "before=-1", "after=x"} {
		require.Equal(t, 400, d.get(at+"?"+query).status, query)
	}
	d.cookie = ""
	require.Equal(t, 303, d.get(at+"/raw").status)
}

// A build's page shows as many of the last lines as 128 KiB of text, whatever they hold.
func TestDashboardPageOfALogIsBounded(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	build, w := d.assigned()
	for range 150 {
		d.says(build.ID, w.ID, strings.Repeat("\u0001", 4000))
	}
	page := d.get("/builds/" + build.ID).body
	require.Less(t, len(page), 500<<10)
	require.Equal(t, 33, strings.Count(page, "<div class='l"))
	require.Contains(t, page, "Whole log")
	require.Equal(t, 132, strings.Count(d.get("/builds/"+build.ID+"/log").body, "<div class='l"), "a page without a stream shows more")
}

package runner

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// sink is a controller as a log stream sees it.
type sink struct {
	mu      sync.Mutex
	batches [][]api.LogMessage
	// refuse may fail a post.
	refuse func(batch []api.LogMessage) error
}

func (s *sink) post(_ context.Context, batch []api.LogMessage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		if err := s.refuse(batch); err != nil {
			return err
		}
	}
	s.batches = append(s.batches, slices.Clone(batch))
	return nil
}

func (s *sink) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, b := range s.batches {
		for _, l := range b {
			all = append(all, l.Message)
		}
	}
	return all
}

func status(code int) error {
	return &client.Error{Op: "post", Status: code, Err: store.NewError("some_code", "text")}
}

// away is a controller that is there after a time.
func away(d time.Duration) *sink {
	back := time.Now().Add(d)
	return &sink{refuse: func([]api.LogMessage) error {
		if time.Now().Before(back) {
			return status(503)
		}
		return nil
	}}
}

// stream starts a log stream into s; the returned function ends it.
func stream(ctx context.Context, s *sink, cfg LogConfig) (*logStream, func() error) {
	l := newLogStream(cfg.withDefaults(), client.Retry{}, s.post)
	ended := make(chan error, 1)
	go func() { ended <- l.run(ctx) }()
	return l, func() error { l.close(ctx, time.Minute); return <-ended }
}

func say(l *logStream, from, to int) {
	w := l.writer("info")
	for i := from; i < to; i++ {
		_, _ = fmt.Fprintf(w, "%d\n", i)
	}
}

func numbers(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

type bubbled struct{ *testing.T }

// inTime runs f as a test of its own in a bubble of fake time.
func inTime(t *testing.T, name string, f func(t bubbled)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { f(bubbled{t}) })
	})
}

func TestLogStream(t *testing.T) {
	t.Parallel()
	inTime(t, "a full batch goes at once, a small one after its time", func(t bubbled) {
		sizes, began := make(chan int, 10), time.Now()
		s := &sink{refuse: func(batch []api.LogMessage) error { sizes <- len(batch); return nil }}
		l, end := stream(t.Context(), s, LogConfig{})
		say(l, 0, 230)
		require.Equal(t, []int{100, 100}, []int{<-sizes, <-sizes})
		require.Zero(t, time.Since(began))
		require.Equal(t, 30, <-sizes)
		require.Equal(t, 200*time.Millisecond, time.Since(began))
		say(l, 230, 235)
		began = time.Now()
		l.flush(t.Context(), time.Minute)
		require.Zero(t, time.Since(began), "the end of a build waits for nothing")
		require.Equal(t, numbers(0, 235), s.lines())
		require.NoError(t, end())
	})
	inTime(t, "waits for a controller that is away, and keeps the order", func(t bubbled) {
		s := away(time.Hour)
		l, end := stream(t.Context(), s, LogConfig{})
		say(l, 0, 500)
		l.flush(t.Context(), 2*time.Hour)
		require.Equal(t, numbers(0, 500), s.lines())
		require.NoError(t, end())
	})
	inTime(t, "holds the command up, then drops and says how many", func(t bubbled) {
		s := away(time.Minute)
		l, end := stream(t.Context(), s, LogConfig{Buffer: 70 * 300})
		began := time.Now()
		say(l, 0, 1000)
		require.Equal(t, 2*time.Second, time.Since(began), "one stall in all, not one per line")
		l.flush(t.Context(), time.Hour)
		say(l, 1000, 1010)
		l.flush(t.Context(), time.Hour)
		got := s.lines()
		at := slices.IndexFunc(got, func(m string) bool { return strings.Contains(m, "dropped here") })
		require.Positive(t, at)
		var dropped int
		must(fmt.Sscanf(got[at], "[takt] %d lines", &dropped))(t)
		require.Equal(t, numbers(0, at), got[:at])
		require.Equal(t, 1000, at+dropped)
		require.Equal(t, numbers(1000, 1010), got[at+1:])
		require.NoError(t, end())
	})
	inTime(t, "finds the one line that the controller can't take", func(t bubbled) {
		s := &sink{refuse: func(batch []api.LogMessage) error {
			if slices.ContainsFunc(batch, func(l api.LogMessage) bool { return l.Message == "37" }) {
				return status(400)
			}
			return nil
		}}
		l, end := stream(t.Context(), s, LogConfig{})
		say(l, 0, 100)
		l.flush(t.Context(), time.Minute)
		require.Equal(t, slices.Concat(numbers(0, 37), numbers(38, 100)), s.lines()[:99])
		require.Contains(t, s.lines()[99], "1 lines of output dropped")
		require.NoError(t, end())
	})
	inTime(t, "ends when the build is not ours", func(t bubbled) {
		s := &sink{refuse: func([]api.LogMessage) error { return status(409) }}
		l, end := stream(t.Context(), s, LogConfig{})
		say(l, 0, 1000)
		require.Equal(t, 409, client.StatusOf(end()))
	})
	inTime(t, "a command never waits for a stream that has ended", func(t bubbled) {
		l := newLogStream(LogConfig{Buffer: 1}.withDefaults(), client.Retry{}, (&sink{}).post)
		l.add(api.LogMessage{Message: "fills the buffer"})
		go func() { l.discard() }()
		began := time.Now()
		say(l, 0, 10)
		require.Less(t, time.Since(began), 2*time.Second)
	})
}

func TestLines(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		in    []string
		want  []string
		limit int
	}{
		{"cut where they end", []string{"a\nb", "c\n", "\nd"}, []string{"a", "bc", "", "d"}, 10},
		{"carriage returns at the end go", []string{"a\r\nb\rc\n"}, []string{"a", "b\rc"}, 10},
		{"a long one is cut, once", []string{"01234", "56789", "abcde\nnext\n"}, []string{"01234567 … [7 bytes cut]", "next"}, 8},
		{"exactly at the limit", []string{"01234567\n"}, []string{"01234567"}, 8},
		{"not in the middle of a character", []string{"123456€x\n"}, []string{"123456 … [4 bytes cut]"}, 8},
		{"invalid UTF-8 and NUL are replaced", []string{"a\xffb\x00c\n"}, []string{"a\uFFFDb\uFFFDc"}, 10},
		{"nothing", []string{""}, nil, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			w := &lineWriter{limit: tt.limit, emit: func(line string) { got = append(got, line) }}
			for _, part := range tt.in {
				n := must(io.WriteString(w, part))(t)
				require.Equal(t, len(part), n)
			}
			w.close()
			w.close()
			require.Equal(t, tt.want, got)
		})
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	require.Equal(t, "short", store.Clip("short", 10))
	require.Equal(t, "0123 …", store.Clip("0123456789", 8))
	require.Equal(t, "€ …", store.Clip("€€€€", 9))
	require.Equal(t, "a\uFFFD", store.Clip("a\x00", 10))
}

package runner

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"takt/cmd/internal/mask"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/batching"
)

// LogConfig tunes how a build's output is streamed.
type LogConfig struct {
	// Every is how long a line waits for others to be sent with it. Defaults to 200 ms.
	Every time.Duration
	// Buffer is how much output waits for the controller, in bytes. Defaults
	// to 4 MiB.
	Buffer int
}

func (c LogConfig) withDefaults() LogConfig {
	return LogConfig{Every: cmp.Or(c.Every, 200*time.Millisecond), Buffer: cmp.Or(c.Buffer, 4<<20)}
}

const (
	// maxBatch and maxBatchBytes are the most that is sent at once.
	maxBatch      = 100
	maxBatchBytes = 256 << 10
	// maxLine is where a line is cut, in bytes.
	maxLine = 8 << 10
	// lineCost is about what a line takes besides its text, in bytes.
	lineCost = 64
	// maxStall is how long the command may be held up when the buffer is full,
	// before lines are dropped, and counted.
	maxStall = 2 * time.Second
	// linger is how long the end of a build waits for its log to be sent.
	linger = 30 * time.Second
)

type postFunc func(context.Context, []api.LogMessage) error

// logStream carries a build's output to the controller: in order, in batches,
// from a bounded buffer. A line is sent, or counted in a line about how many
// are missing; it is never lost silently.
type logStream struct {
	cfg   LogConfig
	retry client.Retry
	post  postFunc
	// secrets are masked; set before there are writers.
	secrets *mask.Set

	mu      sync.Mutex
	queue   []api.LogMessage
	bytes   int
	sending int // lines in flight
	dropped int // lines dropped since the last one that was queued
	stalled bool
	closed  bool
	hurry   bool // flush waits for the queue to be empty
	// Each is closed and replaced when something of its kind happens.
	more, less chan struct{}
}

func newLogStream(cfg LogConfig, retry client.Retry, post postFunc) *logStream {
	retry.Patience, retry.Temporary = 0, tryAgain // ends with its context
	return &logStream{cfg: cfg, retry: retry, post: post, more: make(chan struct{}), less: make(chan struct{})}
}

// writer returns one that turns its input into lines of a level.
func (s *logStream) writer(level string) *lineWriter {
	return &lineWriter{limit: maxLine, masked: s.secrets.Stream(), emit: func(line string) {
		s.add(api.LogMessage{Level: level, Message: line})
	}}
}

// say adds a line by takt itself.
func (s *logStream) say(format string, args ...any) {
	s.add(api.LogMessage{Level: "info", Message: "[takt] " + s.secrets.String(fmt.Sprintf(format, args...))})
}

// add queues a line. When the buffer is full it holds its caller up, for at most
// Stall in a row, then drops lines until there is room again.
func (s *logStream) add(line api.LogMessage) {
	var patience <-chan time.Time
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed && !s.put(line) {
		if s.stalled {
			s.dropped++
			return
		}
		if patience == nil {
			patience = time.After(maxStall)
		}
		less := s.less
		s.mu.Unlock()
		stalled := false
		select {
		case <-less:
		case <-patience:
			stalled = true
		}
		s.mu.Lock()
		s.stalled = s.stalled || stalled
	}
}

// put appends if there is room. The lock is held.
func (s *logStream) put(line api.LogMessage) bool {
	cost := len(line.Message) + lineCost
	if len(s.queue) > 0 && s.bytes+cost > s.cfg.Buffer {
		return false
	}
	s.noteDropped()
	s.stalled = false
	s.queue = append(s.queue, line)
	s.bytes += cost
	wake(&s.more)
	return true
}

// noteDropped appends the line that counts the missing lines. The lock is held.
func (s *logStream) noteDropped() {
	if s.dropped == 0 {
		return
	}
	line := api.LogMessage{Level: "warn", Message: fmt.Sprintf("[takt] %d lines of output dropped here: they came faster than they could be sent", s.dropped)}
	s.dropped = 0
	s.queue = append(s.queue, line)
	s.bytes += len(line.Message) + lineCost
	wake(&s.more)
}

func wake(c *chan struct{}) {
	close(*c)
	*c = make(chan struct{})
}

// flush waits until all queued lines are sent, for at most limit.
func (s *logStream) flush(ctx context.Context, limit time.Duration) {
	timeout := time.After(limit)
	for {
		s.mu.Lock()
		s.noteDropped()
		idle := len(s.queue) == 0 && s.sending == 0 || s.closed
		if s.hurry != !idle {
			s.hurry = !idle
			wake(&s.more)
		}
		less := s.less
		s.mu.Unlock()
		if idle {
			return
		}
		select {
		case <-less:
		case <-timeout:
			return
		case <-ctx.Done():
			return
		}
	}
}

// close flushes, ends run, and returns how many lines were not delivered.
func (s *logStream) close(ctx context.Context, limit time.Duration) int {
	s.flush(ctx, limit)
	return s.discard()
}

// discard drops the queued lines and accepts no more; run ends. It returns how
// many lines were dropped.
func (s *logStream) discard() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := len(s.queue) + s.sending + s.dropped
	s.closed, s.queue, s.bytes, s.dropped = true, nil, 0, 0
	wake(&s.more)
	wake(&s.less)
	return lost
}

// run sends lines until close, discard, the end of ctx, or a reply which means that
// the build is no longer ours, which it returns.
func (s *logStream) run(ctx context.Context) error {
	defer s.discard()
	for {
		lines := s.take(ctx)
		if lines == nil {
			return nil
		}
		lost, err := s.send(ctx, lines)
		s.sent(lost)
		if err != nil {
			return err
		}
	}
}

// take waits for lines, and for more to send with them; nil at the end.
func (s *logStream) take(ctx context.Context) []api.LogMessage {
	var linger <-chan time.Time
	for {
		s.mu.Lock()
		if len(s.queue) >= maxBatch || s.bytes >= maxBatchBytes || s.hurry && len(s.queue) > 0 {
			defer s.mu.Unlock()
			return s.cut()
		}
		closed, waiting, more := s.closed, len(s.queue), s.more
		s.mu.Unlock()
		if closed || ctx.Err() != nil {
			return nil
		}
		if waiting > 0 && linger == nil {
			linger = time.After(s.cfg.Every)
		}
		select {
		case <-more:
		case <-linger:
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.cut()
		case <-ctx.Done():
			return nil
		}
	}
}

// cut takes a batch off the queue; nil if it was discarded. The lock is held.
func (s *logStream) cut() []api.LogMessage {
	n, size := 0, 0
	for n < len(s.queue) && n < maxBatch && (n == 0 || size < maxBatchBytes) {
		size += len(s.queue[n].Message) + lineCost
		n++
	}
	if n == 0 {
		return nil
	}
	lines := s.queue[:n:n]
	s.queue, s.bytes, s.sending = s.queue[n:], s.bytes-size, n
	wake(&s.less)
	return lines
}

// sent records the end of a batch, of which lost lines did not arrive.
func (s *logStream) sent(lost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending = 0
	s.dropped += lost
	wake(&s.less)
}

// tryAgain also covers a key that is refused: see verdict.
func tryAgain(err error) bool {
	return client.Temporary(err) || store.CodeOf(err) == store.InvalidAPIKey ||
		client.StatusOf(err) == http.StatusUnauthorized
}

// send posts lines until they are accepted. Of lines that the controller refuses, only the one
// at fault is lost.
func (s *logStream) send(ctx context.Context, lines []api.LogMessage) (lost int, err error) {
	lost = len(lines)
	err = batching.Isolate(lines, isRefusal, func(part []api.LogMessage) error {
		err := s.retry.Do(ctx, func(ctx context.Context) error { return s.post(ctx, part) })
		if err == nil {
			lost -= len(part)
		}
		return err
	}, func(api.LogMessage, error) error { return nil })
	if verdict(err) == nil { // ctx ended
		err = nil
	}
	return lost, err
}

// isRefusal reports whether the controller refused lines of a build that is still ours.
func isRefusal(err error) bool { return verdict(err) == nil && client.StatusOf(err) != 0 }

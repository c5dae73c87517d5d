package runner

import (
	"context"
	"fmt"
	"sync"
	"time"

	"takt/http/api"
	"takt/http/client"
)

// LogConfig tunes how a build's output is streamed.
type LogConfig struct {
	// Batch is the most lines sent at once. Defaults to 100.
	Batch int
	// Every is how long a line waits for company. Defaults to 200 ms.
	Every time.Duration
	// MaxLine is where a line is cut, in bytes. Defaults to 8 KiB.
	MaxLine int
	// Buffer is how much output waits for the controller, in bytes. Defaults
	// to 4 MiB.
	Buffer int
	// Stall is how long the command may be held up when the buffer is full,
	// before lines are dropped, and counted. Defaults to 2 s.
	Stall time.Duration
	// Linger is how long the end of a build waits for its log to be sent.
	// Defaults to 30 s.
	Linger time.Duration
}

func (c LogConfig) withDefaults() LogConfig {
	orDefault(&c.Batch, 100)
	orDefault(&c.Every, 200*time.Millisecond)
	orDefault(&c.MaxLine, 8<<10)
	orDefault(&c.Buffer, 4<<20)
	orDefault(&c.Stall, 2*time.Second)
	orDefault(&c.Linger, 30*time.Second)
	return c
}

// maxBatchBytes keeps a batch of long lines small.
const maxBatchBytes = 256 << 10

// lineCost is what a line takes besides its text, about.
const lineCost = 64

type postFunc func(context.Context, []api.LogMessage) error

// logStream carries a build's output to the controller: in order, in batches,
// from a bounded buffer. A line is sent, or counted in a line that says how many
// are missing; it is never lost silently.
type logStream struct {
	cfg   LogConfig
	retry client.Retry
	post  postFunc

	mu      sync.Mutex
	queue   []api.LogMessage
	bytes   int
	sending int // lines in flight
	dropped int // lines that wait to be confessed
	stalled bool
	closed  bool
	hurry   bool // somebody waits for the queue to be empty
	// Each is closed and replaced when something of its kind happens.
	more, less chan struct{}
}

func newLogStream(cfg LogConfig, retry client.Retry, post postFunc) *logStream {
	retry.Patience, retry.Temporary = 0, tryAgain // ends with its context
	return &logStream{cfg: cfg, retry: retry, post: post, more: make(chan struct{}), less: make(chan struct{})}
}

// writer returns one that turns its input into lines of a level.
func (s *logStream) writer(level string) *lineWriter {
	return &lineWriter{limit: s.cfg.MaxLine, emit: func(line string) {
		s.add(api.LogMessage{Level: level, Message: line})
	}}
}

// say appends a line of ours.
func (s *logStream) say(line api.LogMessage) { s.add(line) }

// add queues a line. When the buffer is full it holds its caller up, for at most
// Stall in a row, then drops lines until there is room again.
func (s *logStream) add(line api.LogMessage) {
	var patience <-chan time.Time
	for {
		s.mu.Lock()
		if s.closed || s.put(line) {
			s.mu.Unlock()
			return
		}
		if s.stalled {
			s.dropped++
			s.mu.Unlock()
			return
		}
		less := s.less
		s.mu.Unlock()
		if patience == nil {
			timer := time.NewTimer(s.cfg.Stall)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-less:
		case <-patience:
			s.mu.Lock()
			s.stalled = true
			s.mu.Unlock()
		}
	}
}

// put appends if there is room. The lock is held.
func (s *logStream) put(line api.LogMessage) bool {
	cost := len(line.Message) + lineCost
	if len(s.queue) > 0 && s.bytes+cost > s.cfg.Buffer {
		return false
	}
	s.confess()
	s.stalled = false
	s.queue = append(s.queue, line)
	s.bytes += cost
	wake(&s.more)
	return true
}

// confess appends the line that says what is missing here. The lock is held.
func (s *logStream) confess() {
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

// flush waits until all that was said is sent, for at most limit.
func (s *logStream) flush(ctx context.Context, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		s.mu.Lock()
		s.confess()
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
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// close flushes, ends run, and returns how many lines did not get through.
func (s *logStream) close(ctx context.Context, limit time.Duration) int {
	s.flush(ctx, limit)
	return s.discard()
}

// discard throws away what waits and takes no more; run ends. It returns how
// many lines that were.
func (s *logStream) discard() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := len(s.queue) + s.sending + s.dropped
	s.closed, s.queue, s.bytes, s.dropped = true, nil, 0, 0
	wake(&s.more)
	wake(&s.less)
	return lost
}

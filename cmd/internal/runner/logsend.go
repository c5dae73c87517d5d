package runner

import (
	"context"
	"net/http"
	"time"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// run sends what is said until close, discard, the end of ctx, or the
// controller's word that the build is not ours any more, which it returns.
func (s *logStream) run(ctx context.Context) error {
	defer s.discard()
	for {
		batch := s.take(ctx)
		if batch == nil {
			return nil
		}
		lost, err := s.send(ctx, batch)
		s.sent(lost)
		if err != nil {
			return err
		}
	}
}

// take waits for lines and for their company; nil at the end.
func (s *logStream) take(ctx context.Context) []api.LogMessage {
	var company <-chan time.Time
	for {
		s.mu.Lock()
		if len(s.queue) >= s.cfg.Batch || s.bytes >= maxBatchBytes || s.hurry && len(s.queue) > 0 {
			defer s.mu.Unlock()
			return s.cut()
		}
		closed, waiting, more := s.closed, len(s.queue), s.more
		s.mu.Unlock()
		if closed || ctx.Err() != nil {
			return nil
		}
		if waiting > 0 && company == nil {
			timer := time.NewTimer(s.cfg.Every)
			defer timer.Stop()
			company = timer.C
		}
		select {
		case <-more:
		case <-company:
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
	for n < len(s.queue) && n < s.cfg.Batch && (n == 0 || size < maxBatchBytes) {
		size += len(s.queue[n].Message) + lineCost
		n++
	}
	if n == 0 {
		return nil
	}
	batch := s.queue[:n:n]
	s.queue, s.bytes, s.sending = s.queue[n:], s.bytes-size, n
	wake(&s.less)
	return batch
}

// sent notes that a batch is dealt with, of which lost lines did not arrive.
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

// send posts a batch until it is taken. A batch that the controller can't take
// is halved until the line at fault is found, so that only that one is lost.
func (s *logStream) send(ctx context.Context, batch []api.LogMessage) (lost int, err error) {
	err = s.retry.Do(ctx, func(ctx context.Context) error { return s.post(ctx, batch) })
	switch status := client.StatusOf(err); {
	case err == nil:
		return 0, nil
	case verdict(err) != nil:
		return len(batch), err
	case status == 0: // ctx ended
		return len(batch), nil
	case len(batch) == 1:
		return 1, nil
	}
	half := len(batch) / 2
	first, err := s.send(ctx, batch[:half])
	if err != nil {
		return len(batch), err
	}
	second, err := s.send(ctx, batch[half:])
	return first + second, err
}

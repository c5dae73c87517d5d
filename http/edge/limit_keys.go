package edge

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"takt/store"
	"takt/store/backoff"
	"takt/store/limiter"
)

// maxWrongEntries is how many addresses a minute are named in the audit. The log names
// all.
const maxWrongEntries = 20

const (
	// maxGuesses is how many wrong keys an address may send in a minute before the replies to
	// further ones are delayed by guessDelay.
	maxGuesses = 100
	guessDelay = time.Second
)

// wrongKeys limits guessing of keys. An address that sends more than most wrong keys in a
// minute gets 429, and beyond maxGuesses a late reply. A right key is never refused or
// delayed. Safe for concurrent use.
type wrongKeys struct {
	most int // wrong keys a minute; negative: no limit
	// delayed limits the delayed replies. Further wrong keys get no reply; their connection is
	// closed.
	delayed *limiter.Limiter
	log     zerolog.Logger
	count   prometheus.Counter
	// report writes an entry into the audit. It does not block.
	report func(e store.AuditEntry)

	mu   sync.Mutex     // guards what follows
	by   map[string]int // the wrong keys of each address in this minute
	ends time.Time      // the end of this minute
}

// MeansWrongKey reports whether an error of authorize or of a login means a wrong key, and
// not a missing one.
func MeansWrongKey(err error) bool {
	code := store.CodeOf(err)
	return code == store.InvalidAPIKey || code == store.Forbidden
}

// Note counts err if it means a wrong key, and returns the error for the client.
func (w *wrongKeys) Note(who string, err error, now time.Time) error {
	if !MeansWrongKey(err) {
		return err
	}
	w.count.Inc()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !now.Before(w.ends) {
		w.by, w.ends = map[string]int{}, now.Add(time.Minute)
	}
	if w.by[who] == 0 {
		if len(w.by) >= maxKeys { // the map is full: a limit per address would not stop such a client
			return err
		}
		w.log.Warn().Str("remote", printAddr(who)).Err(err).Msg("wrong key; further ones from this address are only counted for a minute")
		if len(w.by) < maxWrongEntries {
			w.report(store.AuditEntry{At: now, Actor: "unknown client@" + printAddr(who), Action: store.WrongKey, Outcome: FailureOf(err).Message})
		}
	}
	w.by[who]++
	if w.most < 0 || w.by[who] <= w.most {
		return err
	}
	return &store.Error{Code: store.RateLimited, Message: "Too many wrong keys", RetryAfter: w.ends.Sub(now), Err: err}
}

// Slow delays the reply to a wrong key from an address that has sent many. The connection is
// closed after the reply, because further guesses may be queued on it. It returns
// http.ErrAbortHandler if there is to be no reply.
func (w *wrongKeys) Slow(ctx context.Context, who string, h http.Header) error {
	w.mu.Lock()
	wrong := w.by[who]
	w.mu.Unlock()
	if w.most < 0 || wrong <= maxGuesses {
		return nil
	}
	unit, err := w.delayed.Take(ctx, store.Share{Part: who}, nil)
	if err != nil {
		return http.ErrAbortHandler
	}
	defer unit.Release()
	h.Set("Connection", "close")
	if backoff.Pause(ctx, guessDelay) != nil {
		return http.ErrAbortHandler
	}
	return nil
}

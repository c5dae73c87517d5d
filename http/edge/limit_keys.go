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
)

// maxWrongEntries is how many addresses a minute are named in the audit. The log names
// all.
const maxWrongEntries = 20

const (
	// maxGuesses is how many wrong keys an address may show in a minute before the answers
	// to further ones are delayed by guessDelay.
	maxGuesses = 100
	guessDelay = time.Second
	// maxDelayed is how many answers are delayed at once, maxDelayedOf how many of one
	// address. Further wrong keys get no answer: their connection is closed.
	maxDelayed   = 256
	maxDelayedOf = 16
)

// wrongKeys limits guessing of keys: an address may show so many wrong keys a minute, then
// gets a Retry-After, and beyond maxGuesses is slowed. A right key is never refused or
// delayed.
type wrongKeys struct {
	most int // wrong keys a minute; negative: no limit
	// delayed limits the answers that are delayed.
	delayed *Limiter
	log     zerolog.Logger
	count   prometheus.Counter
	// report writes an entry into the audit. It does not block.
	report func(e store.AuditEntry)

	mu   sync.Mutex     // guards what follows
	by   map[string]int // the wrong keys of each address in this minute
	ends time.Time      // the end of this minute
}

// MeansWrongKey reports whether authorize or a login returned err for a wrong key, not for
// a missing one.
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
			w.report(store.AuditEntry{At: now, Actor: "unknown@" + printAddr(who), Action: "show wrong key", Outcome: FailureOf(err).Message})
		}
	}
	w.by[who]++
	if w.most < 0 || w.by[who] <= w.most {
		return err
	}
	return &store.Error{Code: store.RateLimited, Message: "Too many wrong keys", RetryAfter: w.ends.Sub(now), Err: err}
}

// Slow delays the answer to a wrong key of an address that guesses, and has the connection
// closed after it, because more guesses may wait on it. It returns an error if there is to
// be no answer.
func (w *wrongKeys) Slow(ctx context.Context, who string, h http.Header) error {
	w.mu.Lock()
	wrong := w.by[who]
	w.mu.Unlock()
	if w.most < 0 || wrong <= maxGuesses {
		return nil
	}
	release, err := w.delayed.Take(ctx, who, nil)
	if err != nil {
		return http.ErrAbortHandler
	}
	defer release()
	h.Set("Connection", "close")
	if backoff.Pause(ctx, guessDelay) != nil {
		return http.ErrAbortHandler
	}
	return nil
}

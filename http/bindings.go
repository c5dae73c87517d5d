package http

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"takt/http/edge"
	"takt/store"
)

// bindings checks that a worker's token belongs to the worker that the key is for.
type bindings struct {
	store Workers
	// ids has the ids of workers by their numbers, which never change: one for each key that
	// was used by its worker.
	ids sync.Map
}

// check returns an error if t is another worker's token than that of k. One of an unknown worker
// is left to the caller. An enrolled key without a worker gets InvalidToken, so that a worker
// registers with it: else who never does could be any.
func (b *bindings) check(ctx context.Context, k *store.NamedKey, t store.WorkerToken) error {
	if k.Binds() && k.Worker == "" {
		return store.ErrInvalidToken()
	}
	if k == nil || k.Worker == "" || t.Worker == 0 {
		return nil
	}
	if id, found := b.ids.Load(t.Worker); found && id == k.Worker {
		return nil
	}
	id, err := b.store.IDOf(ctx, t.Worker)
	if store.CodeOf(err) == store.NotFound {
		return nil
	}
	if err == nil {
		err = k.Of(id)
	}
	if err == nil {
		b.ids.Store(t.Worker, id)
	}
	return err
}

// misuse reports to operators, once a minute for each key, that a key was shown by another worker than its
// own, or by another process while that one lives.
type misuse struct {
	deps Deps

	mu   sync.Mutex           // guards what follows
	last map[string]time.Time // by key
}

// report writes into the audit and the log. The fleet shows it at the key's worker.
func (m *misuse) report(k *store.NamedKey, address string, refused error) {
	now, what := time.Now(), edge.FailureOf(refused)
	if !m.due(k.Name, now) {
		return
	}
	m.deps.Logger.Warn().Str("key", k.Name).Str("worker", k.Worker).Str("address", address).Str("code", string(what.Code)).
		Msg("key of a worker refused: another one has sent it")
	m.deps.Background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeoutCause(ctx, auditPatience, errSlowAudit)
		defer cancel()
		detail, _ := json.Marshal(map[string]string{"worker": k.Worker}) // can't fail
		_, _ = m.deps.Audit.Append(ctx, store.AuditEntry{                // the log has it too
			At: now, Actor: "key " + k.Name + "@" + address, Action: "use key of a worker", Target: "key/" + k.Name, Detail: detail, Outcome: what.Message,
		})
		if k.Worker != "" {
			_, _, _ = m.deps.Workers.Conflict(ctx, k.Worker, address)
		}
	})
}

// due reports whether a misuse of a key at now is to be reported.
func (m *misuse) due(key string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at, found := m.last[key]; found && now.Sub(at) < time.Minute {
		return false
	}
	if m.last == nil {
		m.last = map[string]time.Time{}
	}
	m.last[key] = now
	return true
}

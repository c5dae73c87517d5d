package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const (
	// limitMargin is how many builds below the queue limit submissions begin to count the
	// pending builds in the table.
	limitMargin = 64
	// hintAge is how old a count may be for a submission to rely on it, and so may be what is known
	// of the workers.
	hintAge = 2 * time.Second

	// fullPause is for how long there must have been room before a full queue is told of again.
	fullPause = 5 * time.Minute
)

// pendingHint is an upper bound of the number of pending builds, but for what other
// controllers submit: the last count of the table plus this controller's submissions since.
// Assigned builds don't lower it, so it causes too many counts rather than too few. Safe for
// concurrent use; the zero value has no count.
type pendingHint struct {
	// adding is held shared by submissions that don't count, and exclusively by one that
	// counts, so that its count includes every reserved build.
	adding sync.RWMutex

	mu sync.Mutex // guards what follows
	n  int
	at time.Time // of the count; zero if unknown
}

// reserve reserves room for n builds if the hint is recent and the limit far away. If it
// returns true, the caller must call release.
func (h *pendingHint) reserve(n, limit int) bool {
	h.adding.RLock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at.IsZero() || time.Since(h.at) > hintAge || h.n+n+limitMargin > limit {
		h.adding.RUnlock()
		return false
	}
	h.n += n
	return true
}

// release ends what reserve began; used is false if the builds were not inserted.
func (h *pendingHint) release(n int, used bool) {
	h.mu.Lock()
	if !used {
		h.n -= n
	}
	h.mu.Unlock()
	h.adding.RUnlock()
}

// counted records that n builds are pending now.
func (h *pendingHint) counted(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n, h.at = n, time.Now()
}

// forget makes the next submission count the table.
func (h *pendingHint) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = time.Time{}
}

// knownFleet caches what known workers can take. Safe for concurrent use; the zero value has
// nothing.
type knownFleet struct {
	mu    sync.Mutex // guards what follows
	fleet *store.Fleet
	at    time.Time
}

// recent returns the known workers, nil if they are to be read.
func (k *knownFleet) recent() *store.Fleet {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.at) > hintAge {
		return nil
	}
	return k.fleet
}

// forget makes the next reader read the workers.
func (k *knownFleet) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fleet = nil
}

// takes reports whether some known worker is sure to take builds of all classes: then they need not
// be counted apart.
func (k *knownFleet) takes(all []*addition) bool {
	fleet := (*store.Fleet)(nil)
	for _, a := range all {
		if len(a.class.Require) == 0 {
			continue
		}
		if fleet == nil {
			fleet = k.recent()
		}
		if fleet == nil || a.class.ID == 0 || fleet.Unmatched(&a.class) {
			return false
		}
	}
	return true
}

// sqlKnownKinds lists the combinations of platforms and labels among known workers.
const sqlKnownKinds = `/* known_kinds */ SELECT platforms, labels, count(*)::int FROM workers WHERE ` + knownWorker + ` GROUP BY 1, 2`

// read returns the known workers as of at most hintAge ago.
func (k *knownFleet) read(ctx context.Context, q querier) (*store.Fleet, error) {
	if fleet := k.recent(); fleet != nil {
		return fleet, nil
	}
	now := time.Now()
	kinds, err := collect(ctx, q, func(row pgx.CollectableRow) (g store.FleetGroup, err error) {
		return g, row.Scan(&g.Platforms, &g.Labels, &g.N)
	}, sqlKnownKinds)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fleet, k.at = store.NewFleet(kinds), now
	return k.fleet, nil
}

// unmatched counts the builds that no known worker can take. It reads the workers only if some
// class has requirements.
func (k *knownFleet) unmatched(ctx context.Context, q querier, counts []store.ClassCount) (n int, err error) {
	var fleet *store.Fleet
	for i := range counts {
		c := &counts[i]
		if len(c.Require) == 0 {
			continue
		}
		if fleet == nil {
			if fleet, err = k.read(ctx, q); err != nil {
				return 0, err
			}
		}
		if fleet.Unmatched(&c.Class) {
			n += c.N
		}
	}
	return n, nil
}

const (
	sqlHoldLimit = `/* hold_limit */ SELECT pg_advisory_xact_lock($1)`

	// sqlCountPending counts pending builds by class, up to $1 in all.
	sqlCountPending = `/* count_pending */ SELECT coalesce(k.id, 0), coalesce(k.platform, ''), k.require, p.n FROM (
	SELECT class, count(*)::int AS n FROM (SELECT ` + homeClass + ` AS class FROM builds b WHERE state = 'pending' LIMIT $1) b GROUP BY 1
) p LEFT JOIN build_classes k ON k.id = p.class`
)

// countRoom counts under the lock.
func (b *Builds) countRoom(ctx context.Context, tx pgx.Tx) (room store.QueueRoom, err error) {
	if _, err := tx.Exec(ctx, sqlHoldLimit, int64(limitKey)); err != nil {
		return room, err
	}
	room.Limit = b.cfg.QueueLimit
	counts, err := collect(ctx, tx, pgx.RowToStructByPos[store.ClassCount], sqlCountPending, room.Limit+room.Share()+1)
	if err != nil {
		return room, err
	}
	for i := range counts {
		room.Pending += counts[i].N
	}
	room.Unmatched, err = b.db.known.unmatched(ctx, tx, counts)
	return room, err
}

// admit refuses the builds for which there is no room.
func (b *Builds) admit(ctx context.Context, tx pgx.Tx, all []*addition) error {
	room, err := b.countRoom(ctx, tx)
	if err != nil {
		return err
	}
	for _, a := range all {
		n, err := b.db.known.unmatched(ctx, tx, []store.ClassCount{{Class: a.class, N: 1}})
		if err != nil {
			return err
		}
		a.err = room.Admit(n > 0)
	}
	b.db.pending.counted(room.Pending) // includes these builds; too many if their insert fails
	return nil
}

// sqlNoteFull records that submits are refused for the reason $1, and sends notices with the data
// $2 unless that was recorded within the time $3.
const sqlNoteFull = `/* note_full */
WITH n AS (
	INSERT INTO settings AS s (key, value) VALUES ('queue_' || $1::text, to_jsonb(now()))
	ON CONFLICT (key) DO UPDATE SET updated_at = greatest(now(), s.updated_at),
		value = CASE WHEN s.updated_at < now() - $3::interval THEN to_jsonb(now()) ELSE s.value END
	RETURNING value = to_jsonb(now()) AS first
)
SELECT insert_notices('queue.full', '{}', '{}', $2::jsonb) FROM n WHERE first AND NOT EXISTS (SELECT FROM acknowledgements WHERE kind = 'queue' AND until > now())`

// NoteFull records that submits are refused. It tells subscribers of it if there was room for five
// minutes before, however many controllers call it.
func (q *Queue) NoteFull(ctx context.Context, room store.QueueRoom) error {
	reason := room.Reason()
	if reason == "" {
		return nil
	}
	data := map[string]any{"reason": reason, "limit": room.Limit, "pending": room.Pending, "unmatched": room.Unmatched}
	_, err := q.db.write("noting a full queue").exec(ctx, sqlNoteFull, reason, data, fullPause)
	return err
}

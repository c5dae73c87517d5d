package database

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/actors/otp"
)

// HeldBack says what keeps vacuum from removing dead versions of rows: an old snapshot, a
// prepared transaction or a replication slot.
type HeldBack struct {
	// By names the oldest holder, for operators.
	By string
	// Since is when this process first saw that transaction id as the oldest.
	Since time.Time
	// Transactions is how many transaction ids were assigned after it.
	Transactions int64
}

// busyHorizon is how many transactions must begin before an old snapshot matters, because in
// an idle database it keeps nothing from being removed.
const busyHorizon = 1000

// sqlHorizon finds the holder of the oldest transaction id that vacuum must respect. It
// skips vacuum's own sessions, and needs no privileges.
const sqlHorizon = `/* horizon */
SELECT x::text, age(x), holder FROM (
	SELECT v.x, 'process ' || a.pid || ' of ' || coalesce(a.usename, '?') || coalesce(' (' || nullif(a.application_name, '') || ')', '') AS holder
	FROM pg_stat_activity a CROSS JOIN LATERAL (VALUES (a.backend_xmin), (a.backend_xid)) v(x)
	WHERE a.pid <> pg_backend_pid() AND (a.datname = current_database() OR a.datname IS NULL)
		AND a.pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
	UNION ALL
	SELECT transaction, 'prepared transaction ' || gid FROM pg_prepared_xacts WHERE database = current_database()
	UNION ALL
	SELECT xmin, 'replication slot ' || slot_name FROM pg_replication_slots
) h WHERE x IS NOT NULL ORDER BY age(x) DESC LIMIT 1`

// horizon is the oldest transaction id that vacuum must respect.
type horizon struct {
	xmin   string // "" if there is none
	age    int64
	holder string
}

// horizonWatch detects a horizon that does not move.
type horizonWatch struct {
	limit time.Duration
	xmin  string
	since time.Time
}

// observe returns a report if vacuum has been held back for longer than the limit, else nil.
func (w *horizonWatch) observe(now time.Time, h horizon) *HeldBack {
	if h.xmin != w.xmin {
		w.xmin, w.since = h.xmin, now
	}
	if h.xmin == "" || h.age < busyHorizon || now.Sub(w.since) < w.limit {
		return nil
	}
	return &HeldBack{By: h.holder, Since: w.since, Transactions: h.age}
}

// HeldBack returns what has held vacuum back for longer than PoolConfig.HorizonLimit; nil if
// nothing has.
func (p *Pool) HeldBack() *HeldBack { return p.held.Load() }

// look returns the work of querying the horizon; nil without a pool.
func (s *poolServer) look() func(context.Context) (horizon, error) {
	l, limit := s.open, s.cfg.AnswerTimeout
	if l == nil {
		return nil
	}
	return func(ctx context.Context) (h horizon, err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("the database did not answer in time"))
		defer cancel()
		err = l.pool.QueryRow(ctx, sqlHorizon).Scan(&h.xmin, &h.age, &h.holder)
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		return h, err
	}
}

// looked logs when vacuum begins and ceases to be held back. It ignores a failed query, because
// check detects outages.
func (s *poolServer) looked(c *otp.Ctx, h horizon, err error) (next time.Duration) {
	if err != nil {
		return 0
	}
	held := s.horizon.observe(time.Now(), h)
	before := s.handle.held.Swap(held)
	log := c.Logger()
	switch {
	case held != nil && (before == nil || before.By != held.By):
		log.Warn().Str("by", held.By).Time("since", held.Since).Int64("transactions", held.Transactions).
			Msg("an old snapshot holds back vacuum; tables grow until it ends")
	case held == nil && before != nil:
		log.Info().Str("by", before.By).Msg("vacuum is no longer held back")
	}
	return 0
}

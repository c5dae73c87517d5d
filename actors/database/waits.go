package database

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// slowWait is how long the mean wait for a connection may be.
const slowWait = 50 * time.Millisecond

// waitMeter turns the pool's totals into the waits of one interval.
type waitMeter struct {
	count int64
	total time.Duration
}

// observe returns how many calls waited for a connection since the last
// observation, how long they waited in the mean, and whether that is too long.
func (m *waitMeter) observe(count int64, total time.Duration) (n int64, mean time.Duration, slow bool) {
	n, took := count-m.count, total-m.total
	m.count, m.total = count, total
	if n <= 0 {
		return 0, 0, false
	}
	mean = took / time.Duration(n)
	return n, mean, mean > slowWait
}

func (m *waitMeter) observeStat(stat *pgxpool.Stat) (n int64, mean time.Duration, slow bool) {
	return m.observe(stat.EmptyAcquireCount(), stat.EmptyAcquireWaitTime())
}

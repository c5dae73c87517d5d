package actors

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Workers are counted every 15 s at most, also while that fails, and a count is told for
// a minute.
func TestCountOfTheFleetIsShortlyKept(t *testing.T) {
	t.Parallel()
	counts, away := 0, errors.New("away")
	var failure error
	f := counted[map[string]int]{limit: time.Second, count: func(context.Context) (map[string]int, error) {
		counts++
		return map[string]int{"idle": counts}, failure
	}}
	begin := time.Now()
	for _, step := range []struct {
		at      time.Duration
		failure error
		idle    int
		known   bool
	}{
		{at: 0, idle: 1, known: true},
		{at: 14 * time.Second, idle: 1, known: true},
		{at: 15 * time.Second, idle: 2, known: true},
		{at: 74 * time.Second, failure: away, idle: 2, known: true},
		{at: 75 * time.Second, failure: away, idle: 2},
		{at: 88 * time.Second, idle: 2},
		{at: 89 * time.Second, idle: 4, known: true},
	} {
		failure = step.failure
		states, at := f.last(begin.Add(step.at))
		require.Equal(t, step.known, begin.Add(step.at).Sub(at) < fleetAge, step.at)
		require.Equal(t, step.idle, states["idle"], step.at)
	}
}

package heijunka

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// transfers holds transfers, each of another credential.
func (w *fixture) transfers(n int) (all []*held) {
	for i := range n {
		all = append(all, w.holdAs(Transfer, store.Share{Credential: fmt.Sprint("key ", i), Part: "w"}))
	}
	return all
}

// A transfer waits in one line, for its place, and is no load meanwhile.
func TestTransfersThatWaitDelayNoOther(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{scaleEvery: time.Hour, balanceEvery: time.Hour}, func(w *fixture) {
		w.h.surge.update(func(k *store.HeijunkaBursts) { k.Enabled = false })
		limits, begin := w.h.gate.limits, time.Now()
		running := w.transfers(192)
		passes(0)
		require.Equal(w, 192, w.load())
		waiting := w.transfers(1000)
		passes(0)
		require.Equal(w, 1000, w.pool(Transfer).places.Counts().Waiting)
		requireOverload(w, <-w.transfers(1)[0].done, RuleTransfers, 1000, 1000)

		short := append(w.holdAll(Query, 20), w.holdAll(Fleet, 250)...)
		passes(0)
		require.Equal(w, 192+270, w.load(), "admitted at once")
		require.NoError(w, w.serve(w.Context(), Submit, 0))
		require.Equal(w, begin, time.Now())
		short = append(short, w.holdAll(Hook, limits.Regular()-w.load())...)
		passes(0)
		require.Equal(w, limits.Regular(), w.load())
		requireOverload(w, w.serve(w.Context(), Query, 0), RuleRegular, limits.Regular(), limits.Regular())

		w.end(running[:1])
		passes(0)
		require.Equal(w, limits.Regular(), w.load(), "one that waited is admitted")
		require.LessOrEqual(w, w.load(), limits.Hard)
		passes(20 * time.Second)
		served := 0
		for _, r := range waiting {
			close(r.letGo)
			if err := <-r.done; err != nil {
				requireRule(w, err, RuleTransfers)
			} else {
				served++
			}
		}
		require.Equal(w, 1, served)
		w.end(running[1:])
		for _, r := range short {
			close(r.letGo)
			if err := <-r.done; err != nil { // it has waited in vain
				requireRule(w, err, RuleWait)
			}
		}
		w.requireNothingHeld()
	})
}

func TestATransferThatIsNotAdmittedGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{Limits: store.HeijunkaLimits{Soft: 8, Hard: 10, Reserved: 0.2}, Pools: []PoolConfig{
		{Name: Transfer, Initial: 20, Min: 20, Max: 20, Queue: 10, Shared: true},
	}}, func(w *fixture) {
		running := w.transfers(8)
		passes(0)
		requireOverload(w, <-w.transfers(1)[0].done, RuleRegular, 8, 8)
		require.Equal(w, 8, w.pool(Transfer).places.Counts().Held)
		w.end(running)
		w.requireNothingHeld()
	})
}

// Files are also limited if nothing is levelled, and those who show no key have a part of the places.
func TestTransfersHavePlacesWithoutLevelling(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{Off: true}, func(w *fixture) {
		var anonymous []*held
		for i := range 100 {
			anonymous = append(anonymous, w.holdAs(Transfer, store.Share{Part: fmt.Sprint("192.0.2.", i)}))
		}
		passes(0)
		c := w.pool(Transfer).places.Counts()
		require.Equal(w, []int{64, 36}, []int{c.Held, c.Waiting})
		running := w.transfers(192)
		passes(0)
		require.Equal(w, 256, w.pool(Transfer).places.Counts().Held)
		next := w.transfers(1)
		passes(0)
		w.end(anonymous[:1])
		passes(0)
		require.Equal(w, 36, w.pool(Transfer).places.Counts().Waiting, "a credential that had none, or an address, in turn")
		for _, r := range append(anonymous[1:], next...) {
			close(r.letGo)
			if err := <-r.done; err != nil {
				requireRule(w, err, RuleTransfers)
			}
		}
		w.end(running)
		require.Zero(w, w.pool(Transfer).places.Counts().Held)
		require.ErrorIs(w, w.h.Do(w.Context(), store.Work{Domain: Query}, func(context.Context) error { return errDefect }), errDefect)
	})
}

package throttle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/throttle"
	"takt/http/hubspottest"
	"takt/store"
	"takt/store/storetest"
)

// The rate holds with several calls of one claim under way, whatever they take,
// and with budget that is claimed before it is back.
func TestNoWindowHasMoreThanTheRateHoweverLongCallsTake(t *testing.T) {
	t.Parallel()
	const rate, count = 400, 1600
	b := setup(t, storetest.New(t), throttle.Config{Ahead: 300 * time.Millisecond}, nil)
	b.install()
	b.rate(1, store.Day)
	b.send(portal, 1, count)
	for range 3 {
		b.hs.Fail(portal,
			hubspottest.Fault{Status: 204, Delay: 300 * time.Millisecond, Times: 1},
			hubspottest.Fault{Status: 204, Delay: time.Millisecond, Times: 1},
			hubspottest.Fault{Status: 204, Delay: 40 * time.Millisecond, Times: 1})
	}
	b.rate(rate, store.Second)
	require.Eventually(t, func() bool { return b.hs.Distinct() == count }, time.Minute, time.Millisecond)
	require.LessOrEqual(t, hubspottest.MostInAnyWindow(b.hs.Completions(), time.Second), rate)
}

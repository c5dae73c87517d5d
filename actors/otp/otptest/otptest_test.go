package otptest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHelpers(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	synctest.Test(t, func(t *testing.T) {
		events := 0
		sys := otptest.New(t, func(o *otp.Options) { o.OnEvent = func(otp.Event) { events++ } })
		otptest.Tree(t, sys, otp.SupSpec{Children: []otp.ChildSpec{{ID: "task", Task: func(ctx context.Context) error { <-ctx.Done(); return nil }}}})
		p := sys.Whereis("root/task")
		otptest.Crash(t, p, boom)
		require.Equal(t, boom, otptest.Ended(t, p))
		next := otptest.Restarted(t, sys, p)
		require.NotSame(t, p, next)
		begin := time.Now()
		otptest.Advance(time.Hour)
		require.Equal(t, time.Hour, time.Since(begin))
		otptest.Eventually(t, func() bool { return events > 3 }, "events have come")
	})
}

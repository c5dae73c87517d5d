package otp_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
)

func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		p, err := sys.Start("watched", func() otp.Server { return &quiet{} })
		require.NoError(t, err)
		var seen []error
		p.Watch(func(reason error) {
			require.Nil(t, sys.Whereis("watched"), "the name is free")
			seen = append(seen, reason)
		})
		cancel := p.Watch(func(error) { t.Error("was taken back") })
		cancel()
		otptest.Advance(time.Second)
		require.Empty(t, seen)
		p.Kill()
		synctest.Wait()
		p.Watch(func(reason error) { seen = append(seen, reason) })
		require.Equal(t, []error{otp.ErrKilled, otp.ErrKilled}, seen, "at once of a dead process")
	})
}

// quiet does nothing.
type quiet struct{ otp.Base }

func (*quiet) Init(*otp.Ctx) error { return nil }

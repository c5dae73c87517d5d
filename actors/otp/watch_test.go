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
		var heard []error
		p.Watch(func(reason error) {
			require.Nil(t, sys.Whereis("watched"), "the name is free")
			heard = append(heard, reason)
		})
		cancel := p.Watch(func(error) { t.Error("was taken back") })
		cancel()
		otptest.Advance(time.Second)
		require.Empty(t, heard)
		p.Kill()
		synctest.Wait()
		p.Watch(func(reason error) { heard = append(heard, reason) })
		require.Equal(t, []error{otp.ErrKilled, otp.ErrKilled}, heard, "a dead process is told of at once")
	})
}

// quiet does nothing.
type quiet struct{ otp.Base }

func (*quiet) Init(*otp.Ctx) error { return nil }

package serving

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
)

// listen opens the listener. If systemd passes a socket, it is that one, which stays open when
// takt ends: connections wait in it for the next start.
func (c *controller) listen(ctx context.Context) error {
	passed, err := activation.Listeners()
	if err != nil {
		return fmt.Errorf("socket of systemd: %w", err)
	}
	switch len(passed) {
	case 0:
		var lc net.ListenConfig
		c.listener, err = lc.Listen(ctx, "tcp", c.cfg.Listen)
		return err
	case 1:
		if ln, ok := passed[0].(*net.TCPListener); ok {
			c.listener, c.activated = ln, true
			return nil
		}
	}
	return fmt.Errorf("systemd passed %d sockets; takt takes one, a TCP socket that listens", len(passed))
}

// notify tells systemd about takt, if takt is a service of Type=notify. A systemd that can't
// be told acts by itself, so an error is only logged.
func (c *controller) notify(state, status string) {
	if _, err := daemon.SdNotify(false, state+"\nSTATUS="+status); err != nil {
		c.log.Warn().Err(err).Str("state", state).Msg("systemd could not be notified")
	}
}

// feed keeps a watchdog of that limit from restarting takt while works returns true. It returns
// a function that ends this and waits. 0 is no watchdog.
func feed(ctx context.Context, limit time.Duration, works func(context.Context) bool, tell func()) (stop func()) {
	if limit == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var feeding sync.WaitGroup
	feeding.Go(func() {
		every := time.NewTicker(limit / 3)
		defer every.Stop()
		for ctx.Err() == nil {
			ask, done := context.WithTimeout(ctx, limit/3)
			if works(ask) {
				tell()
			}
			done()
			select {
			case <-every.C:
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel(nil)
		feeding.Wait()
	}
}

// status is what `systemctl status` shows of a running takt.
func (c *controller) status() string {
	if !c.tree.Ready() {
		return "the database is unavailable; serving at " + c.listener.Addr().String() + " what does not need it"
	}
	return "serving at " + c.listener.Addr().String()
}

package main

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echoed is a connection through a proxy to a server that returns what it is sent.
func echoed(t *testing.T) (*proxy, net.Conn) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 100)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					_, _ = c.Write(buf[:n])
				}
			}()
		}
	}()
	p, err := newProxy(t.Context(), func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
	})
	require.NoError(t, err)
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Address)
	require.NoError(t, err)
	t.Cleanup(func() {
		c.Close()
		p.Close()
		ln.Close()
		<-ended
	})
	require.NoError(t, said(c, "hello", 10*time.Second))
	return p, c
}

// said sends a text and waits for it to come back.
func said(c net.Conn, text string, limit time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := c.Write([]byte(text)); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 100))
	return err
}

func TestProxyMakesEachFault(t *testing.T) {
	t.Parallel()
	const text, short = "LISTEN takt", 100 * time.Millisecond
	for fault, tt := range map[network]struct{ during, after bool }{
		healthy: {true, true}, slow: {true, true}, frozen: {false, true}, muted: {false, true}, blackholed: {false, false}, partitioned: {false, false},
	} {
		t.Run(fault.String(), func(t *testing.T) {
			t.Parallel()
			p, c := echoed(t)
			p.set(fault)
			begun := time.Now()
			limit := short
			if tt.during {
				limit = 10 * time.Second
			}
			err := said(c, text, limit)
			require.Equal(t, tt.during, err == nil, err)
			if fault == slow {
				require.GreaterOrEqual(t, time.Since(begun), 2*latency)
			}
			p.Inject(t.Context(), fault, 0)
			err = said(c, text, 10*time.Second)
			require.Equal(t, tt.after, err == nil, err)
		})
	}
}

func TestADeafNetworkOnlyKeepsNotifications(t *testing.T) {
	t.Parallel()
	p, c := echoed(t)
	p.set(muted)
	require.NoError(t, said(c, "SELECT 1", 10*time.Second))
	p.set(partitioned)
	other, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Address)
	require.NoError(t, err)
	defer other.Close()
	require.Error(t, said(other, "x", 10*time.Second), "no connections during a partitioned")
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"takt/cmd/internal/process"
)

// latency is how much longer each piece of data takes on a slow network.
const latency = 40 * time.Millisecond

// network is what a proxy does with data.
type network int

const (
	healthy     network = iota
	slow                // each piece takes latency longer
	frozen              // nothing moves; later it goes on
	blackholed          // what is sent is lost; the connection breaks when the fault ends
	partitioned         // connections break, and new ones too
	muted               // notifications of PostgreSQL are not delivered; later they are
)

// proxy forwards connections and makes the faults of a network. It is safe for concurrent
// use.
type proxy struct {
	Address string

	dial  func(ctx context.Context) (net.Conn, error)
	ln    net.Listener
	ctx   context.Context // the life of its connections
	end   context.CancelCauseFunc
	alive sync.WaitGroup

	mu      sync.Mutex // guards what follows
	now     network
	changed chan struct{} // closed when now changes
	conns   map[net.Conn]struct{}
}

// newProxy listens on a free loopback port. Each connection is forwarded to what dial
// reaches.
func newProxy(ctx context.Context, dial func(context.Context) (net.Conn, error)) (*proxy, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	p := &proxy{Address: ln.Addr().String(), dial: dial, ln: ln, changed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.ctx, p.end = context.WithCancelCause(context.WithoutCancel(ctx))
	p.alive.Go(p.accept)
	return p, nil
}

// Close breaks all connections and returns when their goroutines have ended.
func (p *proxy) Close() {
	p.end(errors.New("the drill is over"))
	_ = p.ln.Close()
	p.set(partitioned)
	p.alive.Wait()
}

// Inject makes the fault for d.
func (p *proxy) Inject(ctx context.Context, fault network, d time.Duration) {
	p.set(fault)
	process.Pause(ctx, d)
	if fault == blackholed {
		p.set(partitioned)
	}
	p.set(healthy)
}

func (p *proxy) set(n network) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = n
	close(p.changed)
	p.changed = make(chan struct{})
	if n == partitioned {
		for c := range p.conns {
			_ = c.Close()
		}
	}
}

// state returns what the network is like, and a channel that is closed when that changes.
func (p *proxy) state() (network, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now, p.changed
}

// keep notes a connection that a cut breaks. It returns false, and closes c, during a cut.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == partitioned {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *proxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

func (p *proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return // closed
		}
		p.alive.Go(func() { p.serve(c) })
	}
}

// serve forwards one connection until either side ends it.
func (p *proxy) serve(client net.Conn) {
	if !p.keep(client) {
		return
	}
	defer p.forget(client)
	server, err := p.dial(p.ctx)
	if err != nil || !p.keep(server) {
		return
	}
	defer p.forget(server)
	var listens atomic.Bool // the client has sent LISTEN
	var back sync.WaitGroup
	back.Go(func() { p.forward(client, server, func([]byte) bool { return listens.Load() }) })
	p.forward(server, client, func(sent []byte) bool {
		if bytes.Contains(sent, []byte("LISTEN takt")) {
			listens.Store(true)
		}
		return false
	})
	back.Wait()
}

// forward copies from src to dst until either fails, then closes both. notifies says of
// each piece whether it may be a notification.
func (p *proxy) forward(dst, src net.Conn, notifies func([]byte) bool) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 && p.pass(notifies(buf[:n])) {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits as long as the network holds a piece of data up, and reports whether it
// arrives.
func (p *proxy) pass(notification bool) bool {
	for {
		now, changed := p.state()
		switch now {
		case blackholed:
			return false
		case slow:
			process.Pause(p.ctx, latency)
			return true
		case muted:
			if !notification {
				return true
			}
		case frozen:
		default:
			return true
		}
		select {
		case <-changed:
		case <-p.ctx.Done():
			return false
		}
	}
}
